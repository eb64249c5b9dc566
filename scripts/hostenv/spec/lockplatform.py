"""The platform that a lock is for: its wheel tags, its marker environment, and uv's name for it."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging import tags

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ARCHITECTURES = ("x86_64", "aarch64")

UV_GLIBC_MINORS = (17, 28, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40)
"""The minors of glibc 2 for which uv has a ``--python-platform`` (uv 0.13.9, 2026-12-01). Any other is
floored to one of these: wheels for an older glibc work there too."""

_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""PEP 600: the aliases of manylinux_2_17, 2_12 and 2_5."""

_OLDEST_MINOR = {"x86_64": 5, "aarch64": 17}
"""PEP 513 and PEP 599: the first glibc that manylinux covers on the architecture."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LockPlatform:
    """CPython, architecture and glibc of the hosts that a lock serves.

    ``python`` is a minor version (``3.12``), ``glibc`` the oldest of those hosts (``2.34``). The default
    build of CPython (with the GIL) is meant. Raises ``ValueError`` for what no lock can be made for.
    """

    python: str
    arch: str
    glibc: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"3\.[1-9][0-9]?", self.python, re.ASCII):
            raise ValueError(f'python must be a version like 3.12, is "{self.python}"')
        if self.arch not in ARCHITECTURES:
            raise ValueError(f'arch must be one of {", ".join(ARCHITECTURES)}, is "{self.arch}"')
        if not re.fullmatch(r"2\.[1-9][0-9]?", self.glibc, re.ASCII):
            raise ValueError(f'glibc must be a version like 2.34, is "{self.glibc}"')
        if self._glibc_minor < UV_GLIBC_MINORS[0]:
            raise ValueError(f"uv knows no glibc older than 2.{UV_GLIBC_MINORS[0]}, is {self.glibc}")

    @property
    def name(self) -> str:
        """The part of a lock's file name: ``cp312-x86_64``."""
        return f"cp{self.python.replace('.', '')}-{self.arch}"

    @property
    def uv_platform(self) -> str:
        """The value of uv's ``--python-platform``; a glibc that uv does not know is floored."""
        floor = max(minor for minor in UV_GLIBC_MINORS if minor <= self._glibc_minor)
        return f"{self.arch}-manylinux_2_{floor}"

    @property
    def markers(self) -> Mapping[str, str]:
        """The values of PEP 508's environment markers there, the kernel's own left empty.

        The patch level of Python is taken as 0, as uv does for ``--python-version 3.12``.
        """
        full = f"{self.python}.0"
        return {
            "implementation_name": "cpython",
            "implementation_version": full,
            "os_name": "posix",
            "platform_machine": self.arch,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": full,
            "python_version": self.python,
            "sys_platform": "linux",
        }

    @property
    def tag_ranks(self) -> Mapping[tags.Tag, int]:
        """The wheel tags that such a host takes, each with its rank: the lower, the better it fits.

        In the order of :func:`packaging.tags.sys_tags` on the host itself, computed from this value alone.
        """
        return _tag_ranks(self)

    @property
    def _glibc_minor(self) -> int:
        return int(self.glibc.removeprefix("2."))

    def _platform_tags(self) -> Iterator[str]:
        yield f"linux_{self.arch}"
        for minor in range(self._glibc_minor, _OLDEST_MINOR[self.arch] - 1, -1):
            yield f"manylinux_2_{minor}_{self.arch}"
            if minor in _LEGACY:
                yield f"{_LEGACY[minor]}_{self.arch}"


@functools.lru_cache(maxsize=8)
def _tag_ranks(platform: LockPlatform) -> Mapping[tags.Tag, int]:
    version = (3, int(platform.python.removeprefix("3.")))
    interpreter = f"cp{platform.python.replace('.', '')}"
    names = tuple(platform._platform_tags())  # noqa: SLF001  same module
    ordered = (
        *tags.cpython_tags(version, abis=[interpreter], platforms=names),
        *tags.compatible_tags(version, interpreter=interpreter, platforms=names),
    )
    return {tag: rank for rank, tag in reversed(tuple(enumerate(ordered)))}
