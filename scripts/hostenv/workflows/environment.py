"""An environment on a host under a session that only reads: reached, looked at, and asked for more."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hostenv.checks import handmade
from hostenv.document import read, table_of
from hostenv.errors import HostError, InputError, RefusedError
from hostenv.facts.environment import Claims, EnvironmentLook
from hostenv.facts.manifest import Manifest, TreeFacts
from hostenv.machine.memory import Memory, Remembered
from hostenv.machine.reach import Reach
from hostenv.steps.identity import Seen, require_identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hostenv.machine.fleet import Turn
    from hostenv.spec.fleet import Fleet
    from hostenv.spec.spec import Spec
    from hostenv.workflows.events import Listener

WORTH_KEEPING = 16 << 20
"""Bytes read on the host from which its stat cache, up to 5 MB, is worth fetching."""

_LARGEST_SCRIPT = 1 << 20
"""Bytes above which a file of ``bin/`` is not looked into."""

_NEVER = "-"
"""A stat that no environment has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """An environment by name: a host, and a path or a build's id there (``None``: what the spec means)."""

    spec: Spec
    path: str | None

    @property
    def label(self) -> str:
        """The place as it is typed."""
        return self.spec.name if self.path is None else f"{self.spec.name}:{self.path}"


def places(fleet: Fleet, words: Iterable[str]) -> tuple[Place, ...]:
    """Return the places that words name: ``HOST``, ``HOST:PATH``, ``@tag``; each once.

    Raises :class:`InputError` for an unknown host, or a path that is neither absolute nor a build's id.
    """
    found: dict[str, Place] = {}
    for word in words:
        name, colon, path = word.partition(":")
        if colon and not path:
            raise InputError(
                f'"{word}" names no path', hint=f"{name}, or {name}:/path/of/a/venv, or {name}:BUILD"
            )
        for spec in fleet.select([name]):
            place = Place(spec=spec, path=path or None)
            found.setdefault(place.label, place)
    return tuple(found.values())


@contextlib.contextmanager
def nothing_current(spec: Spec) -> Iterator[None]:
    """Say what can be typed where a host has no current build; other refusals have their own words."""
    try:
        yield
    except RefusedError as error:
        if error.hint is not None:
            raise
        name = spec.name
        hint = f"nox -s build_env -- {name} builds one; {name}:PATH names an environment made otherwise"
        raise RefusedError(error.message, hint=hint) from error


class Environment:
    """An environment that was looked at. Not thread safe, as its agent."""

    def __init__(self, place: Place, reach: Reach, memory: Memory, ending: contextlib.ExitStack) -> None:
        self.place = place
        self._ending = ending
        self._reach = reach
        self._memory = memory
        self._name = f"{place.spec.name}\0{place.spec.host.root}\0{self._path or ''}"
        self._known: Remembered | None = None
        self.look: EnvironmentLook
        self.tree: TreeFacts

    def read(self, listener: Listener, *, rehash: bool = False) -> None:
        """Look at the environment: one round trip where the controller remembers it, and it is unchanged."""
        self._known = self._memory.load(self._name)
        seen = None if self._known is None else self._known.stat or _NEVER
        answer = self._look(listener, seen=seen, rehash=rehash)
        if answer["wanted"]:
            answer = self._look(listener, cache=self._memory.cache(self._name) or b"")
        self._take(answer)

    def manifest(self, listener: Listener) -> Manifest:
        """Return the manifest; from memory where that is enough."""
        remembered = self._memory.manifest(self._name) if self.look.tree is None else None
        if remembered:
            found = Manifest.from_packed(remembered)
            if found.fingerprint == self.tree.fingerprint:
                return found
        if self.look.tree is None:
            self._take(self._look(listener, cache=self._memory.cache(self._name) or b""))
        packed = self._bulk("environment.manifest")
        found = Manifest.from_packed(packed)
        if self.tree.fingerprint not in {None, found.fingerprint}:
            raise HostError(f"{self.place.label}: the manifest that arrived is not the one announced")
        if self._known:
            cache = self._known.cache or self._memory.cache(self._name)
            self._remember(replace(self._known, manifest=packed, cache=cache))
        return found

    def kept_manifest(self) -> Manifest:
        """Return the manifest that was kept when the build was made."""
        return Manifest.from_packed(self._bulk("environment.kept_manifest"))

    def claims(self, paths: Iterable[str]) -> Claims:
        """Return the distributions, and whose these paths are."""
        answer = self._reach.agent.call("environment.claims", path=self.look.path, paths=list(paths))
        return Claims.from_answer(answer, self.place.label)

    def run_regardless(self, paths: Iterable[str]) -> frozenset[str]:
        """Return the bytecode among ``paths`` that Python runs whatever its source says."""
        compiled = [path for path in paths if path.endswith(".pyc")]
        return frozenset(
            self._reach.agent.call("bytecode.run_regardless", root=self.look.path, paths=compiled)
            if compiled
            else ()
        )

    def scripts(self, paths: Iterable[str]) -> Mapping[str, str]:
        """Return what the Python scripts among ``paths`` are: :func:`.handmade.script_form`."""
        there = [path for path in paths if handmade.is_script(path)]
        texts = self.texts(there, _LARGEST_SCRIPT) if there else {}
        forms = {path: handmade.script_form(found["text"] or "") for path, found in texts.items()}
        return {path: form for path, form in forms.items() if form}

    def texts(self, paths: Iterable[str], largest: int) -> Mapping[str, Mapping[str, str | None]]:
        """Return each file's ``text``, or ``why`` there is none."""
        answer: Mapping[str, Mapping[str, str | None]] = self._reach.agent.call(
            "environment.texts", path=self.look.path, paths=list(paths), largest=largest
        )
        return answer

    @property
    def host(self) -> str:
        """The name of the host's spec."""
        return self.place.spec.name

    @property
    def build(self) -> str | None:
        """The build's id, where hostenv built it."""
        return self.look.build

    @property
    def host_key(self) -> str | None:
        """The fingerprint of the host key that was trusted."""
        return self._reach.host_key

    def close(self) -> None:
        """End the connection."""
        self._ending.close()

    @property
    def _path(self) -> str | None:
        """The path to ask for: what is typed, what the spec says of a hand-made one, or the current build."""
        capture = self.place.spec.capture
        if self.place.path is None and capture and capture.venv:
            return str(capture.venv)
        return self.place.path

    def _look(
        self,
        listener: Listener,
        *,
        seen: str | None = None,
        rehash: bool = False,
        cache: bytes | None = None,
    ) -> Mapping[str, Any]:
        with nothing_current(self.place.spec):
            answer: Mapping[str, Any] = self._reach.agent.call(
                "environment.look",
                root=str(self.place.spec.host.root),
                path=self._path,
                seen=seen,
                rehash=rehash,
                cached=cache is not None,
                data=None if cache is None else [cache],
                on_event=lambda event: listener.advance(self.place.label, event["bytes"]),
            )
        return answer

    def _take(self, answer: Mapping[str, Any]) -> None:
        """Take an answer's summary, or the remembered one that it confirms; remember what is new."""
        self.look = EnvironmentLook.from_answer(answer, self.place.label)
        if self.look.tree:
            self.tree = self.look.tree
            is_kept = self.tree.read >= WORTH_KEEPING or self._memory.cache(self._name)
            cache = self._bulk("environment.cache") if is_kept else None
            self._remember(Remembered(stat=self.look.stat, tree=answer["summary"], cache=cache))
        elif self._known:
            known = read(self._known.tree, table_of(TreeFacts.from_table), document=self.place.label)
            self.tree = replace(known, interpreter=self.look.interpreter)
        else:
            raise HostError(f"{self.place.label}: the host told nothing of the environment")

    def _remember(self, known: Remembered) -> None:
        self._known = known
        self._memory.save(self._name, known)

    def _bulk(self, operation: str) -> bytes:
        pieces: list[bytes] = []
        self._reach.agent.call(
            operation, on_data=lambda piece: pieces.append(bytes(piece)), path=self.look.path
        )
        return b"".join(pieces)


def open_environment(fleet: Fleet, place: Place, turn: Turn) -> Environment:
    """Reach the host of a place; it stays open until ``close``. Raises what :class:`Reach` raises."""
    reach = Reach(place.spec, specs=fleet.specs.values())
    turn.ends_with(reach.close)
    with contextlib.ExitStack() as opening:
        opening.enter_context(reach)
        return Environment(place, reach, Memory(), opening.pop_all())


def require_right_machine(fleet: Fleet, environment: Environment) -> None:
    """Raise :class:`~hostenv.errors.RefusedError` where a machine is not the one that its spec names.

    A proof about another machine proves nothing; a spec without an identity cannot be wrong.
    """
    spec = environment.place.spec
    if spec.identity:
        seen = Seen(machine_id=environment.look.machine_id, host_key=environment.host_key)
        require_identity(spec.as_managed(), seen, fleet.specs.values())
