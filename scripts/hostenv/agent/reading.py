"""Reading the symbols of many objects with two processes.

A second process reads every other file. Names of references come here, are numbered together with this
side's, and go back; what comes then is which of them each file satisfies: the definitions, most of all
symbols, never cross. Where the second process fails, this one reads its files, too.
"""

from __future__ import annotations

import array
import contextlib
import os
import pickle  # between this process and its own child
from typing import TYPE_CHECKING, Any, BinaryIO, Dict, Iterator, List, Mapping, Optional, Tuple

from hostenv.agent import elfsymbols
from hostenv.agent.binding import Universe
from hostenv.agent.child import fork, orphaned
from hostenv.agent.elfsymbols import Asked, Group, Offer, Symbols
from hostenv.agent.loadermodel import File, Identity, System

if TYPE_CHECKING:
    from hostenv.agent.hostfiles import HostFiles
    from hostenv.agent.verdicts import Judge

FEW = 64
"""Files below which a second process is not worth its start."""


def read_all(  # noqa: PLR0913  files in, files out
    files: HostFiles, judge: Judge, system: System, paths: List[str], companions: List[str], *, helpers: bool
) -> None:
    """Read ``paths``, ``companions`` and all that they need of the system, and number the references."""
    helper = _started(files, paths[1::2]) if helpers and len(paths) >= FEW else None
    for path in [*companions, *(paths[::2] if helper else paths)]:
        files.open(path)
    if helper is not None and not helper.collect(files):
        helper = None
    for path in paths:
        files.open(path)
    read_system(files, system)
    for opened in list(files.files.values()):
        judge.add(opened)
    if helper is not None:
        judge.learn(helper.satisfied(judge.universe))


def read_system(files: HostFiles, system: System) -> None:
    """Read the libraries that the loader's cache has for names that the files read so far need."""
    asked: Dict[str, None] = {}
    before = -1
    while before != len(asked):
        before = len(asked)
        for opened in list(files.files.values()):
            if isinstance(opened, File):
                asked.update(dict.fromkeys(opened.elf.needed))
        for name in list(asked)[before:]:
            if name in system.cache:
                files.open(system.cache[name])


def _started(files: HostFiles, paths: List[str]) -> Optional[_Helper]:
    """Start the second process; ``None`` where there are no more processes, or no memory for one."""
    asking, answering = os.pipe(), os.pipe()
    try:
        return _Helper(files, paths, asking, answering)
    except OSError:
        for descriptor in (*asking, *answering):
            os.close(descriptor)
        return None


class _Helper:
    """The second process; raises :class:`OSError` where it cannot be started. Two pipes lead to it."""

    def __init__(
        self, files: HostFiles, paths: List[str], asking: Tuple[int, int], answering: Tuple[int, int]
    ) -> None:
        parent = os.getpid()
        self._process = fork(asking[0], answering[1])
        if self._process == 0:
            with contextlib.suppress(BaseException):  # a child must not run its parent's code
                _serve(files, paths, parent, os.fdopen(asking[0], "rb"), os.fdopen(answering[1], "wb"))
            os._exit(0)
        os.close(asking[0])
        os.close(answering[1])
        self._questions = os.fdopen(asking[1], "wb")
        self._answers = os.fdopen(answering[0], "rb")

    def collect(self, files: HostFiles) -> bool:
        """Take over what the second process has read; say whether it came."""
        try:
            found = pickle.load(self._answers)  # noqa: S301  from this process's own child
        except (EOFError, OSError, pickle.UnpicklingError):
            self._end()
            return False
        files.paths.update(found["paths"])
        for identity, opened in found["files"].items():
            files.files.setdefault(identity, opened)
        for identity, place in found["places"].items():
            files.places.setdefault(identity, place)
        if files.gpu is not None:
            files.gpu.update(found["gpu"])
        for identity, packed in found["symbols"].items():
            if identity not in files.symbols and identity in files.places:
                files.symbols[identity] = _unpacked(packed, files.places[identity])
        return True

    def satisfied(self, universe: Universe) -> Mapping[Identity, Tuple[int, int]]:
        """Return by file of the second process: how many references there were, which it satisfies."""
        try:
            pickle.dump(universe.packed(), self._questions, pickle.HIGHEST_PROTOCOL)
            self._questions.flush()
            answer: Dict[Identity, bytes] = pickle.load(self._answers)  # noqa: S301  from its own child
        except (EOFError, OSError, pickle.UnpicklingError):
            return {}
        finally:
            self._end()
        return {
            identity: (universe.size, int.from_bytes(bits, "little")) for identity, bits in answer.items()
        }

    def _end(self) -> None:
        with contextlib.suppress(OSError):
            self._questions.close()
        self._answers.close()
        os.waitpid(self._process, 0)


def _serve(files: HostFiles, paths: List[str], parent: int, questions: BinaryIO, answers: BinaryIO) -> None:
    """Read, say what was read, take the numbering, say what is satisfied."""
    for path in paths:
        if orphaned(parent):
            return
        files.open(path)
    found: Dict[str, Any] = {
        "paths": files.paths,
        "files": files.files,
        "places": files.places,
        "gpu": files.gpu or {},
        "symbols": {
            identity: _packed(files.symbols[identity])
            for identity in files.places
            if identity in files.symbols
        },
    }
    pickle.dump(found, answers, pickle.HIGHEST_PROTOCOL)
    answers.flush()
    universe = Universe.unpacked(pickle.load(questions))  # noqa: S301  from its own parent
    bits = {
        identity: universe.satisfied(symbols, opened.elf.definitions)
        for identity, symbols, opened in _readable(files)
    }
    width = universe.size // 8 + 1
    pickle.dump({name: value.to_bytes(width, "little") for name, value in bits.items()}, answers)
    answers.close()


def _readable(files: HostFiles) -> Iterator[Tuple[Identity, Symbols, File]]:
    for identity, symbols in files.symbols.items():
        opened = files.files[identity]
        if isinstance(symbols, Symbols) and isinstance(opened, File):
            yield identity, symbols, opened


def _packed(symbols: Any) -> Any:
    """Return symbols for the pipe: names as one string each group, definitions left behind."""
    if not isinstance(symbols, Symbols):
        return symbols
    groups = [
        (tuple(group.asked), b"\0".join(group.names), array.array("I", group.indices).tobytes())
        for group in symbols.wanted
    ]
    return groups, symbols.versioned


def _unpacked(packed: Any, place: str) -> Any:
    if isinstance(packed, str):
        return packed
    groups, versioned = packed
    wanted = []
    for asked, names, indices in groups:
        numbers = array.array("I")
        numbers.frombytes(indices)
        wanted.append(Group(Asked(*asked), tuple(names.split(b"\0")), tuple(numbers)))
    return Symbols(tuple(wanted), Deferred(place), versioned)


class Deferred(Mapping[bytes, Offer]):
    """What an object offers, read from its file when it is asked for at last."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._read: Optional[Mapping[bytes, Offer]] = None

    def _offered(self) -> Mapping[bytes, Offer]:
        if self._read is None:
            self._read = elfsymbols.offered_by(self._place)
        return self._read

    def __getitem__(self, name: bytes) -> Offer:
        return self._offered()[name]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._offered())

    def __len__(self) -> int:
        return len(self._offered())
