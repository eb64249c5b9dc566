"""Rules on what Python itself finds: its interpreter, its paths, which of two modules, which bytecode."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from hostenv.agent.amounts import counted
from hostenv.checks.finding import Severity
from hostenv.checks.judge import Rule
from hostenv.checks.record import Applied
from hostenv.facts.distributions import Installed
from hostenv.facts.site import LiveFacts, SiteFacts
from hostenv.facts.surroundings import ServiceSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Facts
    from hostenv.facts.site import ObjectFile

_TAGGED = re.compile(r"\.(?:cpython-(\d+)\w*|pypy\w+)-[^/]*\.so\Z")
_SHOWN = 6
_CHANGES_PATH = {
    "PYTHONPATH": "comes before everything in the environment",
    "PYTHONHOME": "replaces the interpreter's own library",
    "PYTHONUSERBASE": "moves the user's own site",
    "PYTHONPYCACHEPREFIX": "makes Python take bytecode from another place",
}


def _mislabelled(facts: Facts) -> Iterator[Finding]:
    """Yield extensions whose name excludes them from this interpreter, where no other stands in."""
    site, installed = facts[SiteFacts], facts[Installed]
    here = (installed.tree.interpreter.python or "").replace(".", "")
    stems: dict[str, list[ObjectFile]] = defaultdict(list)
    for each in site.objects:
        if each.path.endswith(".so"):
            stems[posixpath.join(posixpath.dirname(each.path), each.name.split(".")[0])].append(each)
    tags = {f"{each.key}=={each.version}": each.tags for each in installed.distributions}
    for files in stems.values():
        found = [(each, _TAGGED.search(each.name)) for each in files]
        if not here or any(tag is None or tag[1] == here for _, tag in found):
            continue
        each = found[0][0]
        stated = [tag for owner in each.owners for tag in tags.get(owner, ())]
        if any("-abi3-" in tag for tag in stated):
            yield MISLABELLED.finding(
                object=site.within(each.path),
                message=f"is for another Python than {here[0]}.{here[1:]} although its wheel says abi3: "
                "importing it "
                "fails, all else of the wheel works",
                evidence=(f"{' and '.join(each.owners)}: {', '.join(stated)}",),
                fix="nothing, unless its backend is used; then a wheel built for this Python",
            )


def _shadows(facts: Facts) -> Iterator[Finding]:
    site, installed = facts[SiteFacts], facts[Installed]
    applied = (facts.get(Applied) or Applied()).files
    nobodys = installed.unowned
    for shadow in site.shadows:
        found, hidden = site.within(shadow.found), site.within(shadow.hidden)
        if hidden in applied or shadow.found in nobodys or shadow.hidden in nobodys:
            patched = hidden in applied
            yield SHADOWED.finding(
                object=hidden,
                severity=Severity.ERROR if patched else None,
                message=f"is hidden by {found}, which import finds first"
                + (": the patch of it has no effect" if patched else ""),
                evidence=tuple(
                    f"{path}: nobody's" for path in (shadow.found, shadow.hidden) if path in nobodys
                ),
                fix=f"remove {found}",
            )


def _copies(facts: Facts) -> Iterator[Finding]:
    """Yield packages that lie both in site-packages and where an editable installation points."""
    site = facts[SiteFacts]
    elsewhere = {
        name: folder
        for file in site.path_files
        for folder, names in file.folders.items()
        for name in names or ()
    } | dict(site.finders)
    for name, place in sorted(elsewhere.items()):
        if site.top_levels.get(name) in {"package", "module"}:
            yield COPIES.finding(
                object=name,
                message=f"lies in site-packages and in {place}: import finds the one in site-packages, "
                "an edit of "
                "the other has no effect",
                evidence=(f"site-packages comes before {place} on sys.path",),
                fix=f"uninstall {name} until it is gone, then install it one way",
            )
    for file in site.path_files:
        for folder, names in file.folders.items():
            if names is None:
                yield COPIES.finding(
                    object=site.within(file.path),
                    message=f"adds {folder} to sys.path, which is not there: what it offered cannot be "
                    "imported",
                    fix="install its distribution again",
                )


def _orphans(facts: Facts) -> Iterator[Finding]:
    for orphan in facts[SiteFacts].orphans:
        if orphan.folder == "__pycache__":
            continue
        how = "a package" if orphan.regular else "a namespace package, part of it or all"
        yield ORPHAN.finding(
            object=orphan.folder,
            message=f"is a folder of which no distribution owns a file: import finds it as {how}",
            evidence=(f"{counted(orphan.files, 'module')} in it; left by an uninstall, or copied by hand",),
            fix="remove it, or install what it belongs to",
        )


def _interpreter(facts: Facts) -> Iterator[Finding]:
    live, installed = facts[LiveFacts], facts[Installed]
    item = live.interpreter
    if item.program is None or not item.works:
        yield DEAD.finding(
            object="bin/python",
            message=f"leads to {item.program or 'nothing'}, which is not there: nothing of the "
            "environment starts",
            evidence=(f"pyvenv.cfg: home = {item.home}",),
            fix="install that Python on this host (uv python install), or build the environment here",
        )
    elif item.home and not item.home_exists:
        yield DEAD.finding(
            object="pyvenv.cfg",
            message=f"home = {item.home} is not there: Python does not find its own library",
            evidence=(f"bin/python leads to {item.program}",),
            fix="build the environment anew on this host",
        )
    python = installed.tree.interpreter.python
    if item.version and python and not f"{item.version}.".startswith(f"{python}."):
        yield DEAD.finding(
            object="pyvenv.cfg",
            message=f"says Python {item.version}, and the packages lie in lib/python{python}: none can "
            "be imported",
            fix="build the environment anew; a venv cannot change its Python",
        )


def _scripts(facts: Facts) -> Iterator[Finding]:
    for each in facts[SiteFacts].scripts:
        if each.here and each.exists:
            continue
        what = "another environment's Python" if each.exists else "a Python that is not there"
        yield SCRIPTS.finding(
            object=each.scripts[0],
            severity=Severity.WARNING if each.exists else None,
            message=f"{each.count} scripts start with {what}: the environment was moved or copied",
            evidence=(f"#!{each.interpreter}", *each.scripts[1:_SHOWN]),
            fix="call bin/python -m … instead, or build the environment where it lies (uv venv "
            "--relocatable)",
        )
    live = facts.get(LiveFacts)
    if live and live.interpreter.activate not in {None, live.venv}:
        yield ACTIVATE.finding(
            object="bin/activate",
            message=f"activates {live.interpreter.activate}, another environment",
            fix="call bin/python by its path",
        )


def _leaks(facts: Facts) -> Iterator[Finding]:
    live, installed = facts[LiveFacts], facts[Installed]
    if live.interpreter.system_site:
        own = {each.key: each.version for each in installed.distributions}
        both = sorted(
            name
            for name, version in live.user_installed.items()
            if own.get(canonicalize_name(name)) not in {None, version}
        )
        yield LEAK.finding(
            object="pyvenv.cfg",
            message="include-system-site-packages is true: what is installed for the system or the user "
            "can be "
            "imported, and what is missing here is taken from there",
            evidence=[f"{live.user_site}: {name} {live.user_installed[name]}" for name in both[:_SHOWN]],
            fix="set it to false, or build the environment anew",
        )
    service = facts.get(ServiceSettings)
    for name, effect in _CHANGES_PATH.items() if service else ():
        if service and name in service.env:
            yield LEAK.finding(
                object=f"service.env.{name}",
                message=f"{name}={service.env[name]} {effect}",
                fix=f"remove {name} from the service's environment",
            )


def _start_code(facts: Facts) -> Iterator[Finding]:
    site, installed = facts[SiteFacts], facts[Installed]
    for file in site.path_files:
        if file.code and not file.owners:
            yield START.finding(
                object=site.within(file.path),
                message="runs code at every start of Python, and is nobody's",
                evidence=file.code,
                fix="remove it, or make it a distribution",
            )
    for name in ("sitecustomize", "usercustomize"):
        if name in site.top_levels and f"{site.path}/{name}.py" in installed.unowned:
            yield START.finding(
                object=f"{name}.py", message="runs at every start of Python, and is nobody's", fix="remove it"
            )


def _bytecode(facts: Facts) -> Iterator[Finding]:
    site = facts[SiteFacts]
    for path, stale in site.bytecode.unchecked.items():
        if stale is not False:
            yield STALE.finding(
                object=site.within(path),
                severity=None if stale else Severity.UNKNOWN,
                message="is bytecode that Python never compares with its source, and not of the source "
                "that lies "
                "there: the old code runs"
                if stale
                else "is bytecode that is never compared with its source",
                evidence=("flags: hash-based, unchecked (PEP 552)",),
                fix="remove it; compile with --invalidation-mode checked-hash",
            )
    fresh = [site.within(path) for path, stale in site.bytecode.unchecked.items() if stale is False]
    if fresh:
        yield UNCHECKED.finding(
            object=fresh[0],
            message=f"{len(fresh)} bytecode files are never compared with their sources: a patch of one "
            "has no effect",
            evidence=fresh[:_SHOWN],
            fix="compile with --invalidation-mode checked-hash",
        )


MISLABELLED = Rule(
    id="extension-mislabelled",
    severity=Severity.WARNING,
    kind="K46",
    reference="https://github.com/sgl-project/sglang/issues/37640",
    check=_mislabelled,
)
SHADOWED = Rule(
    id="module-shadowed",
    severity=Severity.WARNING,
    kind="K48",
    reference="CPython, Lib/importlib/_bootstrap_external.py: FileFinder.find_spec",
    check=_shadows,
)
COPIES = Rule(
    id="source-tree-twice",
    severity=Severity.WARNING,
    kind="K48",
    reference="https://github.com/pypa/setuptools/issues/3557",
    check=_copies,
)
ORPHAN = Rule(
    id="folder-orphaned",
    severity=Severity.WARNING,
    kind="K48",
    reference="https://peps.python.org/pep-0420/",
    check=_orphans,
)
DEAD = Rule(
    id="interpreter-dead",
    severity=Severity.ERROR,
    kind="K49",
    reference="https://github.com/astral-sh/uv/issues/11168",
    check=_interpreter,
)
SCRIPTS = Rule(
    id="script-of-another-place",
    severity=Severity.ERROR,
    kind="K49",
    reference="https://github.com/astral-sh/uv/issues/4265",
    check=_scripts,
)
ACTIVATE = Rule(
    id="activate-of-another-place",
    severity=Severity.WARNING,
    kind="K49",
    reference=SCRIPTS.reference,
    check=lambda _: (),
)
"""Found beside the scripts."""
LEAK = Rule(
    id="path-leaks",
    severity=Severity.WARNING,
    kind="K50",
    reference="CPython, Lib/site.py: venv; https://docs.python.org/3/using/cmdline.html#environment-variables",
    check=_leaks,
)
START = Rule(
    id="code-at-start",
    severity=Severity.WARNING,
    kind="K50",
    reference="https://docs.python.org/3/library/site.html",
    check=_start_code,
)
STALE = Rule(
    id="bytecode-stale",
    severity=Severity.ERROR,
    kind="K52",
    reference="https://peps.python.org/pep-0552/",
    check=_bytecode,
)
UNCHECKED = Rule(
    id="bytecode-unchecked", severity=Severity.NOTE, kind="K52", reference=STALE.reference, check=lambda _: ()
)
"""Found beside the stale ones."""

RULES = (
    MISLABELLED,
    SHADOWED,
    COPIES,
    ORPHAN,
    DEAD,
    SCRIPTS,
    ACTIVATE,
    LEAK,
    START,
    STALE,
    UNCHECKED,
)
