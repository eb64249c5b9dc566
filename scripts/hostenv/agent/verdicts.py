"""Whether an object loads into a process, and what stops it: search, versions and symbols together.

A verdict belongs to what is opened: its scope is the process's global scope and then the opened object and
all that it needs, breadth first. Symbols are first compared as sets; only where something is missing are the
relocations read, for the loader looks up only what a relocation uses and reports the first in its order.
"""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from hostenv.agent.binding import Members, Universe, Wants
from hostenv.agent.elfsymbols import Asked, Group, Symbols
from hostenv.agent.loadermodel import File, Files, Identity, LoadError, Map, Refusal

if TYPE_CHECKING:
    from hostenv.agent.loader import Process


class SymbolFiles(Files):
    """Files whose symbols can be asked for."""

    def symbols_of(self, identity: Identity) -> Union[Symbols, str, None]:
        """Return an object's symbols, why they cannot be read, or ``None`` where they were not saved."""
        raise NotImplementedError

    def used(self, identity: Identity) -> Optional[Sequence[int]]:
        """Return the symbol indices that its relocations use, in order; ``None`` where that is not known."""
        raise NotImplementedError

    def names(self, folder: str) -> List[str]:
        """Return the entries of a folder; none where it cannot be listed."""
        raise NotImplementedError

    def real(self, path: str) -> Optional[str]:
        """Return the file that is seen at ``path``; ``None`` for none."""
        return path

    def defines(self, identity: Identity, asked: Asked, name: bytes) -> Optional[bool]:
        """Say whether an object whose symbols were not saved defines one; ``None`` where nothing tells."""
        del identity, asked, name
        return None


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
_LAST_WITH_ASSERTION = (2, 36)
_FIRST_WITHOUT_END = (2, 30)


class Judge:
    """Verdicts over one set of files."""

    def __init__(self, files: SymbolFiles) -> None:
        self.files = files
        self.universe = Universe()
        self._wants: Dict[Identity, Wants] = {}
        self._gives: Dict[Identity, Tuple[int, int]] = {}

    def add(self, file: Union[File, Refusal]) -> None:
        """Give the references of an object their numbers.

        Quickest where all objects are added before the first question: what is known of the others is
        worked out again whenever references are new.
        """
        if isinstance(file, File) and file.identity not in self._wants:
            symbols = self.files.symbols_of(file.identity)
            self._wants[file.identity] = self.universe.add(
                symbols.wanted if isinstance(symbols, Symbols) else ()
            )

    def learn(self, satisfied: Mapping[Identity, Tuple[int, int]]) -> None:
        """Take over what another process found objects to satisfy: how many references it knew, and bits."""
        self._gives.update(satisfied)

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
        scope = _Scope((*process.global_scope, *root.scope), self._give)
        wrong = {id(item) for item in fresh if not self._satisfied(process, scope, item)}
        if not wrong:
            return LOADS
        doubt: Optional[Verdict] = None
        for item in reversed(process.initialization(root)):
            if id(item) in wrong:
                verdict = self._relocate(process, scope, item)
                if verdict.loads is False:
                    return verdict
                doubt = doubt or (verdict if verdict.loads is None else None)
        return doubt or LOADS

    def _satisfied(self, process: Process, scope: _Scope, item: Map) -> bool:
        """Say whether all references of an object bind, used by a relocation or not."""
        wants = self._wants[item.identity]
        if wants.bits & ~scope.bits or not isinstance(self.files.symbols_of(item.identity), Symbols):
            return False
        for file, asked in wants.by_file:
            provider = process.named(file)
            if _ends_search(process) and asked & ~scope.until(provider):
                return False
            if self._refuses_unversioned(process, provider) and asked & self._give(provider):  # type: ignore[arg-type]
                return False
        return True

    def _refuses_unversioned(self, process: Process, provider: Optional[Map]) -> bool:
        """Say whether ``provider`` has no versions, and this glibc dies where one is asked of it by name.

        That is an assertion of ``check_match``, measured with 2.36 and gone later; it does not die where an
        object before it in the scope has the symbol.
        """
        if provider is None or process.system.glibc > _LAST_WITH_ASSERTION:
            return False
        symbols = self.files.symbols_of(provider.identity)
        return isinstance(symbols, Symbols) and not symbols.versioned and bool(symbols.offered)

    def _give(self, item: Map) -> int:
        size, bits = self._gives.get(item.identity, (0, 0))
        if size != self.universe.size:
            symbols = self.files.symbols_of(item.identity)
            if isinstance(symbols, Symbols):
                bits |= self.universe.satisfied(symbols, item.elf.definitions, size)
            self._gives[item.identity] = (self.universe.size, bits)
        return bits

    def _relocate(self, process: Process, scope: _Scope, item: Map) -> Verdict:
        """Relocate one object: its first reference that nothing satisfies is the loader's error."""
        symbols = self.files.symbols_of(item.identity)
        if symbols is None:
            return LOADS  # not saved: present, so its own machine takes it for sound
        if isinstance(symbols, str):
            return Verdict(loads=None, unknown=f"{item.name}: {symbols}")
        died = self._assertion(process, scope, item, symbols)
        if died is not None:
            return died
        open_questions = {
            index: (group.asked, name, answer)
            for group in symbols.wanted
            for name, index, answer in self._unsatisfied(process, scope, group)
        }
        if not open_questions:
            return LOADS
        used = self.files.used(item.identity)
        doubt: Optional[str] = None
        for index in sorted(open_questions) if used is None else used:
            if index not in open_questions:
                continue
            asked, name, answer = open_questions[index]
            if answer is None:
                return _undefined(item, asked, name)
            doubt = doubt or f"{item.name}: {_text(asked, name)} may be in {answer}"
        return Verdict(loads=None, unknown=doubt) if doubt else LOADS

    def _assertion(self, process: Process, scope: _Scope, item: Map, symbols: Symbols) -> Optional[Verdict]:
        """Return the verdict where a version is asked by name of an object that has none."""
        for group in symbols.wanted:
            provider = process.named(group.asked.file) if group.asked.file else None
            if provider is None or not self._refuses_unversioned(process, provider):
                continue
            found = Members(self._give(provider) & ~scope.before(provider))
            for name in group.names:
                if self.universe.number(group.asked, name) in found:
                    text = f"{item.name}: Inconsistency detected by ld.so: {provider.name} has no versions, "
                    return Verdict(
                        loads=False,
                        error=f"{text}{_text(group.asked, name)} is asked of it: the process dies",
                        version=group.asked.version,
                        library=provider.name,
                        requirer=item.name,
                    )
        return None

    def _unsatisfied(
        self, process: Process, scope: _Scope, group: Group
    ) -> Iterator[Tuple[bytes, int, Optional[str]]]:
        """Yield (name, symbol index, object that may define it) of the references that do not bind."""
        named = None if group.asked.file is None else process.named(group.asked.file)
        last = named if _ends_search(process) else None
        defined = Members(scope.until(last))
        missing = [
            (name, index)
            for name, index in zip(group.names, group.indices)
            if self.universe.number(group.asked, name) not in defined
        ]
        blank = [item for item in scope.up_to(last) if not self._known(item)] if missing else []
        for name, index in missing:
            if not blank:
                yield name, index, None
            else:
                told = {item.name: self.files.defines(item.identity, group.asked, name) for item in blank}
                if True not in told.values():
                    yield name, index, next((item for item, answer in told.items() if answer is None), None)

    def _known(self, item: Map) -> bool:
        return isinstance(self.files.symbols_of(item.identity), Symbols)


def _ends_search(process: Process) -> bool:
    """Say whether a reference that names a file ends its search there, found or not.

    Not since glibc 2.30: versioned symbols may move between libraries (BZ #24741).
    """
    return process.system.glibc < _FIRST_WITHOUT_END


class _Scope:
    """A search order, and what is defined up to each of its objects."""

    def __init__(self, items: Sequence[Map], give: Callable[[Map], int]) -> None:
        self.items = items
        self.bits = 0
        self._until: Dict[int, int] = {}
        self._before: Dict[int, int] = {}
        for item in items:
            self._before.setdefault(id(item), self.bits)
            self.bits |= give(item)
            self._until.setdefault(id(item), self.bits)

    def until(self, last: Optional[Map]) -> int:
        """Return what is defined from the first object to ``last``; to the end where it is not here."""
        return self._until.get(id(last), self.bits)

    def before(self, item: Map) -> int:
        """Return what is defined by the objects before ``item``."""
        return self._before.get(id(item), self.bits)

    def up_to(self, last: Optional[Map]) -> Iterator[Map]:
        """Yield the objects from the first to ``last``."""
        for item in self.items:
            yield item
            if item is last:
                return


def _refused(error: LoadError) -> Verdict:
    return Verdict(
        loads=False,
        error=error.text,
        library=error.library,
        version=error.version,
        requirer=error.requirer or None,
    )


def _undefined(item: Map, asked: Asked, name: bytes) -> Verdict:
    return Verdict(
        loads=False,
        error=f"{item.name}: undefined symbol: {_text(asked, name)}",
        symbol=name.decode("utf-8", "replace"),
        version=asked.version,
        requirer=item.name,
    )


def _text(asked: Asked, name: bytes) -> str:
    text = name.decode("utf-8", "replace")
    return text if asked.version is None else f"{text}, version {asked.version}"
