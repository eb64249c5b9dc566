"""Libraries that an overlay's objects need: found among wheels, overlays and the host, or refused by name."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from hostenv.checks.overlay_closure import Closure, Provided, closure, wanted
from hostenv.facts.fact import Fact
from hostenv.facts.host_libraries import HostLibraries, HostLibrary
from hostenv.spec.overlay import Binary, Origin, OverlaidDistribution, Overlay
from hostenv.spec.overlaylist import OverlayFile
from hostenv.spec.rules import Waiver

TODAY = dt.date(2026, 12, 1)
ABSENT = HostLibrary(
    name="libabsent.so.7",
    path=None,
    real=None,
    soname=None,
    size=None,
    driver_version=None,
    versions=(),
    exports=None,
)
CXX = replace(
    ABSENT,
    name="libstdc++.so.6",
    path="/usr/lib/libstdc++.so.6",
    versions=("CXXABI_1.3.13", "GLIBCXX_3.4.29", "GLIBCXX_3.4.30"),
)
OPS = Binary(
    path="kernel/ops.so",
    machine="x86_64",
    glibc="2.34",
    needed=("libstdc++.so.6", "libabsent.so.7"),
    gpu=(),
    problem=None,
    versions=("libstdc++.so.6 GLIBCXX_3.4.30",),
)


def overlay(*binaries: Binary, files: tuple[str, ...] = ("kernel/ops.so",)) -> Overlay:
    return Overlay(
        name="ours",
        why="w",
        origin=Origin(host="ref", venv="/opt/venv", taken=TODAY, python="3.12", arch="x86_64"),
        distributions=(OverlaidDistribution(name="kernel", version="1.0"),),
        binaries=binaries or (OPS,),
        files=tuple(
            OverlayFile(path=path, dist="kernel", mode=0o755, size=1, sha256="0" * 64) for path in files
        ),
    )


def host(*libraries: HostLibrary, unknown: str | None = None) -> HostLibraries:
    facts = [Fact(how="read", known_value=each) for each in libraries]
    facts += [Fact(how="/etc/ld.so.cache", unknown=unknown)] if unknown else []
    return HostLibraries(read=tuple(facts), present=None)


def judged(*overlays: Overlay, waivers: tuple[Waiver, ...] = (), found: Provided | None = None) -> Closure:
    return closure(overlays or (overlay(),), found or provided(), waivers, today=TODAY)


def provided(*names: str, unread: tuple[str, ...] = (), known: HostLibraries | None = None) -> Provided:
    return Provided(laid=frozenset(names), unread=unread, host=known or host(ABSENT, CXX))


def test_a_library_that_nobody_has_is_named_with_its_object_and_once() -> None:
    assert wanted((overlay(),)) == ("libabsent.so.7", "libstdc++.so.6")
    found = judged()
    (line,) = found.missing
    assert line.startswith("overlays/ours: kernel/ops.so needs libabsent.so.7, which no wheel or overlay")
    assert line.endswith("(K18)")
    assert found.unknown == ()


@pytest.mark.parametrize(
    "found",
    [
        provided("libabsent.so.7"),
        provided(known=host(replace(ABSENT, path="/usr/lib/libabsent.so.7"), CXX)),
    ],
)
def test_a_wheel_or_the_host_may_bring_it(found: Provided) -> None:
    assert judged(found=found) == Closure(missing=(), unknown=())


def test_the_overlay_itself_or_another_may_bring_it_by_file_or_by_soname() -> None:
    own = overlay(files=("kernel/ops.so", "kernel.libs/libabsent.so.7"))
    assert judged(own).missing == ()
    by_soname = overlay(
        replace(OPS, path="kernel/libown.so", soname="libabsent.so.7", needed=(), versions=())
    )
    assert judged(overlay(), by_soname).missing == ()
    assert wanted((overlay(), by_soname)) == ("libstdc++.so.6",)


def test_a_folder_that_an_object_leads_to_may_have_it() -> None:
    leading = overlay(replace(OPS, search=("/opt/lib",)))
    there = replace(provided(), folders={"/opt/lib": frozenset({"libabsent.so.7"})})
    assert judged(leading, found=there).missing == ()
    assert len(judged(leading, found=replace(provided(), folders={"/opt/lib": frozenset()})).missing) == 1
    (line,) = judged(leading).unknown
    assert "/opt/lib, which was not looked into" in line


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (provided(unread=("torch-1-py3-none-any.whl",)), "torch-1-py3-none-any.whl could not be looked into"),
        (provided(known=host(CXX)), "the host was not asked for it"),
        (provided(known=host(CXX, unknown="permission denied")), "permission denied"),
        (
            provided(known=replace(host(CXX), present=(("libabsent.so.7", "/usr/lib/libabsent.so.7"),))),
            "the loader's cache names it",
        ),
    ],
)
def test_what_is_not_known_is_said_and_is_neither_right_nor_wrong(found: Provided, said: str) -> None:
    result = judged(found=found)
    assert result.missing == ()
    (line,) = result.unknown
    assert "it is not known whether it is there" in line
    assert said in line


def test_a_host_whose_copy_is_too_old_is_refused_with_the_version() -> None:
    newer = overlay(replace(OPS, needed=("libstdc++.so.6",), versions=("libstdc++.so.6 GLIBCXX_3.4.32",)))
    (line,) = judged(newer).missing
    assert "needs GLIBCXX_3.4.32, which /usr/lib/libstdc++.so.6 on the host has not (K15)" in line
    assert judged(newer, found=provided("libstdc++.so.6")).missing == (), "the build has its own"


def test_a_library_of_the_interpreter_is_its_own_to_bring() -> None:
    embedding = overlay(replace(OPS, needed=("libpython3.12.so.1.0",), versions=()))
    assert judged(embedding).missing == ()
    assert "an interpreter may bring it" in judged(embedding).unknown[0]


@pytest.mark.parametrize(("days", "missing"), [(1, 0), (-1, 1)])
def test_a_waiver_counts_until_its_day(days: int, missing: int) -> None:
    waiver = Waiver(rule="K18", object="kernel/ops.so", reason="r", until=TODAY + dt.timedelta(days=days))
    assert len(judged(waivers=(waiver,)).missing) == missing
