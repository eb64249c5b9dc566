"""Finding files by hash on a host, in the root's wheelhouse and in one that is only read."""

from __future__ import annotations

import hashlib
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from hostenv.agent import hashing
from hostenv.agent.stored import adopt, digest, find
from hostenv.agent.wire import AgentError
from hostenv.agent.writer import take
from kit.environment import SilentWire, put

if TYPE_CHECKING:
    import pathlib

CONTENT = b"the bytes of a wheel"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
NAME = "demo-1.0-py3-none-any.whl"
WHEEL = (SHA256, NAME, len(CONTENT))


def asked(tmp_path: pathlib.Path, **more: Any) -> dict[str, str | None]:
    given = {"given": str(tmp_path / "srv"), **more}
    (answer,) = find(SilentWire(), root=str(tmp_path / "root"), wheels=[WHEEL], **given)
    return answer


@pytest.mark.parametrize("place", [NAME, f"{SHA256}/{NAME}"])
def test_both_layouts_of_a_filled_folder_are_known(tmp_path: pathlib.Path, place: str) -> None:
    path = put(tmp_path / "srv" / place, CONTENT)
    assert asked(tmp_path) == {"state": "present", "path": str(path)}


def test_a_link_is_followed_unless_the_name_would_change(tmp_path: pathlib.Path) -> None:
    (tmp_path / "srv").mkdir()
    link = tmp_path / "srv" / NAME
    real = put(tmp_path / "store" / NAME, CONTENT)
    link.symlink_to(real)
    assert asked(tmp_path)["path"] == str(real)
    link.unlink()
    link.symlink_to(real.rename(tmp_path / "store/content"))
    assert asked(tmp_path)["path"] == str(link)


def test_the_hashed_place_serves_where_the_flat_one_has_other_bytes(tmp_path: pathlib.Path) -> None:
    put(tmp_path / "srv" / NAME, CONTENT[::-1])
    path = put(tmp_path / "srv" / SHA256 / NAME, CONTENT)
    assert asked(tmp_path)["path"] == str(path)


@pytest.mark.parametrize("content", [CONTENT[::-1], CONTENT + b"-", b""])
def test_other_bytes_in_a_filled_folder_count_as_absent(tmp_path: pathlib.Path, content: bytes) -> None:
    put(tmp_path / "srv" / NAME, content)
    assert asked(tmp_path) == {"state": "absent", "path": None}


def test_other_bytes_in_the_own_wheelhouse_are_told(tmp_path: pathlib.Path) -> None:
    put(tmp_path / "root/wheelhouse" / SHA256 / NAME, CONTENT[::-1])
    assert asked(tmp_path, given=None) == {"state": "wrong", "path": None}
    path = put(tmp_path / "srv" / NAME, CONTENT)
    assert asked(tmp_path) == {"state": "present", "path": str(path)}


def test_a_folder_that_is_not_there_is_an_error_only_where_it_is_needed(tmp_path: pathlib.Path) -> None:
    with pytest.raises(AgentError, match="is no folder on this host"):
        asked(tmp_path)
    put(tmp_path / "root/wheelhouse" / SHA256 / NAME, CONTENT)
    assert asked(tmp_path)["state"] == "present"


def test_a_second_look_reads_nothing_and_a_change_is_seen(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path / "srv" / NAME, CONTENT)
    time.sleep(0.05)  # until the file's clock has ticked: a younger file is not remembered
    assert asked(tmp_path)["state"] == "present"
    read: list[str] = []
    real = hashing.examine

    def examine(jobs: Any, **more: Any) -> Any:
        read.extend(job.path for job in jobs)
        return real(jobs, **more)

    monkeypatch.setattr(hashing, "examine", examine)
    assert asked(tmp_path)["state"] == "present"
    assert read == []
    path.write_bytes(CONTENT[::-1])
    assert asked(tmp_path)["state"] == "absent"
    assert read == [str(path)]


def test_looking_without_remembering_writes_nothing(tmp_path: pathlib.Path) -> None:
    put(tmp_path / "srv" / NAME, CONTENT)
    assert asked(tmp_path, remember=False)["state"] == "present"
    assert [path.name for path in tmp_path.iterdir()] == ["srv"]


def test_a_name_with_a_folder_in_it_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(AgentError, match="not the name and hash"):
        find(SilentWire(), root=str(tmp_path / "root"), wheels=[(SHA256, "../x.whl", 1)])


def test_what_was_adopted_is_not_read_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "root/wheelhouse" / SHA256 / NAME, CONTENT)
    past = time.time() - 60
    os.utime(path, (past, past))
    adopt(SilentWire(), root=str(tmp_path / "root"), wheels=[WHEEL])
    monkeypatch.setattr(hashing, "digest_of", None)
    assert asked(tmp_path, given=None)["state"] == "present"


def test_the_digest_of_a_file_is_that_of_sha256sum(tmp_path: pathlib.Path) -> None:
    assert digest(SilentWire(), path=str(put(tmp_path / "file", CONTENT))) == SHA256
    assert digest(SilentWire(), path=str(tmp_path / "none")) is None
    assert digest(SilentWire(), path=str(tmp_path / "file/below")) is None


def test_a_lock_that_is_taken_twice_by_one_agent_is_held_once(tmp_path: pathlib.Path) -> None:
    for _ in range(2):
        take(SilentWire(), root=str(tmp_path / "root"), who={"by": "a test", "session": "tests"})
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["lock"]
