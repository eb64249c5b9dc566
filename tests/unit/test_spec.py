"""One spec: every field is read, and every kind of mistake is named at its place."""

from __future__ import annotations

import datetime as dt
import tomllib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from hostenv.document import DocumentError, read, table_of
from hostenv.spec.environment import (
    Activate,
    Arch,
    Build,
    Bytecode,
    Io,
    LinkMode,
    Platform,
    Prereleases,
    PythonArchive,
    Supply,
)
from hostenv.spec.fleet import load_fleet
from hostenv.spec.host import (
    Become,
    Container,
    ContainerKind,
    Gpus,
    Host,
    Identity,
    Mode,
    ReservedGpu,
    Transport,
)
from hostenv.spec.rules import Capture, Command, Layer, Model, OverlayUse, Reference, Source, System, Waiver
from hostenv.spec.spec import Spec

if TYPE_CHECKING:
    from hostenv.spec.fleet import Fleet

WAIVER = '{ rule = "K1", object = "x", reason = "y", until = 2027-01-31 }'
DATA = Path(__file__).parents[1] / "data" / "envspecs"


@pytest.fixture(scope="module")
def example() -> Fleet:
    return load_fleet(DATA)


def spec_of(toml: str) -> Spec:
    reader = table_of(lambda table: Spec.from_table(table, name="a", path=Path("a.toml")))
    return read(tomllib.loads(toml), reader, document="a.toml")


def problems_of(toml: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        spec_of('[host]\nroot = "/r"\n' + toml if "[host]" not in toml else toml)
    return caught.value.message.splitlines()


def test_every_field_of_host_and_identity(example: Fleet) -> None:
    spec = example.specs["ct200"]
    assert spec.tags == ("blackwell", "lxc", "offline")
    assert spec.path == DATA / "ct200.toml"
    assert spec.host == Host(
        transport=Transport.SSH,
        address="ct200",
        user="ops",
        become=Become.SUDO,
        root=PurePosixPath("/root/hostenv"),
        link=PurePosixPath("/root/venv_sglang"),
        mode=Mode.MANAGE,
        connections=4,
        container=Container(kind=ContainerKind.LXC, id="200", parent="kpro6"),
    )
    assert spec.identity == Identity(machine_id="fedcba9876543210" * 2, host_key=f"SHA256:{'B' * 43}")
    assert spec.gpus == Gpus(
        model="NVIDIA RTX PRO 6000 Blackwell",
        count=8,
        compute_capability="12.0",
        reserved=(
            ReservedGpu(
                uuid="GPU-01234567-89ab-cdef-0123-456789abcdef",
                index=None,
                why="temporary server on port 30000",
                owner="ops",
            ),
            ReservedGpu(uuid=None, index=7, why="broken fan", owner=None),
        ),
    )


def test_every_field_of_supply_and_build(example: Fleet) -> None:
    spec = example.specs["ct200"]
    assert spec.supply == Supply(
        offline=True,
        wheelhouse=PurePosixPath("/srv/wheelhouse"),
        via="kpro6",
        python=PythonArchive(
            file="cpython-3.12.12+20261101-x86_64-unknown-linux-gnu-install_only.tar.gz",
            sha256="e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            version=Version("3.12.12"),
            url="https://mirror.example.org/cpython-3.12.12.tar.gz",
        ),
    )
    assert spec.build == Build(
        activate=Activate.MANUAL,
        keep=4,
        min_free=30 * 1024**3,
        link_mode=LinkMode.COPY,
        io=Io.IDLE,
        bytecode=Bytecode.COMPILE,
    )


def test_every_field_of_env_and_platform_comes_from_the_class(example: Fleet) -> None:
    spec = example.specs["ct200"]
    env = spec.env
    assert [str(item) for item in env.requires] == ["sglang==0.5.15.post1"]
    assert [str(item) for item in env.constraints] == ["torch==2.11.0", "sglang-kernel==0.4.4"]
    assert [str(item) for item in env.overrides] == ["numpy<3"]
    assert env.excludes == ("modelscope-hub",)
    assert env.prereleases is Prereleases.ALLOW
    assert env.exclude_newer == dt.datetime(2026, 11, 30, tzinfo=dt.UTC)
    assert env.indexes == ("default", "pytorch")
    assert env.torch_backend == "cu130"
    assert [series.folder for series in env.patches] == ["sglang-0.5.15.post1", "sglang-kernel-0.4.4"]
    assert spec.platform == Platform(
        arch=Arch.X86_64, glibc=(2, 34), python=SpecifierSet("==3.12.*"), driver_min=Version("580.65.06")
    )
    assert spec.platform.python_minor == "3.12"


def test_every_field_that_judges(example: Fleet) -> None:
    spec = example.specs["ct200"]
    assert spec.overlays == (OverlayUse(name="ct129-abi", require_arch=("12.0",)),)
    assert spec.reference == Reference(host="ct129", equal=tuple(Layer), may_differ=("flashinfer/data/**",))
    assert spec.system == System(
        commands=(
            Command(name="gcc", specifier=SpecifierSet()),
            Command(name="nvcc", specifier=SpecifierSet(">=13.0")),
            Command(name="ninja", specifier=SpecifierSet()),
        ),
        libraries=("libnuma.so.1",),
    )
    assert spec.checks.allow == (
        Waiver(
            rule="K31",
            object="sgl_kernel/flash_ops.abi3.so",
            reason="FA3 unused",
            until=dt.date(2027, 1, 31),
        ),
    )
    assert spec.checks.facts_max_age == dt.timedelta(days=14)
    assert spec.models == (Model(path=PurePosixPath("/root/models/Qwen3.6-27B")),)
    assert example.specs["ct129"].capture == Capture(
        venv=PurePosixPath("/root/ml-env"),
        sources=(
            Source(dist="sglang", git=PurePosixPath("/root/sglang"), base="v0.5.15.post1", strip="python/"),  # type: ignore[arg-type]  # canonical already
        ),
        ignore=("**/*.log",),
    )


def test_a_service_keeps_its_placeholders_until_it_is_filled(example: Fleet) -> None:
    service = example.specs["ct200"].service
    assert service is not None
    assert (service.unit, service.port) == ("sglang-dflash.service", 30001)
    assert service.args[-1] == "{port}"
    assert service.env_file == PurePosixPath("/etc/hostenv/secrets.env")
    filled = service.filled(
        build=PurePosixPath("/root/hostenv/builds/b1"), root=PurePosixPath("/root/hostenv"), build_id="b1"
    )
    assert filled.args[-1] == "30001"
    assert dict(filled.env) == {
        "CUDA_HOME": "/usr/local/cuda-13.0",
        "PATH": "/root/hostenv/builds/b1/bin:/usr/local/cuda-13.0/bin:/usr/bin:/bin",
        "TRITON_CACHE_DIR": "/root/hostenv/jit/b1/triton",
    }


def test_a_host_needs_to_say_little() -> None:
    spec = spec_of('[host]\nroot = "/r"')
    assert spec.host.address == "a"
    assert (spec.host.transport, spec.host.mode, spec.host.connections) == (Transport.SSH, Mode.MANAGE, 1)
    assert (spec.identity, spec.reference, spec.service) == (None, None, None)
    assert (spec.build.activate, spec.build.keep, spec.build.link_mode) == (Activate.AUTO, 3, LinkMode.AUTO)
    assert spec.lock_name(python="3.13", arch="aarch64") == "a.cp313-aarch64.txt"


def test_a_waiver_holds_through_its_last_day(example: Fleet) -> None:
    [waiver] = example.specs["ct200"].checks.allow
    assert not waiver.expired(dt.date(2027, 1, 31))
    assert waiver.expired(dt.date(2027, 2, 1))


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ("[biuld]", 'biuld: unknown key, did you mean "build"?'),
        ('[env]\nrequire = ["a"]', 'env.require: unknown key, did you mean "requires"?'),
        ('[env]\nrequires = ["a", "b", "c=1"]', 'env.requires[2]: bad requirement "c=1": '),
        ('[env]\nrequires = "a"', "env.requires: must be an array, is a string"),
        ("[env]\nexcludes = [1]", "env.excludes[0]: must be a string, is an integer"),
        ('[env]\nrequires = ["Torch"]\nexcludes = ["torch"]', 'env.requires[0]: "Torch" is also in excludes'),
        (
            '[env]\nprereleases = "alow"',
            'env.prereleases: must be one of "disallow", "allow", "if-necessary", ',
        ),
        ("[env]\nexclude-newer = 2026-11-30", "env.exclude-newer: must be a date and time like "),
        ('[env]\ntorch-backend = "auto"', 'env.torch-backend: must not be "auto": it judges the machine'),
        ('[env]\nindexes = ["https://x.example/simple"]', "env.indexes[0]: must be a name of letters"),
        (
            '[env]\nrequires = ["sglang==2"]\npatches = ["sglang-1"]',
            'env.patches[0]: is for 1, but "sglang==2" is asked for',
        ),
        ('[env]\npatches = ["a-1", "A-2"]', 'env.patches[1]: a second series for "a"'),
        ('[platform]\narch = "amd64"', 'platform.arch: must be one of "x86_64", "aarch64", is "amd64"'),
        ("[platform]\npython = 3.12", "platform.python: must be a string, is a number"),
        ('[platform]\ndriver-min = "new"', 'platform.driver-min: bad version "new": '),
        ('[host]\naddress = "b"', "host.root: missing"),
        (
            '[host]\nroot = "/r"\ntransport = "shh"',
            'host.transport: must be one of "ssh", "local", is "shh", did',
        ),
        ('[host]\nroot = "/r"\nmode = "read"', 'host.mode: must be one of "observe", "manage", is "read"'),
        ('[host]\nroot = "/r/../x"', 'host.root: must not contain "..", is "/r/../x"'),
        ('[host]\nroot = "/r"\nconnections = 0', "host.connections: must be from 1 to 16, is 0"),
        (
            '[host]\nroot = "/r/x"\nlink = "/r"',
            'host.link: must not be the root ("/r/x") or a folder above it',
        ),
        (
            '[host]\nroot = "/r"\nlink = "/r/builds/x"',
            "host.link: must not lie in what hostenv keeps under its",
        ),
        (
            '[host]\nroot = "/r"\ntransport = "local"\nuser = "x"',
            'host.user: has no meaning with transport = "local"',
        ),
        (
            '[host]\nroot = "/r"\ncontainer.kind = "lxd"',
            'host.container.kind: must be one of "lxc", "docker"',
        ),
        (
            '[host]\nroot = "/r"\naddress = "b"\ncontainer = { kind = "lxc", id = 1, parent = "b" }',
            'host.container: its parent "b" is its own address',
        ),
        ('[identity]\nmachine-id = "x"', "identity.machine-id: must be the 32 hexadecimal digits of"),
        (
            f'[identity]\nmachine-id = "{"0" * 32}"',
            "identity: needs host-key beside machine-id: probe prints both",
        ),
        (
            '[gpus]\ncompute-capability = "sm_86"',
            'gpus.compute-capability: must be a compute capability like "12.0"',
        ),
        ('[gpus]\nreserved = [{ why = "x" }]', "gpus.reserved[0]: needs exactly one of uuid and index"),
        (
            '[gpus]\ncount = 2\nreserved = [{ index = 2, why = "x" }]',
            "gpus.reserved[0]: index 2, but there are 2",
        ),
        (
            "[build]\nkeep = 1",
            "build.keep: must be at least 2 (the current build and the one to go back to), is 1",
        ),
        (
            '[build]\nmin-free = "30 Gb"',
            'build.min-free: must be a size like "30GiB", is "30 Gb", did you mean "GB"?',
        ),
        (
            '[supply]\nwheelhouse = "wheels"',
            "supply.wheelhouse: must be an absolute path, or one that starts",
        ),
        ('[supply]\nfetch = "laptop"', 'supply.fetch: must be one of "auto", "host", "controller"'),
        (
            '[supply]\noffline = true\nfetch = "host"',
            'supply.fetch: cannot be "host" where offline or via says',
        ),
        ('[supply.python]\nfile = "a.zip"', 'supply.python.file: must be a .tar.gz or .tar.zst, is "a.zip"'),
        ('[[overlays]]\nname = "a"\n[[overlays]]\nname = "a"', 'overlays[1]: "a" is named twice'),
        ('[reference]\nhost = "a"', "reference: a host cannot be its own reference"),
        (
            '[reference]\nhost = "b"\nequal = ["locks"]',
            'reference.equal[0]: must be one of "lock", "patches", ',
        ),
        ('[checks]\nallow = [{ rule = "K1", object = "x", reason = "y" }]', "checks.allow[0].until: missing"),
        (
            f"[checks]\nallow = [{WAIVER}, {WAIVER}]",
            "checks.allow[1]: waives the same as allow[0]",
        ),
        ("[service]\nport = 70000", "service.port: must be a port from 1 to 65535, is 70000"),
        ('[service]\nargs = ["{port}"]', 'service.args[0]: unknown placeholder "{port}" (known: '),
        (
            '[service.env]\nHF_TOKEN = "x"',
            'service.env: "HF_TOKEN" looks like a secret: it belongs in the env-file',
        ),
        ('[service.env]\n"A B" = "x"', 'service.env: "A B" is not the name of an environment variable'),
    ],
)
def test_a_mistake_is_named_at_its_place(toml: str, problem: str) -> None:
    found = problems_of(toml)
    assert any(line.startswith(f"a.toml: {problem}") for line in found), found


def test_all_mistakes_of_a_file_are_named_at_once() -> None:
    found = problems_of('tag = ["x"]\n[host]\nmode = 1\n[env]\nrequires = ["a=1", 2]\n[build]\nkeep = "3"')
    assert [line.split(": ")[1] for line in found] == [
        "host.root",
        "host.mode",
        "build.keep",
        "env.requires[0]",
        "env.requires[1]",
        "tag",
    ]
