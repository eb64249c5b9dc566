"""What is moved is what was named: a reference with odd files, or with files that change under the reader."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from kit.changing import changing
from kit.repository import DEMO_PATCH, listing
from kit.trio import Trio, digests

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from kit.repository import Repository

OVERLAY = '[[overlays]]\nname = "ours"\n'
REFERENCE = '[reference]\nhost = "ref"\n'
ENV = 'patches = ["demo-1.0"]'
WANTED = ("demo==1.0", "kernel==1.0")


@pytest.fixture
def trio(repository: Repository) -> Trio:
    """A reference with a patched ``demo`` and an overlaid ``kernel``, and a target that has the same."""
    made = Trio(repository=repository)
    repository.wheel("kernel", "1.0", {"kernel/__init__.py": "WHOSE = 'index'\n"})
    made.spec("ref", *WANTED)
    made.done("build_env", "ref")
    (made.site("ref") / "kernel/__init__.py").write_text("WHOSE = 'ours'\n")
    (made.site("ref") / "kernel/ops.bin").write_bytes(os.urandom(70_000))
    made.done("overlay", "ref", "ours", "kernel")
    repository.series("demo-1.0", DEMO_PATCH)
    made.spec("ref", *WANTED, env=ENV, more=OVERLAY)
    made.done("build_env", "ref")
    made.spec("one", *WANTED, env=ENV, more=OVERLAY + REFERENCE)
    return made


def _listening(path: pathlib.Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def _null(path: pathlib.Path) -> None:
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))
    except PermissionError:
        os.mkfifo(path)


ODD: dict[str, Callable[[pathlib.Path], None]] = {
    "pipe": os.mkfifo,
    "listener": _listening,
    "device": _null,
    "way-out": lambda path: path.symlink_to("/etc/passwd"),
    "up-and-out": lambda path: path.symlink_to("../" * 30 + "etc/passwd"),
}


def test_what_no_build_can_hold_is_refused_by_its_path(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trio.site("ref") / "kernel"
    monkeypatch.chdir(folder)  # the path of a socket is short
    listed = trio.repository.path / "overlays/ours.files"
    before = listed.read_bytes()
    for name, make in ODD.items():
        make(folder / name if name != "listener" else folder.__class__(name))
        for words in (("overlay", "ref", "ours", "kernel"), ("sync_patches", "ref", "one")):
            said = trio.run(*words).message
            assert f"kernel/{name} " in said, (name, words, said)
        (folder / name).unlink()
    assert listed.read_bytes() == before
    assert not (trio.root("one") / "current").exists()
    trio.done("sync_patches", "ref", "one")
    assert digests(trio.site("one")) == digests(trio.site("ref"))


def _grow(path: pathlib.Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _shrink(path: pathlib.Path) -> None:
    size = path.stat().st_size
    os.truncate(path, size - 1 if size > 1 << 20 else 64 << 20)


def _touch(path: pathlib.Path) -> None:
    with path.open("r+b") as file:
        file.write(os.urandom(1))


def test_a_file_that_changes_while_it_is_taken_is_named_and_nothing_is_written(trio: Trio) -> None:
    """64 MB, hashed in far more time than two changes are apart."""
    path = trio.site("ref") / "kernel/ops.bin"
    os.truncate(path, 64 << 20)
    overlays = listing(trio.repository.path / "overlays")
    for change in (_grow, _shrink, _touch):
        with changing(path, change):
            taken = trio.run("overlay", "ref", "ours", "kernel").message
            synced = trio.run("sync_patches", "ref", "one").message
        assert "kernel/ops.bin changed while it was read" in taken, change
        assert "kernel/ops.bin" in synced, change
    assert listing(trio.repository.path / "overlays") == overlays
    assert not (trio.root("one") / "current").exists()


def test_an_edit_that_cannot_be_saved_is_not_discarded(trio: Trio) -> None:
    """A file that its editor still writes: what would be saved is half of it, or nothing."""
    trio.done("sync_patches", "ref", "one")
    path = trio.site("one") / "kernel/ops.bin"
    path.write_bytes(b"ours\n" * (8 << 20 >> 2))
    with changing(path, os.utime):
        ran = trio.run("sync_patches", "ref", "one", "--discard-edits")
    assert "nothing is discarded" in ran.message
    assert "kernel/ops.bin changed while it was read" in ran.message
    assert path.read_bytes().startswith(b"ours\n")
    trio.done("sync_patches", "ref", "one", "--discard-edits")
    assert digests(trio.site("one")) == digests(trio.site("ref"))
    saved = trio.repository.path.glob(".hostenv/discarded/*/files/lib/python3*/site-packages/kernel/ops.bin")
    assert [each.stat().st_size for each in saved] == [5 * (8 << 20 >> 2)]


def test_contents_that_are_not_what_they_were_named_by_are_refused_with_their_path(trio: Trio) -> None:
    """Once known, they come from the reference's store first: whatever lies there now."""
    (name,) = [path for path in (trio.root("ref") / "store").glob("*/*") if path.stat().st_size == 70_000]
    content = name.read_bytes()
    (trio.repository.folder / "home/.cache/hostenv/store" / name.parent.name / name.name).unlink()
    name.write_bytes(content[::-1])
    ran = trio.run("sync_patches", "ref", "one")
    assert f"{name}: landed with sha256" in ran.message
    assert f"expected {name.name}" in ran.message
    assert not (trio.root("one") / "current").exists()
    name.unlink()
    trio.done("sync_patches", "ref", "one")
    assert (trio.site("one") / "kernel/ops.bin").read_bytes() == content
