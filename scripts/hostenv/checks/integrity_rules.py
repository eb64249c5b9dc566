"""Rules on the files themselves: whose they are, whether they are whole, who else has them open.

RECORD's own rules are in :mod:`hostenv.checks.record`.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from hostenv.agent.amounts import counted, processes
from hostenv.checks.finding import Severity
from hostenv.checks.judge import Rule
from hostenv.checks.mending import anew
from hostenv.checks.metadata import Wanted, demands
from hostenv.checks.stack_tables import stack_tables
from hostenv.facts.distributions import Installed
from hostenv.facts.host import HostFacts
from hostenv.facts.site import LiveFacts, SiteFacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from packaging.utils import NormalizedName

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Facts
    from hostenv.facts.distributions import Conflict
    from hostenv.facts.site import ObjectFile

_SHOWN = 6
_VALID = re.compile(r"\.so(?:\.\d+)*\Z")
_NVIDIA = re.compile(r"nvidia/.*")
_WITHOUT = "uv pip uninstall {loser} && uv pip install --reinstall {winner}, with that environment active"


def _owners(facts: Facts) -> Iterator[Finding]:
    """Yield contested paths that hold the bytes of an owner that nobody requires, pair by pair."""
    installed = facts[Installed]
    groups: dict[tuple[str, ...], list[Conflict]] = defaultdict(list)
    for conflict in installed.conflicts:
        if "/" in installed.within_site(conflict.path):
            groups[tuple(sorted(conflict.claims))].append(conflict)
    required = _required(installed, facts.get(Wanted) or Wanted()) if groups else {}
    for owners, contested in groups.items():
        wanted = [each for each in owners if _name(each) in required]
        if wanted and len(wanted) < len(owners):
            yield from _wrong(facts, contested, wanted, required)
        else:
            yield from _mixed(facts, owners, contested)


def _required(installed: Installed, wanted: Wanted) -> Mapping[NormalizedName, str]:
    """Return the names that somebody requires, each with who does."""
    markers = installed.tree.interpreter.markers() or {}
    return (
        {demand.name: demand.line for demand in demands(installed, wanted, markers).held} if markers else {}
    )


def _name(owner: str) -> NormalizedName:
    return canonicalize_name(owner.partition("==")[0])


def _wrong(
    facts: Facts,
    contested: Sequence[Conflict],
    wanted: Sequence[str],
    required: Mapping[NormalizedName, str],
) -> Iterator[Finding]:
    installed = facts[Installed]
    bad = [item for item in contested if item.holders and not set(item.holders) & set(wanted)]
    if not bad:
        return
    first = max(bad, key=lambda item: item.path.endswith((".so", ".so.2")))
    holder, path = first.holders[0], installed.within_site(first.path)
    rule = LIBRARY_OWNER if _NVIDIA.fullmatch(path) else PACKAGE_OWNER
    yield rule.finding(
        object=path,
        message=f"has the bytes of {_worded(holder)}, installed over those of {_worded(wanted[0])}, "
        "which is the "
        "one that is required: what was built for the required one fails when it loads or calls it",
        evidence=[
            required[_name(wanted[0])],
            f"nobody requires {_worded(holder)}",
            *(
                f"{installed.within_site(item.path)}: has the bytes of {item.holders[0]}"
                for item in bad[:_SHOWN]
            ),
            *([f"and {len(bad) - _SHOWN} more"] if len(bad) > _SHOWN else []),
        ],
        fix=anew(
            facts,
            also=f"; to be rid of {_name(holder)}, name it in excludes",
            otherwise=_WITHOUT.format(loser=_name(holder), winner=_pinned(wanted[0])),
        ),
    )


def _mixed(facts: Facts, owners: Sequence[str], contested: Sequence[Conflict]) -> Iterator[Finding]:
    """Say where some files of a package are one owner's and some the other's."""
    installed = facts[Installed]
    by_holder: dict[str, list[str]] = defaultdict(list)
    for item in contested:
        if len(item.holders) == 1:
            by_holder[item.holders[0]].append(installed.within_site(item.path))
    packages = [{path.partition("/")[0] for path in paths} for paths in by_holder.values()]
    if len(packages) > 1 and set.intersection(*packages):
        some = [f"{paths[0]} and {len(paths) - 1} more are {holder}'s" for holder, paths in by_holder.items()]
        yield PACKAGE_OWNER.finding(
            object=next(iter(set.intersection(*packages))),
            message=f"is a mixture of {' and '.join(map(_worded, owners))}: neither works",
            evidence=some,
            fix=anew(
                facts,
                also=f"; to be rid of {_name(owners[0])}, name it in excludes",
                otherwise=_WITHOUT.format(loser=_name(owners[0]), winner=_pinned(owners[-1])),
            ),
        )


def _worded(owner: str) -> str:
    return owner.replace("==", " ")


def _pinned(owner: str) -> str:
    return owner


def _hard_links(facts: Facts) -> Iterator[Finding]:
    site = facts[SiteFacts]
    links = site.hard_links
    for path in links.changed:
        yield POISONED.finding(
            object=site.within(path),
            message="was edited in place and shares its inode with other names: uv's cache, or another "
            "environment, has the same edit",
            evidence=(f"{path}: more than one hard link, and not what RECORD says",),
            fix="write beside it and rename; uv cache clean NAME, then install with UV_LINK_MODE=copy",
        )
    if links.shared:
        yield LINKED.finding(
            object=site.path,
            message=f"{links.shared} of {links.of} files are hard links, as uv makes them: an edit in place "
            "changes uv's cache and every environment made from it",
            fix="patch by write and rename, or install with UV_LINK_MODE=copy",
        )


def _damage(facts: Facts) -> Iterator[Finding]:
    site = facts[SiteFacts]
    for path in site.pointers:
        yield POINTER.finding(
            object=site.within(path),
            message="is a pointer of Git LFS, not the file: whatever opens it fails",
            fix="git lfs pull where it was copied from, then copy it again; or install its distribution "
            "again",
        )
    for path in site.lost_bits:
        is_script = path.startswith("bin/") and posixpath.basename(path) != "ninja"
        yield BITS.finding(
            object=path if path.startswith("bin/") else site.within(path),
            severity=Severity.WARNING if is_script else None,
            message="is a program without an x bit: starting it fails with Permission denied",
            fix=f"chmod a+x {path} (the copy lost modes: CIFS, exFAT or a zip without them)",
        )
    for path in site.dangling:
        yield DANGLING.finding(
            object=path,
            message="is a link that leads to nothing",
            fix="copy links as links (rsync -a, tar), or build the environment anew",
        )


def _noexec(facts: Facts) -> Iterator[Finding]:
    live = facts[LiveFacts]
    if live.noexec:
        yield NOEXEC.finding(
            object=live.venv,
            message="lies on a filesystem that is mounted noexec: no object of it can be mapped, no "
            "program run",
            evidence=("statvfs: ST_NOEXEC",),
            fix="put it on another filesystem, or remount without noexec",
        )


def _globs(facts: Facts) -> Iterator[Finding]:
    """Yield folders in which a loader's glob finds more than its one object."""
    site = facts[SiteFacts]
    named = {site.within(each.path): each for each in site.objects}
    for loader in stack_tables().loaders:
        folders: dict[str, list[str]] = defaultdict(list)
        for path in named:
            found = loader.takes.fullmatch(path)
            if found:
                folders[next(group for group in found.groups() if group)].append(path)
        for paths in folders.values():
            if len(paths) > 1 or not _VALID.search(paths[0]):
                stray = next(
                    (path for path in paths if not _VALID.search(path) or not named[path].owners), paths[-1]
                )
                yield GLOBBED.finding(
                    object=stray,
                    message=f"{loader.package}'s loader takes whichever of {len(paths)} files its glob "
                    "finds first, "
                    "and fails at import if it is this one",
                    evidence=(*(f"the glob takes {path}" for path in sorted(paths)), loader.source),
                    fix="move it out of the package's folder",
                )


def _strays(facts: Facts) -> Iterator[Finding]:
    site = facts[SiteFacts]
    loaders = stack_tables().loaders
    strays: list[ObjectFile] = [
        each
        for each in site.objects
        if not each.owners
        and not _VALID.search(each.name)
        and not any(loader.takes.fullmatch(site.within(each.path)) for loader in loaders)
    ]
    for each in strays:
        yield STRAY.finding(
            object=site.within(each.path),
            message="is a copy of an object under another name, and nobody's: a loader that globs may "
            "take it",
            fix="move it out of the environment",
        )


def _replaced(facts: Facts) -> Iterator[Finding]:
    live = facts[LiveFacts]
    for each in live.processes:
        yield REPLACED.finding(
            object=f"process {each.pid}",
            message=f"{each.name} (pid {each.pid}) runs {counted(each.count, 'file')} replaced since: "
            "what it loads later comes from the new ones",
            evidence=[f"{path} (deleted)" for path in each.paths],
            fix="restart it; never copy over a file in place, which would have ended it with SIGBUS",
        )
    if live.hidden:
        yield REPLACED.finding(
            object="processes",
            severity=Severity.UNKNOWN,
            message=f"{processes(live.hidden)} may not be looked into: whether replaced files run there is "
            "not known",
            fix=_who_sees_all(facts),
        )


def _who_sees_all(facts: Facts) -> str:
    host = facts.get(HostFacts)
    if host and host.identity.user.is_known and host.identity.user.value.uid == 0:
        return (
            "root sees all but where a container or a security module keeps it: look from the machine itself"
        )
    return "run as the service's user, or as root"


_RECORDED = "https://packaging.python.org/en/latest/specifications/recording-installed-packages/"
LIBRARY_OWNER = Rule(
    id="library-of-wrong-owner",
    severity=Severity.ERROR,
    kind="K09",
    reference="https://github.com/astral-sh/uv/issues/15238",
    check=_owners,
)
PACKAGE_OWNER = Rule(
    id="package-of-wrong-owner",
    severity=Severity.ERROR,
    kind="K10",
    reference=LIBRARY_OWNER.reference,
    check=lambda _: (),
)
"""Found beside the libraries."""
POISONED = Rule(
    id="hard-link-edited",
    severity=Severity.ERROR,
    kind="K51",
    reference="https://github.com/astral-sh/uv/issues/10579",
    check=_hard_links,
)
LINKED = Rule(
    id="hard-links", severity=Severity.NOTE, kind="K51", reference=POISONED.reference, check=lambda _: ()
)
"""Found beside the edited ones."""
POINTER = Rule(
    id="lfs-pointer",
    severity=Severity.ERROR,
    kind="K53",
    reference="https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md",
    check=_damage,
)
BITS = Rule(
    id="program-not-executable",
    severity=Severity.ERROR,
    kind="K53",
    reference="https://github.com/pytorch/pytorch/issues/123054",
    check=lambda _: (),
)
"""Found beside the pointers, as are dangling links."""
DANGLING = Rule(
    id="link-dangling", severity=Severity.WARNING, kind="K53", reference=BITS.reference, check=lambda _: ()
)
NOEXEC = Rule(
    id="mounted-noexec", severity=Severity.ERROR, kind="K53", reference="mount(8): noexec", check=_noexec
)
GLOBBED = Rule(
    id="loader-takes-stray",
    severity=Severity.ERROR,
    kind="K58",
    reference="sgl_kernel/load_utils.py",
    check=_globs,
)
STRAY = Rule(
    id="object-copy-stray", severity=Severity.WARNING, kind="K58", reference=_RECORDED, check=_strays
)
REPLACED = Rule(
    id="process-runs-replaced-files",
    severity=Severity.WARNING,
    kind="K54",
    reference="https://github.com/vllm-project/vllm/issues/13040",
    check=_replaced,
)

RULES = (
    LIBRARY_OWNER,
    PACKAGE_OWNER,
    POISONED,
    LINKED,
    POINTER,
    BITS,
    DANGLING,
    NOEXEC,
    GLOBBED,
    STRAY,
    REPLACED,
)
