"""Rules on shared objects: which of those that do not load are faults, and of what kind.

Not every object that does not load is at fault: alternatives of which one is picked, plugins that nobody
asks for, libraries that load where they are needed (``data/objects.toml`` and the rules below). What is left
is: a missing library, version or symbol ends the import of its package, at that moment.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hostenv.checks.finding import Severity
from hostenv.checks.judge import Rule
from hostenv.checks.object_faults import Fault, cause_of, wants_torch
from hostenv.checks.object_tables import Picks, object_tables
from hostenv.facts.gpu_code import GpuTargets
from hostenv.facts.objects import LoadFacts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Facts
    from hostenv.checks.object_tables import Group
    from hostenv.facts.objects import SharedObject

_ABI_TAG = re.compile(r"\.(cpython-\d+\w*|pypy\w+)-[^/]*\.so\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sorted:
    """The objects that do not load (or may not), by what that means."""

    faults: tuple[SharedObject, ...]
    notes: Mapping[str, tuple[SharedObject, ...]]
    picks: tuple[tuple[Group, tuple[SharedObject, ...]], ...]


def sorted_out(facts: LoadFacts, capabilities: Iterable[str] = ()) -> Sorted:
    """Sort the objects of which the loader says no, or may.

    ``capabilities`` are those of the host's GPUs (``9.0``); none: not known, every variant counts as picked.
    """
    tables = object_tables()
    faults: list[SharedObject] = []
    notes: dict[str, list[SharedObject]] = defaultdict(list)
    members: dict[str, list[SharedObject]] = defaultdict(list)
    content = _loaded_by(facts)
    for item in facts.objects:
        group = tables.group_of(item.path)
        if group is not None:
            members[group.objects.pattern].append(item)
            continue
        if item.verdict.loads is True:
            continue
        why = _excuse(item, facts, content)
        if why is None:
            faults.append(item)
        else:
            notes[why].append(item)
    picks = []
    for group in tables.groups:
        picked = _picked(group, members[group.objects.pattern], facts, capabilities)
        if picked is not None:
            picks.append((group, picked))
    return Sorted(
        faults=tuple(faults),
        notes={why: tuple(items) for why, items in notes.items()},
        picks=tuple(picks),
    )


def _loaded_by(facts: LoadFacts) -> frozenset[str]:
    """Return the names that objects which load need: those libraries load where they are needed."""
    return frozenset(name for item in facts.objects if item.verdict.loads for name in item.needed)


def _excuse(item: SharedObject, facts: LoadFacts, content: frozenset[str]) -> str | None:
    tag = _ABI_TAG.search(item.path)
    if tag and not _fits(tag[1], facts):
        return f"an extension for {tag[1]}: the interpreter here does not import it"
    if item.name in content and item.verdict.requirer is not None:
        return "loads where another object needs it: only opened by itself it does not"
    for optional in object_tables().optional:
        if optional.excuses(item.path, item.verdict.missing_library or _unsaved(item)):
            return optional.why
    return None


def _unsaved(item: SharedObject) -> str | None:
    """Return the library whose symbols were not saved, where that is what is not known."""
    found = re.search(r" may be in (?:\S*/)?(\S+)\Z", item.verdict.unknown or "")
    return found[1] if found else None


def _fits(tag: str, facts: LoadFacts) -> bool:
    folder = re.search(r"/python(\d)\.(\d+)/site-packages\Z", facts.site)
    return folder is None or tag == f"cpython-{folder[1]}{folder[2]}"


def _picked(
    group: Group, members: list[SharedObject], facts: LoadFacts, capabilities: Iterable[str]
) -> tuple[SharedObject, ...] | None:
    """Return the members that the package's loader would take; ``None`` where the group is not here."""
    if not members:
        return None
    if group.picks is Picks.FIRST:
        return tuple(members)
    wanted = _keys(group, facts, capabilities)
    if wanted is None or not any(group.key(item.path) for item in members):
        return tuple(members)
    return tuple(item for item in members if group.key(item.path) in wanted)


def _keys(group: Group, facts: LoadFacts, capabilities: Iterable[str]) -> frozenset[str] | None:
    """Return which alternatives are taken; ``None`` where the fact that decides is not known."""
    if group.picks is Picks.CAPABILITY:
        chosen = {group.capabilities.get(each, group.capabilities["*"]) for each in capabilities}
        return frozenset(chosen) or None
    if group.picks is Picks.CUDA:
        return frozenset({facts.cuda.partition(".")[0]}) if facts.cuda else None
    release = re.match(r"(\d+)\.(\d+)", facts.installed.get("torch", ""))
    return frozenset({release[1] + release[2]}) if release else None


def _sorted(facts: Facts) -> tuple[LoadFacts, Sorted]:
    loads = facts[LoadFacts]
    targets = facts.get(GpuTargets)
    known = [str(gpu.compute_capability) for gpu in targets.gpus if gpu.compute_capability] if targets else []
    return loads, sorted_out(loads, known)


def _faults(facts: Facts) -> Iterator[Finding]:
    """Yield every fault as a finding of the rule of its kind."""
    loads, found = _sorted(facts)
    faults = [
        Fault(path=item.path, load=item.verdict, facts=loads, machine=item.machine) for item in found.faults
    ]
    if loads.preload is not None and loads.preload.loads is not True:
        # What wants torch's symbols then only shows that torch is not there.
        lost = tuple(fault.path for fault in faults if wants_torch(fault))
        faults = [fault for fault in faults if fault.path not in lost]
        fault = Fault(path=loads.package, load=loads.preload, facts=loads)
        yield replace(_finding(fault, f"`import {loads.package}` fails, and with it every server"), also=lost)
    for fault in faults:
        yield _finding(fault, f"{_importing(fault)} when it is imported")
    for group, picked in found.picks:
        yield from _group(group, picked, loads)


def _group(group: Group, picked: tuple[SharedObject, ...], loads: LoadFacts) -> Iterator[Finding]:
    failing = [item for item in picked if item.verdict.loads is not True]
    if group.picks is Picks.FIRST and len(failing) < len(picked):
        return
    if group.picks is Picks.FIRST or not picked:
        yield _BY_KIND[None].finding(
            object=picked[0].path if picked else group.distribution,
            severity=group.none,
            message=group.why,
            evidence=tuple(
                f"{item.path}: {item.verdict.text or item.verdict.unknown}" for item in failing[:3]
            ),
            fix=group.fix,
        )
        return
    for item in failing:
        fault = Fault(path=item.path, load=item.verdict, facts=loads, machine=item.machine)
        yield _finding(fault, f"{_importing(fault)} when it is imported: this is the variant it takes here")


def _finding(fault: Fault, consequence: str) -> Finding:
    cause = cause_of(fault)
    severity = Severity.UNKNOWN if fault.load.loads is None else Severity.ERROR
    return _BY_KIND[cause.kind].finding(
        object=fault.path,
        severity=severity,
        message=f"{cause.what}: {consequence}",
        evidence=cause.evidence,
        fix=cause.fix,
        cause=f"loading {severity} {cause.key}",
    )


def _importing(fault: Fault) -> str:
    return f"{fault.owner or fault.path.partition('/')[0]} fails"


def _notes(facts: Facts) -> Iterator[Finding]:
    _, found = _sorted(facts)
    for why, items in found.notes.items():
        for item in items:
            yield SPARE.finding(
                object=item.path, message=why, evidence=(str(item.verdict.text or item.verdict.unknown),)
            )


def _not_objects(facts: Facts) -> Iterator[Finding]:
    for item in facts[LoadFacts].objects:
        if item.short and item.verdict.loads:
            yield STRANGE.finding(
                object=item.path,
                message="is cut short: it loads, and kills the process when the missing part is used",
                evidence=(f"{item.path}: {item.short} bytes of its segments are not there",),
                fix="install its distribution again",
            )
    for path, why in facts[LoadFacts].not_objects.items():
        yield STRANGE.finding(
            object=path,
            message="has a shared object's name and is none: whatever opens it fails",
            evidence=(why,),
            fix="install its distribution again",
        )


_LOADER = "glibc, elf/dl-open.c: dlopen(3) with RTLD_NOW, as CPython's import does"
_KINDS = {
    "K01": "kernel-for-another-torch",
    "K02": "extension-for-another-torch",
    "K03": "extension-old-string-abi",
    "K05": "cuda-library-other-major",
    "K08": "torch-library-missing",
    "K09": "nccl-too-old",
    "K12": "library-shadowed",
    "K14": "glibc-too-old",
    "K15": "libstdcxx-too-old",
    "K16": "executable-stack",
    "K18": "system-library-missing",
    "K19": "nvidia-library-missing",
    "K27": "driver-library-missing",
    "K28": "driver-symbol-missing",
    "K46": "extension-for-another-python",
    "K53": "object-damaged",
    "K56": "object-for-another-machine",
    None: "object-does-not-load",
}


def _rule(kind: str | None, name: str) -> Rule:
    def check(facts: Facts) -> Iterator[Finding]:
        return (finding for finding in _faults(facts) if finding.rule == name)

    return Rule(id=name, severity=Severity.ERROR, kind=kind, reference=_LOADER, check=check)


_BY_KIND = {kind: _rule(kind, name) for kind, name in _KINDS.items()}


def rule_of(kind: str | None) -> Rule:
    """Return the rule of a kind of the catalogue, for who judges objects before there is a build."""
    return _BY_KIND[kind]


SPARE = Rule(
    id="object-not-used-here",
    severity=Severity.NOTE,
    reference="the packages' own loaders: checks/data/objects.toml",
    check=_notes,
)
STRANGE = Rule(
    id="object-malformed",
    severity=Severity.ERROR,
    kind="K53",
    reference="glibc, elf/dl-load.c: open_verify",
    check=_not_objects,
)
RULES = (*_BY_KIND.values(), STRANGE, SPARE)
