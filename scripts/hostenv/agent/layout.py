"""The folder that hostenv owns on a host: where things lie, and what state it is in. Reads only.

::

    ROOT/wheelhouse/     wheels by hash            ROOT/current  → generations/N
    ROOT/cache/          uv's                      ROOT/staged.json, hold.json
    ROOT/builds/ID/      one venv a build          ROOT/lock     who writes now
    ROOT/generations/N/  receipt.json, env → ../../builds/ID
    ROOT/tools/          uv                        ROOT/pythons/ interpreters that came by hash
    ROOT/store/          overlays' files by hash
"""

from __future__ import annotations

import errno
import json
import os
import re
from typing import Any, Dict, List, Optional

from hostenv.agent.files import open_regular
from hostenv.agent.wire import AgentError, Wire

OWN = ".hostenv"
"""The folder inside a build that holds its inputs, manifest and facts; no part of the environment."""

INCOMING = ".incoming-"
"""Prefix of a folder where the files of a transfer lie until they are whole and checked."""

_ID = re.compile(r"[0-9a-f]{12,64}\Z")
_NUMBER = re.compile(r"[1-9][0-9]{0,8}\Z")
"""A generation's number, as :meth:`Layout.generation` writes it."""


def is_identifier(name: str) -> bool:
    """Tell whether a name is a build's id."""
    return bool(_ID.match(name))


class Layout:
    """The paths under one root."""

    def __init__(self, root: str) -> None:
        if not os.path.isabs(root) or os.path.normpath(root) != root or root == "/":
            raise AgentError(f"root {root!r} is not an absolute, normalised path below /", outcome="input")
        self.root = root
        self.wheelhouse = os.path.join(root, "wheelhouse")
        self.cache = os.path.join(root, "cache")
        self.store = os.path.join(root, "store")
        self.pythons = os.path.join(root, "pythons")
        self.tools = os.path.join(root, "tools")
        self.builds = os.path.join(root, "builds")
        self.generations = os.path.join(root, "generations")
        self.current = os.path.join(root, "current")
        self.staged = os.path.join(root, "staged.json")
        self.hold = os.path.join(root, "hold.json")
        self.lock = os.path.join(root, "lock")

    def build(self, identifier: str) -> str:
        """Return the folder of a build; an identifier is lower-case hexadecimal."""
        if not _ID.match(identifier):
            raise AgentError(f"{identifier!r} is not a build id", outcome="input")
        return os.path.join(self.builds, identifier)

    def generation(self, number: int) -> str:
        """Return the folder of a generation."""
        return os.path.join(self.generations, str(int(number)))

    def generation_numbers(self) -> List[int]:
        """Return the numbers of all finished generations, ascending."""
        return sorted(int(name) for name in _names(self.generations) if _NUMBER.match(name))

    def current_number(self) -> Optional[int]:
        """Return the current generation's number, or ``None`` where nothing was ever made current.

        A link that somebody made by hand counts where it leads to a generation, however it is spelled. What
        leads elsewhere is refused: going on from there would not know what is current.
        """
        try:
            target = os.readlink(self.current)
        except FileNotFoundError:
            return None
        except PermissionError as error:
            message = f"{self.current} cannot be looked at: {error.strerror}"
            hint = "host.root must lie where the login's user may go"
            raise AgentError(message, hint=hint, outcome="refused") from error
        except OSError as error:
            if error.errno == errno.EINVAL:  # readlink(2): it is no link
                message = f"{self.current} is not the link that hostenv makes: {error.strerror}"
                raise AgentError(message, hint="move it away and run again", outcome="refused") from error
            message = f"{self.current} cannot be looked at: {error.strerror}"
            hint = "host.root must be a folder, or a path at which one can be made"
            raise AgentError(message, hint=hint, outcome="refused") from error
        folder, name = os.path.split(os.path.normpath(os.path.join(self.root, target)))
        if folder == self.generations and _NUMBER.match(name) and os.path.isdir(self.generation(int(name))):
            return int(name)
        message = f"{self.current} leads to {target}, which is no generation"
        hint = f"cd {self.root} && ln -s generations/N .next && mv -T .next current, N of one that works"
        raise AgentError(message, hint=hint, outcome="refused")

    def receipt(self, number: int) -> Optional[Dict[str, Any]]:
        """Return what was written when a generation was made."""
        return read_json(os.path.join(self.generation(number), "receipt.json"))

    def astray(self) -> Optional[str]:
        """Say where ``current/env`` leads if not to the build that its receipt names; ``None``: it does.

        A build that is gone is another matter: the link still names it.
        """
        number = self.current_number()
        if number is None:
            return None
        env = os.path.join(self.generation(number), "env")
        build = (self.receipt(number) or {}).get("build")
        if not (isinstance(build, str) and is_identifier(build)):
            return f"generation {number} has no receipt that names a build"
        try:
            target = os.readlink(env)
        except PermissionError:
            return None
        except OSError as error:
            missing = error.errno == errno.ENOENT
            return f"{env} is missing" if missing else f"{env} is not the link that hostenv makes"
        if os.path.realpath(env) == os.path.realpath(self.build(build)):
            return None
        return f"{env} leads to {target}, not to build {build} as its receipt says"

    def finished_builds(self) -> List[str]:
        """Return the ids of all finished builds: what bears an id is finished."""
        return sorted(name for name in _names(self.builds) if _ID.match(name))

    def sound_builds(self) -> List[str]:
        """Return the finished builds whose interpreter is still there."""
        pythons = (
            (name, os.path.join(self.builds, name, "bin", "python")) for name in self.finished_builds()
        )
        return [name for name, python in pythons if is_there(python)]


def is_there(path: str) -> bool:
    """Tell whether something stands at the end of a path; also where this user may not look."""
    try:
        os.stat(path)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def read_json(path: str) -> Optional[Dict[str, Any]]:
    """Return the object in a JSON file of ours, ``None`` where there is no file."""
    try:
        with os.fdopen(open_regular(path), encoding="utf-8") as file:
            value = json.load(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENXIO, errno.EISDIR}:
            raise
        message = f"{path} is not a regular file"
        raise AgentError(message, hint="move it away and run again") from error
    except (ValueError, RecursionError) as error:
        message = f"{path} does not hold JSON: {error}"
        raise AgentError(message, hint="it was edited or damaged; move it away and run again") from error
    return value if isinstance(value, dict) else None


def state(wire: Wire, root: str, link: Optional[str] = None) -> Dict[str, Any]:
    """Return what stands under ``root``: the operation behind a plan. Nothing is written.

    A leading ``~`` in ``root`` and ``link`` is the home folder of the user here; the answer holds both
    absolute.
    """
    del wire
    layout = Layout(os.path.expanduser(root))
    link = link and os.path.expanduser(link)
    ground = _existing_ancestor(layout.root)
    volume = os.statvfs(ground)
    number = layout.current_number()
    return {
        "root": layout.root,
        "machine": _machine(),
        "free": volume.f_bavail * volume.f_frsize,
        "noexec": bool(volume.f_flag & os.ST_NOEXEC),
        "unwritable": _unwritable(ground, volume),
        "builds": layout.sound_builds(),
        "unsound": sorted(set(layout.finished_builds()) - set(layout.sound_builds())),
        "generation": number,
        "astray": layout.astray(),
        "receipt": None if number is None else layout.receipt(number),
        "generations": layout.generation_numbers(),
        "staged": read_json(layout.staged),
        "hold": read_json(layout.hold),
        "link": link,
        "link_state": None if link is None else _link_state(layout, link),
    }


def _unwritable(ground: str, volume: os.statvfs_result) -> Optional[str]:
    """Say what keeps this user from making folders in ``ground``; ``None``: nothing that can be seen."""
    if not os.path.isdir(ground):
        return f"{ground} is not a folder"
    if volume.f_flag & os.ST_RDONLY:
        return f"{ground} lies on a filesystem that is mounted read-only"
    if not volume.f_blocks:
        return f"{ground} lies on a filesystem that keeps no files"
    if not os.access(ground, os.W_OK | os.X_OK):
        return f"{ground} may not be written by this user"
    return None


def _machine() -> Dict[str, Optional[str]]:
    """Return which machine this is, and what a lock's platform is made of.

    ``glibc`` is ``None`` where the C library is another, ``machine_id`` where there is none.
    """
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        name = version = ""
    return {
        "arch": os.uname().machine,
        "glibc": version if name == "glibc" else None,
        "machine_id": machine_id(),
    }


def machine_id() -> Optional[str]:
    """Return /etc/machine-id, ``None`` where there is none."""
    try:
        with open("/etc/machine-id", encoding="ascii") as file:
            return file.read().strip() or None
    except (OSError, ValueError):
        return None


def _link_state(layout: Layout, link: str) -> str:
    """Say what stands where people expect the environment: ``ours``, ``absent`` or ``other``."""
    if not os.path.lexists(link):
        return "absent"
    ours = os.path.islink(link) and os.readlink(link) == os.path.join(layout.current, "env")
    return "ours" if ours else "other"


def _existing_ancestor(path: str) -> str:
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _names(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except NotADirectoryError as error:
        message = f"{folder} is not a folder"
        raise AgentError(message, hint="move it away and run again", outcome="refused") from error
