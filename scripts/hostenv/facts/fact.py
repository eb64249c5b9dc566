"""One fact of a host: what was read and how, or why it is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from hostenv.document import table_of, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostenv.document import Reader, Table

T = TypeVar("T")
R = TypeVar("R")


class UnknownFactError(LookupError):
    """A fact was asked for that could not be read; its text is the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact(Generic[T]):
    """A value with how it was read; ``unknown`` holds the reason where it could not be.

    ``None`` is a value like any other (there is no nvcc), and never the same as unknown.
    """

    how: str
    known_value: T | None = None
    unknown: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether the value was read."""
        return self.unknown is None

    @property
    def value(self) -> T:
        """The value; raises :class:`UnknownFactError` with the reason where there is none."""
        if self.unknown is not None:
            raise UnknownFactError(f"{self.how}: {self.unknown}")
        return cast("T", self.known_value)

    def then(self, convert: Callable[[T], R], otherwise: R) -> R:
        """Return ``convert`` of the value, or ``otherwise`` where it is unknown."""
        return otherwise if self.unknown is not None else convert(self.value)

    def or_else(self, otherwise: R) -> T | R:
        """Return the value, or ``otherwise`` where it is unknown."""
        return otherwise if self.unknown is not None else self.value


def fact_of(reader: Reader[T]) -> Reader[Fact[T]]:
    """Read a fact whose value is read with ``reader``."""

    def read_fact(table: Table) -> Fact[T]:
        how = table.get("how", text)
        if table.has("unknown"):
            return Fact(how=how, unknown=table.get("unknown", text))
        return Fact(how=how, known_value=table.get("value", reader))

    return table_of(read_fact)
