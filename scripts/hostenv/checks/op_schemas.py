"""Rules on calls into kernels: Python sources against the operators, names and versions that are installed.

A source and a kernel that were released for each other call operators of other platforms behind conditions
that no syntax shows. So a missing operator is a fault only where the two were *not* released for each other
(the requirement is not met, or there is none), or where the source was changed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from hostenv.checks.finding import Severity
from hostenv.checks.judge import Rule
from hostenv.checks.metadata import satisfies
from hostenv.checks.op_signatures import Signature, signature
from hostenv.checks.record import Applied
from hostenv.checks.stack_tables import stack_tables
from hostenv.facts.distributions import Installed
from hostenv.facts.site import SiteFacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Facts
    from hostenv.checks.stack_tables import Namespace
    from hostenv.facts.operators import Call, Operators, SourceFacts

_SHOWN = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """What a kernel offers in one namespace. ``bare``: registered, with a schema that only run time knows."""

    namespace: Namespace
    signatures: Mapping[str, tuple[Signature, ...]]
    bare: frozenset[str]
    unread: Mapping[str, str]
    makers: str


class _Judged:
    """The facts, put in order once."""

    def __init__(self, facts: Facts) -> None:
        self.installed = facts[Installed]
        self.site = facts[SiteFacts]
        self.operators: Operators = self.site.operators
        applied = (facts.get(Applied) or Applied()).files
        self.changed = {
            self.installed.within_site(item.path)
            for each in self.installed.distributions
            for item in each.mismatched
        } | {path for path, digest in applied.items() if digest}

        self._apart: dict[str, str | None] = {}

    def sides(self) -> Iterator[Side]:
        """Yield each namespace that objects register in."""
        for namespace in stack_tables().namespaces:
            objects = self.operators.registered.get(namespace.name)
            if objects:
                found: dict[str, list[Signature]] = defaultdict(list)
                for registered in objects.values():
                    for text in registered.schemas:
                        item = signature(text)
                        if item is not None:
                            found[item.name].append(item)
                yield Side(
                    namespace=namespace,
                    signatures={name: tuple(items) for name, items in found.items()},
                    bare=frozenset(name for each in objects.values() for name in each.bare),
                    unread={path: each.unread for path, each in objects.items() if each.unread},
                    makers=" and ".join(self._versions(self.operators.makers)),
                )

    def why_apart(self, path: str, source: SourceFacts) -> str | None:
        """Say why source and kernel do not belong together; ``None`` where they were released together."""
        if path in self.changed:
            return f"{path} is not as {source.owner.replace('==', ' ')} shipped it"
        if source.owner not in self._apart:
            self._apart[source.owner] = self._unmet(source.owner)
        return self._apart[source.owner]

    def _unmet(self, released: str) -> str | None:
        """Say why a distribution (``name==version``) and the kernel were not released for each other."""
        owner = canonicalize_name(released.partition("==")[0])
        if owner in self.operators.makers:
            return None
        present = self.installed.by_name()
        for line in present[owner].requires if owner in present else ():
            try:
                requirement = Requirement(line)
            except InvalidRequirement:
                continue
            name = canonicalize_name(requirement.name)
            if name in self.operators.makers and name in present:
                version = present[name].version
                return None if satisfies(version, requirement) else f"{released} requires {requirement}"
        return f"{released.replace('==', ' ')} requires none of {', '.join(self.operators.makers)}"

    def _versions(self, names: tuple[str, ...]) -> list[str]:
        present = self.installed.by_name()
        found = [present[key] for name in names if (key := canonicalize_name(name)) in present]
        return [f"{each.name} {each.version}" for each in found]


def _operators(facts: Facts) -> Iterator[Finding]:
    judged = _Judged(facts)
    for side in judged.sides():
        for path, reason in side.unread.items():
            yield MISSING.finding(
                object=path, severity=Severity.UNKNOWN, message=f"its operators are not known: {reason}"
            )
        if side.unread:
            continue
        defined = {name for source in judged.operators.sources.values() for name in source.defines}
        known = {
            name.partition("::")[2]
            for name in defined
            if name.partition("::")[0] in {side.namespace.name, "*"}
        }
        for path, source in judged.operators.sources.items():
            calls = [
                call
                for call in source.calls
                if call.namespace == side.namespace.name and call.operator not in known
            ]
            why = judged.why_apart(path, source)
            yield from _missing(side, path, calls, why)
            yield from _refused(side, path, calls, why)
    for path, reason in judged.operators.unread.items():
        yield MISSING.finding(
            object=path, severity=Severity.UNKNOWN, message=f"its calls are not known: {reason}"
        )


def _missing(side: Side, path: str, calls: list[Call], why: str | None) -> Iterator[Finding]:
    for call in calls:
        name = call.operator
        if (
            why is None
            or name in side.signatures
            or name in side.bare
            or side.namespace.is_elsewhere(name, path)
        ):
            continue
        yield MISSING.finding(
            object=path,
            message=f"calls operators of torch.ops.{side.namespace.name} that {side.makers} does not "
            "register: "
            "AttributeError at the first call",
            evidence=(f"{path}:{call.line} calls {name}", why),
            fix="install the kernel that these sources were written for",
            cause=f"operators missing in {side.makers}",
        )


def _refused(side: Side, path: str, calls: list[Call], why: str | None) -> Iterator[Finding]:
    for call in calls:
        overloads = side.signatures.get(call.operator, ())
        if call.positional is None or not overloads or side.namespace.is_elsewhere(call.operator, path):
            continue
        refusals = [each.refuses(call.positional, call.keywords) for each in overloads]
        if all(refusals):
            yield ARGUMENTS.finding(
                object=path,
                severity=None if why else Severity.WARNING,
                message=f"calls {side.namespace.name}::{call.operator} with arguments that {side.makers} "
                "does not "
                "take: RuntimeError at the first call",
                evidence=(
                    f"{path}:{call.line}: {refusals[0]}",
                    f"registered: {overloads[0].text}",
                    *([why] if why else []),
                ),
                fix="install the kernel that these sources were written for",
            )


def _minimums(facts: Facts) -> Iterator[Finding]:
    judged = _Judged(facts)
    present = judged.installed.by_name()
    for path, source in judged.operators.sources.items():
        for stated in source.minimums:
            each = present.get(canonicalize_name(stated.subject))
            try:
                too_old = each is not None and Version(each.version) < Version(stated.value)
            except ValueError:
                continue
            if each is not None and too_old:
                yield MINIMUM.finding(
                    object=each.name,
                    message=f"{each.name} {each.version} is older than {stated.value}, which the code "
                    "demands when the "
                    "server starts",
                    evidence=(
                        f'{path}:{stated.line}: assert_pkg_version("{stated.subject}", "{stated.value}")',
                    ),
                    fix=f"install {each.name}>={stated.value}",
                )


def _names(facts: Facts) -> Iterator[Finding]:
    """Yield names imported from a kernel's package that it does not have."""
    judged = _Judged(facts)
    operators = judged.operators
    for path, source in operators.sources.items():
        why = judged.why_apart(path, source)
        for stated in source.names if why else ():
            package, _, rest = stated.subject.partition(".")
            exports = operators.exports.get(package)
            if (
                rest
                or exports is None
                or stated.value in exports
                or _is_module(operators, package, stated.value)
            ):
                continue
            yield NAMES.finding(
                object=path,
                message=f"imports names from {package} that the installed one has not: ImportError when "
                "it is imported",
                evidence=(f"{path}:{stated.line}: from {package} import {stated.value}", why or ""),
                fix="install the kernel that these sources were written for",
                cause=f"names missing in {package}",
            )


def _is_module(operators: Operators, package: str, name: str) -> bool:
    return f"{package}/{name}.py" in operators.modules or f"{package}/{name}/__init__.py" in operators.modules


MISSING = Rule(
    id="operator-missing",
    severity=Severity.ERROR,
    kind="K57",
    reference="https://github.com/sgl-project/sglang/issues/27654",
    check=_operators,
)
ARGUMENTS = Rule(
    id="operator-arguments",
    severity=Severity.ERROR,
    kind="K57",
    reference="torch/csrc/jit/python/pybind_utils.h: createStackForSchema",
    check=lambda _: (),
)
"""Found beside the missing ones."""
MINIMUM = Rule(
    id="kernel-too-old",
    severity=Severity.ERROR,
    kind="K47",
    reference="https://github.com/sgl-project/sglang/issues/11242",
    check=_minimums,
)
NAMES = Rule(
    id="kernel-name-missing",
    severity=Severity.ERROR,
    kind="K47",
    reference="https://github.com/sgl-project/sglang/issues/14327",
    check=_names,
)

RULES = (MISSING, ARGUMENTS, MINIMUM, NAMES)
