"""The fleet: classes, names, identities, and hosts chosen by words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostenv.document import DocumentError, Source
from hostenv.errors import InputError
from hostenv.spec.extends import overlaid
from hostenv.spec.fleet import load_fleet
from hostenv.spec.host import Mode, Transport

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
HOST = '[host]\nroot = "/r"\nmode = "observe"\n'


@pytest.fixture
def write(tmp_path: Path) -> Callable[[dict[str, str]], Path]:
    """Return a function that writes files into an envspecs folder and returns the folder."""

    def write_files(files: dict[str, str]) -> Path:
        folder = tmp_path / "envspecs"
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        return folder

    return write_files


def problems_of(folder: Path) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        load_fleet(folder)
    return caught.value.message.splitlines()


def test_what_a_list_leaves_out_of_its_class_is_known(write: Callable[[dict[str, str]], Path]) -> None:
    def listed(*names: str) -> str:
        return "".join(f'[[overlays]]\nname = "{name}"\n' for name in names)

    series = 'patches = ["demo-1.0"]\n'
    folder = write(
        {
            "classes/base.toml": f"[env]\n{series}{listed('a', 'b')}",
            "classes/more.toml": f'extends = "classes/base"\n{listed("b", "c")}',
            "takes.toml": f'extends = "classes/base"\n{HOST}',
            "replaces.toml": f'extends = "classes/base"\n{HOST}[env]\npatches = []\n{listed("b", "d")}',
            "further.toml": f'extends = "classes/more"\n{HOST}{listed("a", "b", "c")}',
            "behind.toml": f'extends = "classes/more"\n{HOST}',
            "alone.toml": f"{HOST}{listed('a')}",
        }
    )
    specs = load_fleet(folder).specs
    assert {name: dict(spec.left_out) for name, spec in specs.items()} == {
        "takes": {},
        "replaces": {"overlays": ("a",), "patches": ("demo-1.0",)},
        "further": {},
        "behind": {"overlays": ("a",)},
        "alone": {},
    }
    assert {name: spec.overlays_of for name, spec in specs.items()} == {
        "takes": "envspecs/classes/base.toml",
        "replaces": "envspecs/replaces.toml",
        "further": "envspecs/further.toml",
        "behind": "envspecs/classes/more.toml",
        "alone": "envspecs/alone.toml",
    }


def test_the_shipped_fleet_is_valid_and_says_what_the_issue_asks() -> None:
    fleet = load_fleet(ROOT / "envspecs")
    assert fleet.default_hosts == ("local",)
    local, reference, target = (fleet.specs[name] for name in ("local", "ct129", "ct200"))
    assert local.host.transport is Transport.LOCAL
    assert reference.host.mode is Mode.OBSERVE
    assert target.supply.offline
    assert target.gpus is not None
    assert [gpu.index for gpu in target.gpus.reserved] == [0]
    assert {str(spec.env.requires[0]) for spec in fleet.specs.values()} == {"sglang==0.5.15.post1"}
    assert target.lock_name(python="3.12", arch="x86_64") == "sglang-0515-cu130.cp312-x86_64.txt"
    assert local.lock_name(python="3.11", arch="x86_64") == "local.cp311-x86_64.txt"
    assert fleet.lock_path(local, python="3.11", arch="x86_64").parent == ROOT / "envspecs" / "locks"
    assert fleet.facts_path(target) == ROOT / "envspecs" / "facts" / "ct200.json"


def test_a_table_merges_and_a_list_replaces(write: Callable[..., Path]) -> None:
    folder = write(
        {
            "classes/base.toml": 'tags = ["x"]\n[env]\nrequires = ["a", "b"]\n[build]\nkeep = 5\nio = "idle"',
            "classes/mid.toml": 'extends = "classes/base"\n[build]\nkeep = 6',
            "h.toml": 'extends = "classes/mid"\ntags = ["y"]\n[env]\nrequires = ["c"]\n' + HOST,
        }
    )
    spec = load_fleet(folder).specs["h"]
    assert spec.classes == ("mid", "base")
    assert spec.tags == ("y",)
    assert list(map(str, spec.env.requires)) == ["c"]
    assert (spec.build.keep, spec.build.io) == (6, "idle")


@pytest.mark.parametrize(
    ("own", "owner"),
    [
        ("", "base"),
        ('[env]\npatches = ["a-1"]\n', "base"),
        ('[platform]\ndriver-min = "600"\n', "base"),
        ("[build]\nkeep = 9\n", "base"),
        ('[env]\nconstraints = ["a<2"]\n', "h"),
        ('[platform]\nglibc = "2.39"\n', "h"),
    ],
)
def test_a_lock_belongs_to_the_class_unless_the_host_speaks_to_the_resolver(
    write: Callable[..., Path], own: str, owner: str
) -> None:
    base = '[env]\nrequires = ["a==1"]\n[platform]\nglibc = "2.34"'
    mid = 'extends = "classes/base"\n[build]\nkeep = 4'
    host = f'extends = "classes/mid"\n{HOST}{own}'
    folder = write({"classes/base.toml": base, "classes/mid.toml": mid, "h.toml": host})
    assert load_fleet(folder).specs["h"].lock_owner == owner


def test_every_problem_of_every_file_is_named_in_the_file_that_has_it(write: Callable[..., Path]) -> None:
    folder = write(
        {
            "fleet.toml": 'default-host = ["a"]',
            "classes/c.toml": '[env]\nrequires = []\nexcludes = [1]\n[capture]\nvenv = "/v"',
            "a.toml": 'extends = "classes/c"\n[env]\npatchs = []\n' + HOST,
            "b.toml": 'extends = "classes/c"\n' + HOST + "[gpus]\ncount = -1",
            "bad.toml": "[host\n",
        }
    )
    assert problems_of(folder) == [
        "envspecs/classes/c.toml: capture: belongs to one host, not to a class",
        "envspecs/classes/c.toml: env.excludes[0]: must be a string, is an integer",
        'envspecs/a.toml: env.patchs: unknown key, did you mean "patches"?',
        "envspecs/b.toml: gpus.count: must not be negative, is -1",
        "envspecs/bad.toml: not TOML: Expected ']' at the end of a table declaration (at line 1, column 6)",
        'envspecs/fleet.toml: default-host: unknown key, did you mean "default-hosts"?',
    ]


@pytest.mark.parametrize(
    ("extends", "problem"),
    [
        ('"classes/gpus"', 'there is no "classes/gpus.toml" beside it, did you mean "classes/gpu"?'),
        ('"gpu"', 'must name a class as "classes/NAME", is "gpu", did you mean "classes/gpu"?'),
        ('"../x"', 'must name a class as "classes/NAME", is "../x"'),
        ('"other"', 'must name a class as "classes/NAME", is "other"'),
        ("1", 'must be a string like "classes/a6000"'),
    ],
)
def test_a_class_that_cannot_be_extended(write: Callable[..., Path], extends: str, problem: str) -> None:
    folder = write({"classes/gpu.toml": "", "h.toml": f"extends = {extends}\n{HOST}", "other.toml": HOST})
    assert problems_of(folder) == [f"envspecs/h.toml: extends: {problem}"]


def test_classes_in_a_circle(write: Callable[..., Path]) -> None:
    folder = write(
        {"classes/a.toml": 'extends = "classes/b"', "classes/b.toml": 'extends = "classes/a"', "h.toml": HOST}
    )
    assert problems_of(folder) == [
        "envspecs/classes/b.toml: extends: a class cannot extend itself: classes/a → classes/b → classes/a",
        "envspecs/classes/a.toml: extends: a class cannot extend itself: classes/b → classes/a → classes/b",
    ]


def test_two_specs_are_never_one_machine(write: Callable[..., Path]) -> None:
    def host(machine: str, key: str) -> str:
        return f'{HOST}[identity]\nmachine-id = "{machine * 32}"\nhost-key = "SHA256:{key * 43}"\n'

    folder = write({"a.toml": host("0", "A"), "b.toml": host("0", "B"), "c.toml": host("1", "B")})
    first, second = problems_of(folder)
    assert first.startswith(
        "envspecs/b.toml: identity.machine-id: is also that of envspecs/a.toml: two specs are one machine; "
    )
    assert "systemd-machine-id-setup" in first
    assert second.startswith(
        "envspecs/c.toml: identity.host-key: is also that of envspecs/b.toml: two specs are one machine; "
    )
    assert "ssh-keygen -A" in second


def test_names_are_told_apart_and_plain(write: Callable[..., Path]) -> None:
    folder = write({"classes/Gpu.toml": "", "gpu.toml": HOST, "a b.toml": HOST})
    assert problems_of(folder) == [
        "envspecs/a b.toml: a file's name must be of letters, digits, dots, dashes, underscores",
        "envspecs/gpu.toml: has the same name as envspecs/classes/Gpu.toml",
    ]


def test_what_a_file_says_of_others_is_checked(write: Callable[..., Path]) -> None:
    folder = write(
        {
            "fleet.toml": 'default-hosts = ["ct1", "@nowhere"]',
            "ct129.toml": HOST,
            "h.toml": HOST.replace("observe", "manage") + '[reference]\nhost = "ct192"',
        }
    )
    assert problems_of(folder) == [
        'envspecs/h.toml: reference.host: there is no spec "ct192", did you mean "ct129"?',
        'envspecs/h.toml: env.requires: is empty: nothing to build (host.mode is "manage")',
        'envspecs/fleet.toml: default-hosts[0]: there is no host "ct1", did you mean "ct129"?',
        'envspecs/fleet.toml: default-hosts[1]: no host carries the tag "@nowhere"',
    ]


def test_no_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        load_fleet(tmp_path / "nowhere")


def test_words_choose_hosts_in_order_and_once(write: Callable[..., Path]) -> None:
    tagged = 'tags = ["gpu"]\n' + HOST
    fleet = load_fleet(write({"c.toml": tagged, "a.toml": tagged, "b.toml": HOST}))

    def names(*words: str) -> list[str]:
        return [spec.name for spec in fleet.select(words)]

    assert names("b", "a") == ["b", "a"]
    assert names("c", "@gpu", "c") == ["c", "a"]
    assert names("@all") == ["a", "b", "c"]
    assert names() == []
    assert fleet.default_hosts == ()


def test_every_unknown_word_is_named_with_what_is_near(write: Callable[..., Path]) -> None:
    fleet = load_fleet(write({"ct129.toml": 'tags = ["blackwell"]\n' + HOST, "local.toml": HOST}))
    with pytest.raises(InputError) as caught:
        fleet.select(["ct130", "local", "@blackwel", "zzz"])
    assert caught.value.message.splitlines() == [
        'there is no host "ct130", did you mean "ct129"?',
        'no host carries the tag "@blackwel", did you mean "@blackwell"?',
        'there is no host "zzz"',
    ]
    assert caught.value.hint == "known: ct129, local, @blackwell, @all"


TABLES = st.recursive(
    st.integers() | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=10,
).filter(lambda value: isinstance(value, dict))


def leaves(value: object, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], object]:
    if not isinstance(value, dict) or not value:
        return {path: value}
    return {place: leaf for key, item in value.items() for place, leaf in leaves(item, (*path, key)).items()}


@given(TABLES, TABLES)
def test_a_merged_value_is_one_of_the_two_and_its_source_says_which(base: object, over: object) -> None:
    assert isinstance(base, dict)
    assert isinstance(over, dict)
    merged, source = overlaid(base, Source("base"), over, Source("over"))
    found = leaves(merged)
    assert all(found[path] == leaf for path, leaf in leaves(over).items() if leaf != {})
    for path, leaf in found.items():
        where = source
        for key in path:
            where = where.child(key)
        if leaf != {}:
            assert leaves({"base": base, "over": over}[where.document])[path] == leaf


def test_a_class_that_is_no_toml_is_one_problem(write: Callable[..., Path]) -> None:
    folder = write({"classes/c.toml": "a = ", "a.toml": f'extends = "classes/c"\n{HOST}'})
    assert problems_of(folder) == ["envspecs/classes/c.toml: not TOML: Invalid value (at end of document)"]


def test_two_environments_of_this_machine_have_each_its_own_place(
    write: Callable[[dict[str, str]], Path],
) -> None:
    def spec(root: str, link: str, mode: str = "manage") -> str:
        host = f'[host]\ntransport = "local"\nroot = "{root}"\nlink = "{link}"\nmode = "{mode}"\n'
        return f'{host}[env]\nrequires = ["demo"]\n'

    folder = write(
        {
            "local.toml": spec("/r", "/l"),
            "b.toml": spec("/r", "/m"),
            "c.toml": spec("/s", "/l"),
            "d.toml": spec("/r", "/l", mode="observe"),
        }
    )
    assert problems_of(folder) == [
        "envspecs/local.toml: host.root: is also that of envspecs/b.toml: each environment needs its own",
        "envspecs/local.toml: host.link: is also that of envspecs/c.toml: each environment needs its own",
    ]
    load_fleet(write({"b.toml": spec("/t", "/m"), "c.toml": spec("/s", "/n")}))


def test_a_place_of_this_machine_is_one_place_however_it_is_spelled(
    write: Callable[[dict[str, str]], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spec(root: str) -> str:
        return f'[host]\ntransport = "local"\nroot = "{root}"\n[env]\nrequires = ["demo"]\n'

    monkeypatch.setenv("HOME", str(tmp_path))
    spelled = ("~/hostenv", f"{tmp_path}/hostenv", f"/{tmp_path}//hostenv/", f"{tmp_path}/./hostenv")
    folder = write({f"h{number}.toml": spec(root) for number, root in enumerate(spelled)})
    problem = "host.root: is also that of envspecs/h0.toml: each environment needs its own"
    assert problems_of(folder) == [f"envspecs/h{number}.toml: {problem}" for number in (1, 2, 3)]
