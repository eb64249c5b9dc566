"""C++ names as their authors wrote them: the demangler of this machine's C++ runtime."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools

_NAME = "__cxa_demangle"
"""Itanium C++ ABI, section 3.4."""


def demangle(symbol: str) -> str | None:
    """Return the C++ declaration of an Itanium-mangled name; ``None`` for a C name.

    ``None``, too, where this machine has no libstdc++ (``__cxa_demangle``): the mangled name must do.
    """
    library = _runtime()
    if library is None or not symbol.startswith("_Z"):
        return None
    status = ctypes.c_int(-1)
    text = library[_NAME](symbol.encode(), None, None, ctypes.byref(status))
    if status.value or not text:
        return None
    try:
        return ctypes.string_at(text).decode(errors="replace")
    finally:
        _c().free(ctypes.c_void_p(text))


def shown(symbol: str) -> str:
    """Return a symbol for a reader: demangled beside the mangled form.

    >>> shown("cuInit")
    'cuInit'
    """
    readable = demangle(symbol)
    return f"{readable} [{symbol}]" if readable else symbol


@functools.cache
def _runtime() -> ctypes.CDLL | None:
    for name in ("libstdc++.so.6", "libc++abi.so.1", "libc++.1.dylib"):
        try:
            library = ctypes.CDLL(name)
            library[_NAME].restype = ctypes.c_void_p
        except (OSError, AttributeError):
            continue
        return library
    return None


@functools.cache
def _c() -> ctypes.CDLL:
    return ctypes.CDLL(None)
