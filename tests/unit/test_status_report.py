"""The page of a host's status, and its JSON."""

from __future__ import annotations

import datetime as dt
import io
import json
import pathlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from hostenv.errors import RefusedError, UnreachableError
from hostenv.facts.fact import Fact
from hostenv.facts.host_status import HostStatus
from hostenv.machine.hostkeys import HostKey, Trust, read_known_hosts, require_trusted
from hostenv.report.status import print_status, status_document
from hostenv.spec.fleet import load_fleet
from hostenv.spec.host import Mode
from hostenv.spec.rules import Waiver
from hostenv.workflows.status import HostLine
from kit.hostfacts import recorded
from kit.schema import violations

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = pathlib.Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "schema" / "status.schema.json").read_text(encoding="utf-8"))
OLD, NEW = "a" * 16, "b" * 16


STATE: dict[str, Any] = {
    "root": "/root/hostenv",
    "machine": {"arch": "x86_64", "glibc": "2.39", "machine_id": None},
    "free": 100 << 30,
    "noexec": False,
    "unwritable": None,
    "builds": [OLD, NEW],
    "unsound": [],
    "astray": None,
    "generation": 7,
    "receipt": {"build": NEW},
    "generations": [6, 7],
    "staged": None,
    "hold": {"by": "ops@bastion", "why": "a bad\x1b[2J night", "since": 1796139196.0},
    "link": None,
    "link_state": None,
}


def line(state: Mapping[str, Any] | None = None, **changes: Any) -> HostLine:
    spec = load_fleet(ROOT / "envspecs").specs["ct200"]
    answer = recorded("probe-held")
    told = {
        "version": 1,
        "read_at": answer["read_at"],
        "seconds": 0.1,
        "users": {OLD: [{"pid": 4711, "name": "sglang::scheduler", "how": "maps /x"}]},
        "through_link": [],
        "state": {**STATE, **(state or {})},
        **{name: answer[name] for name in ("identity", "driver", "gpus", "processes")},
    }
    made = HostLine(
        name="ct200",
        spec=spec,
        seconds=0.3,
        facts_age=Fact(how="file", known_value=dt.timedelta(days=40)),
        expiring=(),
        status=HostStatus.from_answer(told, "ct200"),
    )
    return replace(made, **changes)


def page(*lines: HostLine) -> str:
    out = io.StringIO()
    print_status(lines, Console(file=out, width=140, no_color=True))
    return out.getvalue()


def test_one_line_a_host_and_what_needs_somebody() -> None:
    text = page(line())
    row = text.splitlines()[1].split("  ")
    assert [cell.strip() for cell in row if cell.strip()] == [
        "ct200",
        "bbbbbbbb g7 held",
        "aaaaaaaa x1",
        "1 held",
        "107.37 GB",
        "40 d",
    ]
    assert "ct200: held by ops@bastion since 2026-12-01" in text
    assert "\x1b" not in text
    assert "build aaaaaaaa is not current, and sglang::scheduler (pid 4711) runs from it" in text
    assert "GPU 0 held by python3 (pid 431) since 2026-12-01 15:33 UTC" in text


def test_a_host_that_cannot_be_reached() -> None:
    error = UnreachableError("ct200: no route", hint="look at the cable")
    text = page(line(status=None, error=error, facts_age=Fact(how="file", unknown="never saved")))
    assert "unreachable" in text
    assert "ct200: no route\nct200: → look at the cable\n" in text


def test_a_changed_host_key_is_told_in_two_short_lines(tmp_path: pathlib.Path) -> None:
    """As the operator's machine tells it: every known key, and commands of several hundred letters."""
    listed, file = HostKey(type="ssh-rsa", blob=bytes(range(200))), tmp_path / "known_hosts"
    file.write_text(f"{listed.line('ct200.example')}\n" * 3)
    trust = Trust(name="ct200.example", known=read_known_hosts([file]), file=file)
    with pytest.raises(RefusedError) as caught:
        require_trusted("ct200", HostKey(type="ssh-rsa", blob=bytes(400)), trust)
    error = caught.value
    assert len(str(error)) > 600
    told = [each for each in page(line(status=None, error=error)).splitlines() if each.startswith("ct200: ")]
    assert told[0].startswith("ct200: CHANGED host key: known is ssh-rsa SHA256:")
    assert told[1] == "ct200: → nox -s probe -- ct200 says all of it, and what to do"
    assert max(map(len, told)) <= 130


def test_waivers_that_end_soon() -> None:
    waiver = Waiver(rule="K31", object="x.so", reason="unused", until=dt.date(2026, 12, 3))
    assert "waiver of K31 for x.so ends 2026-12-03: unused" in page(line(expiring=(waiver,)))


@pytest.mark.parametrize("changes", [{}, {"status": None, "error": UnreachableError("ct200: no route")}])
def test_the_document_fits_its_schema(changes: dict[str, Any]) -> None:
    waiver = Waiver(rule="K31", object="x.so", reason="unused", until=dt.date(2026, 12, 3))
    document = json.loads(json.dumps(status_document([line(**changes, expiring=(waiver,))])))
    assert violations(document, SCHEMA) == []


def staged(build: str) -> dict[str, Any]:
    return {
        "build": build,
        "receipt": {},
        "by": "ops@bastion",
        "session": "build_env",
        "staged": 1796139196.0,
    }


@pytest.mark.parametrize(("build", "waits"), [(OLD, True), (NEW, False), ("c" * 16, False)])
def test_staged_is_only_what_is_there_and_not_current_already(build: str, *, waits: bool) -> None:
    """A switch that was killed leaves its mark, and a build may be removed by hand."""
    shown = line({"staged": staged(build)})
    assert (f"staged {build[:8]}" in page(shown)) == waits
    (host,) = json.loads(json.dumps(status_document([shown])))["hosts"]
    assert host["staged"] == (build if waits else None)


def test_a_root_that_cannot_be_written_is_told_with_the_reason_and_not_as_a_full_disk() -> None:
    managed = line({"unwritable": "/proc lies on a filesystem that keeps no files", "free": 0})
    text = page(
        replace(managed, spec=replace(managed.spec, host=replace(managed.spec.host, mode=Mode.MANAGE)))
    )
    assert "/root/hostenv cannot be written: /proc lies on a filesystem that keeps no files" in text
    assert "0 bytes" not in text


def test_an_unknown_age_of_facts_is_told_with_the_reason() -> None:
    future: Fact[dt.timedelta] = Fact(
        how="facts/ct200.json", unknown="dated 2031-01-01, which is still to come"
    )
    text = page(line(facts_age=future))
    assert "unknown" in text.splitlines()[1]
    assert "facts/ct200.json: dated 2031-01-01, which is still to come" in text


def test_a_narrow_terminal_cuts_nothing() -> None:
    out = io.StringIO()
    print_status([line()], Console(file=out, width=40, no_color=True))
    text = out.getvalue()
    assert all(cell in text for cell in ("bbbbbbbb g7 held", "aaaaaaaa x1", "1 held", "107.37 GB", "40 d"))
