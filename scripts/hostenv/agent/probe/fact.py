"""A fact as JSON: a value with how it was read, or the reason why it is unknown."""

from __future__ import annotations

import os
import subprocess
from typing import Any, Callable, Dict

Json = Dict[str, Any]


class UnknownError(Exception):
    """A fact that cannot be read; its text is the reason, and ``how`` what was tried where that differs."""

    def __init__(self, reason: str, how: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.how = how


def known(value: Any, how: str) -> Json:
    """Return the fact that ``value`` holds, read from ``how``."""
    return {"value": value, "how": how}


def unknown(reason: str, how: str) -> Json:
    """Return the fact that nothing is known: never the same as an empty value."""
    return {"unknown": reason, "how": how}


def fact(how: str, read: Callable[..., Any], *arguments: Any) -> Json:
    """Call ``read`` and return what it says as a fact; what it cannot read becomes the reason.

    Only failures of reading are caught: a wrong answer of ours stays a bug with its traceback.
    """
    try:
        return known(read(*arguments), how)
    except UnknownError as error:
        return unknown(error.reason, error.how or how)
    except OSError as error:
        return unknown(reason_of(error), how)
    except (ValueError, subprocess.SubprocessError) as error:
        return unknown(f"not understood: {error}", how)


def reason_of(error: OSError) -> str:
    """Return an operating system error as a reason: what, and on which file."""
    what = os.strerror(error.errno) if error.errno else str(error)
    return f"{error.filename}: {what}" if error.filename else what
