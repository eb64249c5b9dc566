"""What a spec says about judging the environment: its reference, the system, waivers, the service."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from hostenv.document import InvalidValueError, choice, day, list_of, mapping_of, natural, parsed, table_of
from hostenv.spec import words

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import PurePosixPath

    from packaging.utils import NormalizedName

    from hostenv.document import Node, Table

MAX_PORT = 65535
_SECRET = re.compile(r".*(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|CREDENTIALS?)")


class Layer(StrEnum):
    """The layers of an environment that a reference can demand to be equal."""

    LOCK = "lock"
    PATCHES = "patches"
    OVERLAYS = "overlays"


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A distribution of a hand-made environment whose files come from a git checkout on the host.

    ``strip`` is the folder of the checkout that the distribution's files lie in.
    """

    dist: NormalizedName
    git: PurePosixPath
    base: str
    strip: str | None

    @classmethod
    def from_table(cls, table: Table) -> Source:
        """Read one entry of ``capture.sources``."""
        return cls(
            dist=table.get("dist", words.distribution),
            git=table.get("git", words.host_path),
            base=table.get("base", words.matching(r"[A-Za-z0-9][A-Za-z0-9._/+-]*", "a git revision")),
            strip=table.get("strip", words.relative_path, None),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture:
    """What ``capture`` and ``match`` read on a host that hostenv did not build: only ever read."""

    venv: PurePosixPath | None
    sources: tuple[Source, ...]
    ignore: tuple[str, ...]

    @classmethod
    def from_table(cls, table: Table) -> Capture:
        """Read ``[capture]``."""
        return cls(
            venv=table.get("venv", words.host_path, None),
            sources=table.get("sources", list_of(table_of(Source.from_table)), ()),
            ignore=table.get("ignore", list_of(words.relative_path), ()),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlayUse:
    """An overlay to lay over the build, refused before a copy if its GPU code lacks ``require_arch``."""

    name: str
    require_arch: tuple[str, ...]

    @classmethod
    def from_table(cls, table: Table) -> OverlayUse:
        """Read one entry of ``[[overlays]]``."""
        return cls(
            name=table.get("name", words.name),
            require_arch=table.get("require-arch", list_of(words.capability), ()),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """The spec of the machine that this one shall match, and in which layers.

    ``may_differ`` are patterns of paths in site-packages that are compared and reported, not demanded.
    """

    host: str
    equal: tuple[Layer, ...]
    may_differ: tuple[str, ...]

    @classmethod
    def from_table(cls, table: Table) -> Reference:
        """Read ``[reference]``."""
        return cls(
            host=table.get("host", words.name),
            equal=table.get("equal", list_of(choice(Layer)), tuple(Layer)),
            may_differ=table.get("may-differ", list_of(words.relative_path), ()),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A program that must be on the host, in a version that fits (``nvcc>=13.0``)."""

    name: str
    specifier: SpecifierSet

    @classmethod
    def parse(cls, value: str) -> Command:
        """Parse a name and version specifiers; raises ValueError."""
        match = re.fullmatch(r"([A-Za-z0-9_][A-Za-z0-9_.+-]*)\s*([<>=!~].*)?", value)
        if not match:
            raise ValueError("must be a program's name, or one with a version like nvcc>=13.0")
        return cls(name=match[1], specifier=SpecifierSet(match[2] or ""))


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """What the host's system must bring: checked, never installed. ``libraries`` are SONAMEs."""

    commands: tuple[Command, ...] = ()
    libraries: tuple[str, ...] = ()

    @classmethod
    def from_table(cls, table: Table) -> System:
        """Read ``[system]``."""
        return cls(
            commands=table.get("commands", list_of(parsed(Command.parse, "command")), ()),
            libraries=table.get("libraries", list_of(words.soname), ()),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiver:
    """A finding that somebody answers for until a day: the rule (or its catalogue number) and its object."""

    rule: str
    object: str
    reason: str
    until: dt.date

    @classmethod
    def from_table(cls, table: Table) -> Waiver:
        """Read one entry of ``checks.allow``."""
        return cls(
            rule=table.get("rule", words.name),
            object=table.get("object", words.line),
            reason=table.get("reason", words.line),
            until=table.get("until", day),
        )

    def expired(self, today: dt.date) -> bool:
        """Whether the last day of the waiver has passed."""
        return today > self.until


@dataclass(frozen=True, kw_only=True, slots=True)
class Checks:
    """How findings are judged. Saved facts older than ``facts_max_age`` count as unknown."""

    allow: tuple[Waiver, ...] = ()
    facts_max_age: dt.timedelta = dt.timedelta(days=30)

    @classmethod
    def from_table(cls, table: Table) -> Checks:
        """Read ``[checks]``; two waivers of one rule and object are an error."""
        checks = cls(
            allow=table.get("allow", list_of(table_of(Waiver.from_table)), ()),
            facts_max_age=table.get("facts-max-age", words.span, dt.timedelta(days=30)),
        )
        if table.sound:
            first: dict[tuple[str, str], int] = {}
            for index, waiver in enumerate(checks.allow):
                earlier = first.setdefault((waiver.rule, waiver.object), index)
                if earlier != index:
                    table.problem("allow", f"waives the same as allow[{earlier}]", index=index)
        return checks


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A model's folder on the host: probed, never written."""

    path: PurePosixPath

    @classmethod
    def from_table(cls, table: Table) -> Model:
        """Read one entry of ``[[models]]``."""
        return cls(path=table.get("path", words.host_path))


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """The process whose surroundings the checks judge by. Placeholders stand as they were written.

    ``env_file`` holds the secrets, on the host, for the service's unit: hostenv never reads it, only its path
    is a fact of the spec.
    """

    unit: str | None
    port: int | None
    args: tuple[str, ...]
    env_file: PurePosixPath | None
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def from_table(cls, table: Table) -> Service:
        """Read ``[service]``."""
        allowed = tuple(word for word in words.PLACEHOLDERS if word != "port" or table.has("port"))
        service = cls(
            unit=table.get("unit", words.unit, None),
            port=table.get("port", _port, None),
            args=table.get("args", list_of(words.template(allowed)), ()),
            env_file=table.get("env-file", words.host_path, None),
            env=table.get("env", mapping_of(words.template(allowed)), MappingProxyType({})),
        )
        for key in service.env or ():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
                table.problem("env", f'"{key}" is not the name of an environment variable')
            elif _SECRET.fullmatch(key.upper()):
                table.problem("env", f'"{key}" looks like a secret: it belongs in the env-file on the host')
        return service

    def filled(self, *, build: PurePosixPath, root: PurePosixPath, build_id: str) -> Service:
        """Return the service with every placeholder filled in for one build."""
        values = {"build": str(build), "root": str(root), "id": build_id, "port": str(self.port)}
        return Service(
            unit=self.unit,
            port=self.port,
            args=tuple(words.fill(arg, values) for arg in self.args),
            env_file=self.env_file,
            env=MappingProxyType({key: words.fill(value, values) for key, value in self.env.items()}),
        )


def _port(node: Node) -> int:
    value = natural(node)
    if not 1 <= value <= MAX_PORT:
        raise InvalidValueError(f"must be a port from 1 to {MAX_PORT}, is {value}")
    return value
