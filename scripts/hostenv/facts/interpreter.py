"""The interpreter of an environment and the system below it, as the environment itself tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.document import Table, flag, optional, text

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """Which Python an environment stands on.

    ``version`` is the full one (``3.12.1``) when the environment was made, ``python`` its first two parts,
    ``abi`` the tag (``cp312``), ``present`` whether ``bin/python`` leads to a file, ``system_site`` whether
    the system's packages are visible too. ``libc`` is ``glibc 2.36``, ``None`` on another C library.
    """

    implementation: str
    version: str | None
    python: str | None
    abi: str | None
    present: bool
    system_site: bool
    machine: str
    system: str
    system_release: str
    system_version: str
    libc: str | None

    @classmethod
    def from_table(cls, table: Table) -> Interpreter:
        """Read what :mod:`hostenv.agent.pyvenv` describes."""
        return cls(
            implementation=table.get("implementation", text),
            version=table.get("version", optional(text)),
            python=table.get("python", optional(text)),
            abi=table.get("abi", optional(text)),
            present=table.get("present", flag),
            system_site=table.get("system_site", flag),
            machine=table.get("machine", text),
            system=table.get("system", text),
            system_release=table.get("system_release", text),
            system_version=table.get("system_version", text),
            libc=table.get("libc", optional(text)),
        )

    @property
    def glibc(self) -> str | None:
        """The version of glibc (``2.36``)."""
        name, _, version = (self.libc or "").partition(" ")
        return version if name == "glibc" and version else None

    def markers(self) -> Mapping[str, str] | None:
        """Return the values of PEP 508's environment markers, ``None`` where the version is not known."""
        if self.version is None or self.python is None:
            return None
        names = {"cpython": "CPython", "pypy": "PyPy"}
        return {
            "implementation_name": self.implementation,
            "implementation_version": self.version,
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": names.get(self.implementation, self.implementation),
            "platform_release": self.system_release,
            "platform_system": self.system,
            "platform_version": self.system_version,
            "python_full_version": self.version,
            "python_version": self.python,
            "sys_platform": self.system.lower(),
        }
