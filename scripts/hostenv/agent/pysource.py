"""What Python sources say of native code, read by their syntax: calls of operators, versions, imported names.

Nothing is imported or run. A call that its own code guards (``try … except AttributeError``, ``if
hasattr(torch.ops.…)``) is left out: its author knows that the operator may be missing.
"""

from __future__ import annotations

import ast
import bisect
import functools
import re
from typing import Any, Dict, FrozenSet, Iterable, List, Optional, Pattern, Set, Tuple, Union

from hostenv.agent import regular

_LARGEST = 16 << 20
_LENGTHS = (4, 5)
"""Parts of ``torch.ops.NS.OP`` and of ``torch.ops.NS.OP.overload``."""
_GUARDS = frozenset({"AttributeError", "RuntimeError", "Exception", "BaseException", "ImportError"})
_QUALIFIED = re.compile(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)\Z")
_SCHEMA_NAME = re.compile(r"\s*(?:([A-Za-z_]\w*)::)?([A-Za-z_]\w*)\s*\(")

Source = Dict[str, Any]


def read(path: str, namespaces: Iterable[str], kernels: Iterable[str]) -> Union[Source, str, None]:
    """Return what one file says; ``None`` where it says nothing of the kind, a text where it cannot be read.

    ``calls``: ``[namespace, operator, line, positional, keywords]`` of every call of ``torch.ops.NS.OP`` with
    NS in ``namespaces``; ``positional`` is ``None`` for a mere reference, or where ``*`` or ``**`` hide the
    arguments. ``defines``: ``NS::OP`` that Python itself registers. ``minimums``: ``[distribution, version,
    line]`` of ``assert_pkg_version``. ``names``: ``[module, name, line]`` imported from ``kernels`` at the
    top of the file.
    """
    spaces, packages = tuple(namespaces), tuple(kernels)
    try:
        content = regular.read(path, _LARGEST + 1)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if len(content) > _LARGEST:
        return "is too large to be parsed"
    lines = _mentions(content, spaces, packages)
    if not lines:
        return None
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"cannot be parsed: {error}"
    visitor = _Visitor(frozenset(spaces), frozenset(packages), lines)
    try:
        visitor.visit(tree)
    except RecursionError:
        return "cannot be parsed: it is nested too deeply"
    said = {
        "calls": visitor.calls,
        "defines": sorted(visitor.defines),
        "minimums": visitor.minimums,
        "names": visitor.names,
    }
    return said if any(said.values()) else None


def _mentions(content: bytes, namespaces: Tuple[str, ...], kernels: Tuple[str, ...]) -> List[int]:
    """Return the numbers of the lines that may say something; without one a file is not worth parsing.

    Names are looked for first, for most files hold none: that is several times quicker than one expression.
    """
    words, wanted = _wanted(namespaces, kernels)
    if not any(word in content for word in words):
        return []
    if b"\r" in content:  # as Python itself counts lines
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    found: List[int] = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if any(word in line for word in words) and wanted.search(line):
            found.append(number)
    return found


@functools.lru_cache(maxsize=8)
def _wanted(
    namespaces: Tuple[str, ...], kernels: Tuple[str, ...]
) -> Tuple[Tuple[bytes, ...], Pattern[bytes]]:
    """Return words of which a line holds one, and what it then says."""
    spaces = "|".join(map(re.escape, namespaces)) or r"(?!)"
    packages = "|".join(map(re.escape, kernels)) or r"(?!)"
    wanted = (
        rf"assert_pkg_version\(|\bfrom\s+(?:{packages})\b|torch\.ops\.(?:{spaces})\b"
        rf"|[\"'](?:{spaces})(?:::|[\"'])"
    )
    words = dict.fromkeys(("assert_pkg_version(", *namespaces, *kernels))
    return tuple(word.encode() for word in words), re.compile(wanted.encode())


def exports(path: str) -> Optional[List[str]]:
    """Return the names that a module binds at its top; ``None`` where that cannot be told.

    It cannot be told of a file that does not parse, imports ``*`` or has a ``__getattr__``.
    """
    try:
        tree = ast.parse(regular.read(path, _LARGEST))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    found: Set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return None if found & {"*", "__getattr__"} else sorted(found)


class _Visitor(ast.NodeVisitor):
    """Gathers what one file says; goes only into statements that hold one of ``lines``."""

    def __init__(self, namespaces: FrozenSet[str], kernels: FrozenSet[str], lines: List[int]) -> None:
        self._lines = lines
        self.calls: List[List[Any]] = []
        self.defines: Set[str] = set()
        self.minimums: List[List[Any]] = []
        self.names: List[List[Any]] = []
        self._namespaces = namespaces
        self._kernels = kernels
        self._guarded = 0
        self._inside = 0
        self._seen: Set[int] = set()

    def visit(self, node: ast.AST) -> None:
        """Visit a node, unless it is a statement in which nothing is mentioned."""
        if isinstance(node, ast.stmt):
            place = bisect.bisect_left(self._lines, node.lineno)
            end = node.end_lineno or node.lineno
            if place == len(self._lines) or self._lines[place] > end:
                return
        super().visit(node)

    def visit_Try(self, node: ast.Try) -> None:
        """Go through a ``try``: its body is guarded where a handler takes what a missing name raises."""
        guards = any(_catches(handler) for handler in node.handlers)
        self._guarded += guards
        for each in node.body:
            self.visit(each)
        self._guarded -= guards
        for part in (*node.handlers, *node.orelse, *node.finalbody):
            self.visit(part)

    def visit_If(self, node: ast.If) -> None:
        """Go through an ``if``: a test for the operator guards both branches."""
        guards = any(isinstance(each, ast.Name) and each.id == "hasattr" for each in ast.walk(node.test))
        self._guarded += guards
        self.generic_visit(node)
        self._guarded -= guards

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Go into a function: what it imports is imported when it is called."""
        self._inside += 1
        self.generic_visit(node)
        self._inside -= 1

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Go into a coroutine, as into a function."""
        self._inside += 1
        self.generic_visit(node)
        self._inside -= 1

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Note the names imported from a kernel's package when the file itself is imported."""
        module = node.module or ""
        if node.level == 0 and module.partition(".")[0] in self._kernels and not self._guarded + self._inside:
            self.names += [[module, alias.name, node.lineno] for alias in node.names if alias.name != "*"]

    def visit_Call(self, node: ast.Call) -> None:
        """Note calls of operators, what Python registers, and stated minimum versions."""
        operator = self._operator(node.func)
        if operator:
            self._seen.add(id(node.func))
            if isinstance(node.func, ast.Attribute):
                self._seen.add(id(node.func.value))
            if not self._guarded:
                self.calls.append([*operator, node.lineno, *_arguments(node)])
        name = _last(node.func)
        first = _text(node.args[0]) if node.args else None
        if name == "assert_pkg_version" and len(node.args) > 1 and first and _text(node.args[1]):
            self.minimums.append([first, _text(node.args[1]), node.lineno])
        elif name in {"custom_op", "define", "register_custom_op", "impl"} and first:
            self._define(first)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Note an operator that is taken without being called."""
        if id(node) not in self._seen:
            operator = self._operator(node)
            if operator:
                self._seen.add(id(node.value))
                if not self._guarded:
                    self.calls.append([*operator, node.lineno, None, []])
        self.generic_visit(node)

    def _define(self, stated: str) -> None:
        qualified = _QUALIFIED.match(stated) or _SCHEMA_NAME.match(stated)
        if qualified:
            self.defines.add(f"{qualified.group(1) or '*'}::{qualified.group(2)}")

    def _operator(self, node: ast.AST) -> Optional[Tuple[str, str]]:
        """Return (namespace, operator) of ``torch.ops.NS.OP`` or of one of its overloads."""
        parts = _dotted(node)
        if (
            parts
            and parts[:2] == ["torch", "ops"]
            and len(parts) in _LENGTHS
            and parts[2] in self._namespaces
        ):
            return parts[2], parts[3]
        return None


def _dotted(node: ast.AST) -> Optional[List[str]]:
    parts: List[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return [*parts, node.id][::-1]


def _arguments(node: ast.Call) -> Tuple[Optional[int], List[str]]:
    keywords = [keyword.arg for keyword in node.keywords]
    if None in keywords or any(isinstance(each, ast.Starred) for each in node.args):
        return None, []
    return len(node.args), [each for each in keywords if each is not None]


def _catches(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(_last(each) in _GUARDS for each in types)


def _last(node: ast.AST) -> Optional[str]:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def _text(node: ast.AST) -> Optional[str]:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
