"""The wheelhouse: a folder of wheels by hash, and which of them are known to be what their name says.

::

    WHEELHOUSE/SHA256/NAME.whl    a wheel whose bytes were seen to have that hash
    WHEELHOUSE/.partial/SHA256    what has arrived of one
    WHEELHOUSE/.verified          stat key → sha256, so that a second look reads no wheel

Two wheels of one name and different bytes lie side by side, and no path can lead out of the folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Dict, List, NamedTuple, Sequence

from hostenv.agent import hashing, statcache
from hostenv.agent.wire import AgentError

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.(whl|tar\.gz|tar\.zst)\Z")

PRESENT, ABSENT, WRONG = "present", "absent", "wrong"


class Wheel(NamedTuple):
    """A wheel that is wanted: its sha256 in hex, its file name, and its size in bytes (0: not known)."""

    sha256: str
    filename: str
    size: int


class Wheelhouse:
    """The wheels under one folder. Nothing is written before :meth:`prepare`."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._verified = os.path.join(folder, ".verified")

    def path(self, wheel: Wheel) -> str:
        """Return where a wheel, or an interpreter's archive, lies or will lie.

        A name with a folder in it is refused.
        """
        if not _SHA256.match(wheel.sha256) or not _FILENAME.match(wheel.filename):
            message = (
                f"{wheel.filename!r}, sha256 {wheel.sha256!r}: not the name and hash of a wheel or archive"
            )
            raise AgentError(message, outcome="input")
        return os.path.join(self.folder, wheel.sha256, wheel.filename)

    def partial(self, wheel: Wheel) -> str:
        """Return where the bytes of a wheel are gathered that has not arrived whole."""
        self.path(wheel)
        return os.path.join(self.folder, ".partial", wheel.sha256)

    def prepare(self) -> None:
        """Make the folder."""
        os.makedirs(os.path.join(self.folder, ".partial"), exist_ok=True)

    def survey(self, wheels: Sequence[Wheel], *, remember: bool = True) -> List[str]:
        """Say of each wheel whether it is ``present``, ``absent``, or there with ``wrong`` bytes.

        A wheel that was verified and whose inode did not change since is not read again; others are
        hashed, and remembered if that is wanted and the folder can be written to.
        """
        moment = time.time_ns()
        cache = statcache.StatCache.load(self._verified)
        keys = [_key(self.path(wheel)) for wheel in wheels]
        unknown = [n for n, key in enumerate(keys) if key and key not in cache.digests]
        jobs = [hashing.Job(self.path(wheels[n]), statcache.size_of(keys[n]), keys[n]) for n in unknown]
        fresh = {}
        for job, result in zip(jobs, hashing.examine(jobs)):
            if result.state == hashing.HASHED:
                fresh[job.key] = result.digest
        known = {**cache.digests, **fresh}
        if remember:
            self._save({key: digest for key, digest in fresh.items() if statcache.settled(key, moment)})
        return [_verdict(wheel, key, known) for wheel, key in zip(wheels, keys)]

    def remember(self, wheels: Sequence[Wheel]) -> None:
        """Note wheels whose bytes were hashed as they were written, by whoever calls.

        Their mtime must lie in the past (:meth:`settle`): a write in the same tick of the clock would then
        change it, and with it the key.
        """
        keys = {_key(self.path(wheel)): bytes.fromhex(wheel.sha256) for wheel in wheels}
        self._save({key: digest for key, digest in keys.items() if key})

    def discard(self, wheel: Wheel) -> None:
        """Remove a wheel that is not what its name says."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(wheel))

    def settle(self, wheel: Wheel) -> None:
        """Move a partial file whose hash was seen to be right to its place."""
        partial, place = self.partial(wheel), self.path(wheel)
        past = time.time_ns() - 3_000_000_000
        os.utime(partial, ns=(past, past))
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.replace(partial, place)

    def _save(self, fresh: Dict[bytes, bytes]) -> None:
        if not fresh:
            return
        cache = statcache.StatCache.load(self._verified)
        cache.digests.update(fresh)
        with contextlib.suppress(OSError):  # a read-only wheelhouse is hashed each time
            cache.save(self._verified)


def _key(path: str) -> bytes:
    """Return the stat key of a file, ``b""`` where there is none."""
    try:
        return statcache.key(os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return b""


def _verdict(wheel: Wheel, key: bytes, known: Dict[bytes, bytes]) -> str:
    if not key:
        return ABSENT
    right_size = wheel.size in (0, statcache.size_of(key))
    return PRESENT if right_size and known.get(key) == bytes.fromhex(wheel.sha256) else WRONG
