"""The contents of overlays' files: kept by digest on the controller, brought from where they were taken."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
from typing import TYPE_CHECKING, Protocol

from hostenv.agent.store import Store, relative
from hostenv.errors import SupplyError
from hostenv.machine.bulk import File
from hostenv.machine.turns import Turns
from hostenv.spec.overlaylist import PREFIX
from hostenv.steps.landing import landing_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hostenv.machine.reach import Reach
    from hostenv.spec.overlay import Overlay
    from hostenv.spec.overlaylist import OverlayFile

_SHOWN = 5


def default_folder() -> pathlib.Path:
    """Return the store's folder below the user's cache (XDG Base Directory Specification)."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    base = pathlib.Path(cache) if cache.startswith("/") else pathlib.Path.home() / ".cache"
    return base / "hostenv" / "store"


class Payload:
    """The controller's store. Thread safe: hosts that lack the same contents wait for one another."""

    def __init__(self, folder: pathlib.Path | None = None) -> None:
        self._folder = folder
        self._bringing = Turns()
        self._sound: set[str] = set()

    @property
    def folder(self) -> pathlib.Path:
        """Where everything lies: ``AB/SHA256``."""
        return self._folder or default_folder()

    def missing(self, contents: Mapping[str, int]) -> Mapping[str, int]:
        """Return those of sha256 → size that are not here. Nothing is written."""
        return Store(str(self.folder)).missing(contents)

    def lacking(self, contents: Mapping[str, int]) -> Mapping[str, int]:
        """Return those that are not here, as :meth:`missing`; what is here and damaged is removed first.

        Each content is hashed once in a session, before it is sent anywhere.
        """
        with self._bringing:
            unseen = contents.keys() - self._sound - self.missing(contents).keys()
            self._sound |= unseen - Store(str(self.folder)).remove_damaged(unseen)
        return self.missing(contents)

    def bring(
        self,
        source: Source | None,
        overlays: Iterable[Overlay],
        contents: Mapping[str, int],
        *,
        on_progress: Callable[[int], None],
        onward: Onward | None = None,
    ) -> Mapping[str, int]:
        """Have all ``contents`` of ``overlays`` here, received from ``source`` where they are not.

        What is received goes ``onward`` at the same time, while that keeps nobody else waiting; returns
        what was received. What arrived stays. Raises :class:`SupplyError` that names what neither has.
        """
        with self._bringing:
            absent = self.missing(contents)
            if not absent:
                return {}
            wanted = [(o, f) for o in overlays for f in o.files if f.sha256 in absent]
            if source is None:
                raise _not_here(wanted)
            source.receive(
                self.folder,
                wanted,
                on_progress=on_progress,
                onward=onward,
                hurried=lambda: self._bringing.wanted,
            )
            still = self.missing(absent)
            if still:
                raise _not_here([(o, f) for o, f in wanted if f.sha256 in still])
            self._sound.update(absent)
            return absent


class Onward(Protocol):
    """A host's store, to which contents go while they come."""

    def forward(
        self,
        source: Reach,
        folder: str,
        keep: pathlib.Path,
        files: Sequence[File],
        *,
        hurried: Callable[[], bool],
    ) -> None:
        """Receive files from below a folder of ``source`` in ``keep``, and send each on as its content.

        A host that keeps ``source`` waiting while that is ``hurried`` gets no more of them.
        """


class Source:
    """A machine whose environments, and whose store, hold what overlays were taken from. Only read.

    ``turn`` is held while its agent is asked: others may use that, too.
    """

    def __init__(
        self,
        reach: Reach,
        *,
        root: str,
        environments: Sequence[str],
        turn: Turns | None = None,
    ) -> None:
        self._reach = reach
        self._turn = turn or Turns()
        self._store = f"{root}/store"
        self._environments = tuple(environments)

    def receive(
        self,
        store: pathlib.Path,
        wanted: Iterable[tuple[Overlay, OverlayFile]],
        *,
        on_progress: Callable[[int], None],
        onward: Onward | None = None,
        hurried: Callable[[], bool] = lambda: False,
    ) -> None:
        """Receive what lies there under its digest or its own path; what does not, is left out.

        ``hurried`` tells whether others wait for it, beside those that wait for this machine. Raises
        :class:`~hostenv.errors.HostError` where a file is not the one that the overlay names.
        """
        with self._turn:
            way: Callable[..., None] | None = None
            if onward:
                way = functools.partial(onward.forward, hurried=lambda: hurried() or self._turn.wanted)
            self._receive_all(store, wanted, on_progress, way)

    def _receive_all(
        self,
        store: pathlib.Path,
        wanted: Iterable[tuple[Overlay, OverlayFile]],
        on_progress: Callable[[int], None],
        onward: Callable[..., None] | None,
    ) -> None:
        wanted = tuple(wanted)
        places = (
            *self._environments,
            *(o.origin.venv for o, _ in wanted if o.origin.host == self._reach.name),
        )
        environments = tuple(dict.fromkeys(places))
        distinct = {file.sha256: (overlay, file) for overlay, file in wanted}
        by_digest = [(relative(sha256), file.size, sha256) for sha256, (_, file) in distinct.items()]
        by_path = [(_place(overlay, file), file.size, sha256) for sha256, (overlay, file) in distinct.items()]
        for folders, paths in (((self._store,), by_digest), (environments, by_path)):
            there = Store(str(store)).missing({sha256: size for _, size, sha256 in paths})
            paths = [each for each in paths if each[2] in there]  # noqa: PLW2901  what is still wanted
            found = self._reach.agent.call(
                "store.locate", folders=folders, paths=[each[:2] for each in paths]
            )
            for folder in folders:
                some = [each for each, top in zip(paths, found, strict=True) if top == folder]
                self._receive(store, folder, some, on_progress, onward)

    def _receive(
        self,
        store: pathlib.Path,
        folder: str,
        files: Sequence[tuple[str, int, str]],
        on_progress: Callable[[int], None],
        onward: Callable[..., None] | None,
    ) -> None:
        if not files:
            return
        wanted = [
            File(path=path, size=size, sha256=sha256)
            for path, size, sha256 in sorted(files, key=lambda file: file[1])
        ]
        with landing_in(store) as landing:
            try:
                if onward:
                    onward(self._reach, folder, landing, wanted)
                else:
                    self._reach.receive_files(folder, landing, wanted, on_progress=on_progress)
            finally:
                for path, _, sha256 in files:
                    with contextlib.suppress(FileNotFoundError):
                        place = store / relative(sha256)
                        place.parent.mkdir(exist_ok=True)
                        (landing / path).replace(place)


def _place(overlay: Overlay, file: OverlayFile) -> str:
    """Return where a file lies in the environment that an overlay was taken from."""
    if file.path.startswith(PREFIX):
        return file.path.removeprefix(PREFIX)
    return f"lib/python{overlay.origin.python}/site-packages/{file.path}"


def _not_here(wanted: Sequence[tuple[Overlay, OverlayFile]]) -> SupplyError:
    origins = sorted({overlay.origin.host for overlay, _ in wanted})
    names = sorted({overlay.name for overlay, _ in wanted})
    lines = [f"overlays/{overlay.name}: {file.path} (sha256 {file.sha256})" for overlay, file in wanted]
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return SupplyError(
        "contents of overlays that neither the host nor this controller has:\n"
        + "\n".join([*lines[:_SHOWN], *more]),
        hint=f"nox -s sync_patches -- {origins[0]} HOST brings them from there, if it has them still "
        f"(overlays: {', '.join(names)})",
    )
