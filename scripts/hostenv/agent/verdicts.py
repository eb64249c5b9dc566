"""Whether an object loads into a process, and what stops it: search, versions and symbols together.

A verdict belongs to what is opened: its scope is the process's global scope and then the opened object and
all that it needs, breadth first. Symbols are first compared as sets; only where something is missing are the
relocations read, for the loader looks up only what a relocation uses and reports the first in its order.
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional, Sequence, Tuple, Union

from hostenv.agent.binding import Universe, Wants, accepts
from hostenv.agent.elfsymbols import Reference, Symbols
from hostenv.agent.loader import File, Files, LoadError, Map, Process, Refusal

Identity = Tuple[int, ...]


class SymbolFiles(Files):
    """Files whose symbols can be asked for."""

    def symbols_of(self, identity: Identity) -> Union[Symbols, str, None]:
        """Return an object's symbols, why they cannot be read, or ``None`` where they were not saved."""
        raise NotImplementedError

    def used(self, identity: Identity) -> Optional[Sequence[int]]:
        """Return the symbol indices that its relocations use, in order; ``None`` where that is not known."""
        raise NotImplementedError


class Verdict(NamedTuple):
    """The loader's answer to one ``dlopen(path, RTLD_NOW)``.

    ``loads`` is ``None`` where a fact is missing (``unknown`` says which). ``error`` is the loader's text,
    ``library``, ``symbol``, ``version`` what it names, ``requirer`` the path of the object that asked.
    """

    loads: Optional[bool]
    error: Optional[str] = None
    library: Optional[str] = None
    symbol: Optional[str] = None
    version: Optional[str] = None
    requirer: Optional[str] = None
    unknown: Optional[str] = None


LOADS = Verdict(loads=True)


class Judge:
    """Verdicts over one set of files."""

    def __init__(self, files: SymbolFiles) -> None:
        self._files = files
        self._universe = Universe()
        self._wants: Dict[Identity, Wants] = {}
        self._gives: Dict[Identity, int] = {}

    def add(self, file: Union[File, Refusal]) -> None:
        """Number the references of an object. All objects are added before the first question."""
        if isinstance(file, File) and file.identity not in self._wants:
            symbols = self._files.symbols_of(file.identity)
            known = symbols.wanted.values() if isinstance(symbols, Symbols) else ()
            self._wants[file.identity] = self._universe.add(known)

    def judge(self, process: Process, path: str) -> Verdict:
        """Say what ``dlopen(path, RTLD_NOW | RTLD_LOCAL)`` says in a fork of ``process``."""
        return self.open(process.fork(), path)

    def open(self, process: Process, path: str, *, everyone: bool = False) -> Verdict:
        """Open ``path`` in ``process`` itself: where it loads, it stays; else the process is spoilt."""
        try:
            root = process.open(path, everyone=everyone)
        except LoadError as error:
            return _refused(error)
        return self._bind(process, root)

    def start(self, process: Process, path: str) -> Verdict:
        """Start the program ``path`` in ``process``."""
        try:
            root = process.start(path)
        except LoadError as error:
            return _refused(error)
        return self._bind(process, root)

    def _bind(self, process: Process, root: Map) -> Verdict:
        fresh = [item for item in root.scope if process.is_new(item)]
        for item in fresh:
            self.add(File(item.identity, item.elf))
        bits = self._given(process.global_scope) | self._given(root.scope)
        if all(self._satisfied(process, root, item, bits) for item in fresh):
            return LOADS
        doubt: Optional[Verdict] = None
        for item in reversed(process.initialization(root)):
            if process.is_new(item):
                verdict = self._relocate(process, root, item)
                if verdict.loads is False:
                    return verdict
                doubt = doubt or (verdict if verdict.loads is None else None)
        return doubt or LOADS

    def _satisfied(self, process: Process, root: Map, item: Map, bits: int) -> bool:
        """Say whether sets alone show that an object's references are satisfied."""
        wants = self._wants[item.identity]
        if wants.bits & ~bits or not isinstance(self._files.symbols_of(item.identity), Symbols):
            return False
        for file, asked in wants.by_file:
            for provider in (*process.global_scope, *root.scope):
                if process.answers_to(provider, file):
                    if asked & ~self._give(provider):
                        return False
                    break
        return True

    def _given(self, scope: Sequence[Map]) -> int:
        bits = 0
        for item in scope:
            bits |= self._give(item)
        return bits

    def _give(self, item: Map) -> int:
        given = self._gives.get(item.identity)
        if given is None:
            symbols = self._files.symbols_of(item.identity)
            given = 0
            if isinstance(symbols, Symbols):
                given = self._universe.satisfied(symbols, item.elf.definitions)
            self._gives[item.identity] = given
        return given

    def _relocate(self, process: Process, root: Map, item: Map) -> Verdict:
        """Relocate one object: its first reference that nothing satisfies is the loader's error."""
        symbols = self._files.symbols_of(item.identity)
        if not isinstance(symbols, Symbols):
            return Verdict(loads=None, unknown=f"{item.name}: {symbols or 'its symbols were not saved'}")
        answers = {
            index: self._find(process, root, reference) for index, reference in symbols.wanted.items()
        }
        if all(answer is True for answer in answers.values()):
            return LOADS
        used = self._files.used(item.identity)
        order = sorted(answers) if used is None else used
        doubt: Optional[str] = None
        for index in order:
            answer = answers.get(index, True)
            if answer is False:
                return _undefined(item, symbols.wanted[index])
            if answer is not True and doubt is None:
                doubt = f"{item.name}: {_text(symbols.wanted[index])} may be in {answer}"
        return Verdict(loads=None, unknown=doubt) if doubt else LOADS

    def _find(self, process: Process, root: Map, reference: Reference) -> Union[bool, str]:
        """Return whether a reference binds, or the name of an object that may define it."""
        doubt: Union[bool, str] = False
        for item in (*process.global_scope, *root.scope):
            symbols = self._files.symbols_of(item.identity)
            if not isinstance(symbols, Symbols):
                doubt = doubt or item.name
            elif reference.name in symbols.offered and accepts(
                reference, symbols.offered[reference.name], item.elf.definitions, symbols.versioned
            ):
                return True
            if reference.file is not None and process.answers_to(item, reference.file):
                break
        return doubt


def _refused(error: LoadError) -> Verdict:
    return Verdict(
        loads=False,
        error=error.text,
        library=error.library,
        version=error.version,
        requirer=error.requirer or None,
    )


def _undefined(item: Map, reference: Reference) -> Verdict:
    return Verdict(
        loads=False,
        error=f"{item.name}: undefined symbol: {_text(reference)}",
        symbol=reference.name.decode("utf-8", "replace"),
        version=reference.version,
        requirer=item.name,
    )


def _text(reference: Reference) -> str:
    name = reference.name.decode("utf-8", "replace")
    return name if reference.version is None else f"{name}, version {reference.version}"
