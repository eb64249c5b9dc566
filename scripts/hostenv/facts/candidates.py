"""Distributions that might be laid over an environment, as an agent read them of a reference or of wheels."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hostenv.agent.excerpts import unpacked
from hostenv.agent.wire import AgentError
from hostenv.document import (
    InvalidValueError,
    list_of,
    mapping_of,
    natural,
    optional,
    read,
    table_of,
    text,
)
from hostenv.facts.distributions import Distribution
from hostenv.facts.gpu_code import GpuCode
from hostenv.facts.operators import Operators
from hostenv.facts.site import ObjectFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostenv.document import Node, Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Excerpt:
    """What the loader's simulation reads of one object (:mod:`hostenv.agent.excerpts`).

    ``path`` is relative to site-packages, ``size`` the whole file's; ``parts`` are offset and size of what
    ``content`` holds, in order.
    """

    path: str
    size: int
    parts: tuple[tuple[int, int], ...]
    gpu: GpuCode | None
    content: bytes = field(default=b"", repr=False)

    @classmethod
    def from_table(cls, table: Table) -> Excerpt:
        """Read one, its bytes apart."""
        return cls(
            path=table.get("path", text),
            size=table.get("size", natural),
            parts=table.get("parts", list_of(_pair)),
            gpu=table.get("gpu", optional(table_of(GpuCode.from_table))),
        )

    @property
    def request(self) -> dict[str, object]:
        """The excerpt as ``abi.objects`` takes it in ``laid``."""
        return {"path": self.path, "size": self.size, "parts": self.parts}


def packed(excerpts: Iterable[Excerpt]) -> bytes:
    """Return the bytes that follow a request with these excerpts."""
    return zlib.compress(b"".join(each.content for each in excerpts), 1)


def excerpts_from_answer(answer: Any, data: Sequence[bytes]) -> tuple[Excerpt, ...]:
    """Type what ``abi.excerpts`` answers; :class:`~hostenv.document.DocumentError` where it is damaged."""

    def from_table(table: Table) -> tuple[Excerpt, ...]:
        found = table.get("excerpts", list_of(table_of(Excerpt.from_table)))
        return _filled(found, data) if table.sound else ()

    return read(answer, table_of(from_table), document="the agent's answer to abi.excerpts")


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One distribution as it would lie in an environment; paths are relative to site-packages."""

    distribution: Distribution
    objects: tuple[ObjectFile, ...]
    operators: Operators
    excerpts: tuple[Excerpt, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unread:
    """A wheel that could not be looked into, and why."""

    why: str


def wheels_from_answer(answer: Any, data: Sequence[bytes]) -> tuple[Candidate | Unread, ...]:
    """Type what ``abi.wheels`` answers, one value a wheel that was asked for."""

    def from_table(table: Table) -> tuple[Candidate | Unread, ...]:
        found = table.get("excerpts", list_of(table_of(Excerpt.from_table)))
        excerpts = _filled(found, data) if table.sound else ()

        def wheel(each: Table) -> Candidate | Unread:
            why = each.get("unread", text, "")
            if why:
                return Unread(why=why)
            own = each.get("excerpts", _pair)
            distribution = each.get("distribution", table_of(_distribution))
            objects = each.get("objects", list_of(table_of(_sized)))
            operators = each.get("operators", table_of(Operators.from_table))
            if not each.sound:
                return Unread(why="the agent's answer is damaged")
            owner = f"{distribution.key}=={distribution.version}"
            return Candidate(
                distribution=distribution,
                objects=tuple(ObjectFile(path=path, owners=(owner,), size=size) for path, size in objects),
                operators=operators,
                excerpts=excerpts[own[0] : own[1]],
            )

        return table.get("wheels", list_of(table_of(wheel)))

    return read(answer, table_of(from_table), document="the agent's answer to abi.wheels")


def _filled(excerpts: Sequence[Excerpt], data: Sequence[bytes]) -> tuple[Excerpt, ...]:
    try:
        whole = unpacked(data, sum(length for each in excerpts for _, length in each.parts))
    except AgentError as error:
        raise InvalidValueError(error.message) from None
    content = memoryview(whole)
    found, at = [], 0
    for each in excerpts:
        size = sum(length for _, length in each.parts)
        found.append(
            Excerpt(
                path=each.path,
                size=each.size,
                parts=each.parts,
                gpu=each.gpu,
                content=bytes(content[at : at + size]),
            )
        )
        at += size
    return tuple(found)


def _distribution(table: Table) -> Distribution:
    """Read what a wheel says of itself; nothing of it is installed, so nothing differs."""
    texts = list_of(text)
    return Distribution(
        name=table.get("name", text),
        version=table.get("version", text),
        info=table.get("info", text),
        requires=table.get("requires", texts),
        requires_python=table.get("requires_python", optional(text)),
        extras=table.get("extras", texts),
        tags=table.get("tags", texts),
        installer=None,
        direct_url=None,
        editable=False,
        entry_points=table.get("entry_points", mapping_of(texts)),
        files=table.get("files", natural),
        mismatched=(),
        missing=(),
        unverified=(),
        problems=(),
    )


def _sized(table: Table) -> tuple[str, int]:
    return table.get("path", text), table.get("size", natural)


def _pair(node: Node) -> tuple[int, int]:
    values = list_of(natural)(node)
    if len(values) != 2:  # noqa: PLR2004  a pair
        raise InvalidValueError("must be two numbers")
    return values[0], values[1]
