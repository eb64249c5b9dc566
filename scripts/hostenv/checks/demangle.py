"""C++ names as their authors wrote them: the demangler of this machine's C++ runtime."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME = "__cxa_demangle"
"""Itanium C++ ABI, section 3.4."""


_LONGEST = 1 << 14
"""Bytes of a name beyond which it is shown as it is."""


def demangle(symbol: str) -> str | None:
    """Return the C++ declaration of an Itanium-mangled name; ``None`` for a C name.

    ``None``, too, where this machine has no C++ runtime that can tell: the mangled name must do.
    """
    runtime = _runtime()
    if runtime is None or not symbol.startswith("_Z") or len(symbol) > _LONGEST:
        return None
    status = ctypes.c_int(-1)
    text = runtime(symbol.encode(), None, None, ctypes.byref(status))
    if status.value or not text:
        return None
    try:
        return ctypes.string_at(text).decode(errors="replace")
    finally:
        _free()(text)


def shown(symbol: str) -> str:
    """Return a symbol for a reader: demangled beside the mangled form.

    >>> shown("cuInit")
    'cuInit'
    """
    readable = demangle(symbol)
    return f"{readable} [{symbol}]" if readable else symbol


@functools.cache
def _runtime() -> Callable[..., int | None] | None:
    for name in ("libstdc++.so.6", "libc++abi.so.1", "libc++.1.dylib"):
        try:
            function = ctypes.CDLL(name)[_NAME]
        except (OSError, AttributeError):
            continue
        function.restype = ctypes.c_void_p
        return function
    return None


@functools.cache
def _free() -> Callable[[int], None]:
    function = ctypes.CDLL(None).free
    function.argtypes, function.restype = (ctypes.c_void_p,), None
    return function
