"""Who brought a shared object, and which other package its maker says that it was built for."""

from __future__ import annotations

import os
import re
from typing import Dict, Iterable, NamedTuple, Optional

from hostenv.agent import regular

_PINNED_FOR = r"^Requires-Dist:[ \t]*{name}[ \t]*\(?==[ \t]*([0-9][\w.+!]*?)(?:\.\*)?\)?[ \t]*(?:$|;)"
_PROSE_FOR = r"\b{name}[ \t]*==[ \t]*([0-9][0-9.]*[0-9])"
_LARGEST = 64 << 20


class Origin(NamedTuple):
    """What METADATA says of the version that a distribution was built for, and how."""

    version: str
    how: str


class Owners:
    """The distributions of one ``site-packages`` folder."""

    def __init__(self, site: str) -> None:
        self._site = site
        self._folders = sorted(name for name in _names(site) if name.endswith(".dist-info"))
        self._metadata: Dict[str, str] = {}

    def installed(self) -> Dict[str, str]:
        """Return normalised name → version of every distribution, from the names of their folders."""
        pairs = (name[: -len(".dist-info")].partition("-") for name in self._folders)
        return {re.sub(r"[-_.]+", "-", name).lower(): version for name, _, version in pairs}

    def of(self, paths: Iterable[str]) -> Dict[str, str]:
        """Return path → the ``dist-info`` folder whose RECORD names it, for those that one does."""
        wanted = set(paths)
        found: Dict[str, str] = {}
        for folder in self._folders:
            for line in self._read(folder, "RECORD").splitlines():
                if ".so" in line:
                    path = line.rsplit(",", 2)[0].strip('"')
                    if path in wanted:
                        found[path] = folder
        return found

    def built_for(self, folder: str, package: str) -> Optional[Origin]:
        """Return the one version of ``package`` that a distribution names: a pin, else its description."""
        if folder not in self._metadata:
            self._metadata[folder] = self._read(folder, "METADATA")
        text = self._metadata[folder]
        head, _, prose = text.partition("\n\n")
        name = re.escape(package)
        pin = re.search(_PINNED_FOR.format(name=name), head, re.MULTILINE)
        if pin:
            return Origin(pin.group(1), "Requires-Dist")
        told = set(re.findall(_PROSE_FOR.format(name=name), prose))
        return Origin(told.pop(), "its description") if len(told) == 1 else None

    def _read(self, folder: str, name: str) -> str:
        try:
            content = regular.read(os.path.join(self._site, folder, name), _LARGEST)
        except OSError:
            return ""
        return "\n".join(content.decode("utf-8", "replace").splitlines())


def _names(folder: str) -> Iterable[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return ()
