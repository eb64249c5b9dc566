"""Everything that an operator can be told instead of a result."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """Why a session did not do what it was asked; the JSON output tells them apart."""

    INPUT = "input"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    FAILED = "failed"
    CHECKS = "checks"
    PARTIAL = "partial"


class HostenvError(Exception):
    """Work that cannot be done: one message (what, where) and, where known, what to do now.

    The only root of errors that reach an operator. Anything else that escapes a workflow is a bug and
    keeps its traceback.
    """

    outcome = Outcome.FAILED

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  → {self.hint}" if self.hint else self.message


class InputError(HostenvError):
    """A command line or a file of this repository is wrong."""

    outcome = Outcome.INPUT


class RefusedError(HostenvError):
    """The work was understood and is not allowed as things stand: nothing was changed."""

    outcome = Outcome.REFUSED


class UnreachableError(HostenvError):
    """A host could not be reached, or stopped answering."""

    outcome = Outcome.UNREACHABLE


class SupplyError(HostenvError):
    """Wheels could not be had, or are not the bytes that the lock names."""


class PatchError(HostenvError):
    """A series is malformed or does not apply exactly; nothing was written."""


class HostError(HostenvError):
    """A step failed on the host; the current environment is what it was."""


class BugError(HostenvError):
    """An exception that is hostenv's own fault, as the result of the host where it happened.

    So no other host's result is lost. ``bug`` is what was raised; a session raises it, with its traceback,
    once all results are shown.
    """

    def __init__(self, host: str, bug: BaseException) -> None:
        told = f"{type(bug).__name__}: {bug}".rstrip(": ").splitlines()[-1]
        super().__init__(f"{host}: hostenv has a bug: {told}", hint="its traceback comes last")
        bug.add_note(f"while working on {host}")
        self.bug = bug


class CheckError(HostenvError):
    """The work was done and a gate did not pass; the findings say why."""

    outcome = Outcome.CHECKS
