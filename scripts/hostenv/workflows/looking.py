"""Looking at an environment's files and distributions, for the rules that judge them.

The controller remembers the last answer, so nothing is written on the host: while the stats of all files are
the same, one walk is all that is done there.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hostenv.checks.metadata import Wanted
from hostenv.checks.record import Applied
from hostenv.checks.stack_tables import stack_tables
from hostenv.facts.distributions import Installed
from hostenv.facts.site import LiveFacts, SiteFacts
from hostenv.machine.agent import archive
from hostenv.machine.memory import Memory, Remembered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostenv.facts.host_saved import SavedFacts
    from hostenv.machine.reach import Reach
    from hostenv.spec.spec import Spec
    from hostenv.workflows.events import Listener


def look_at_site(reach: Reach, spec: Spec, venv: str, listener: Listener, *, full: bool) -> Mapping[str, Any]:
    """Return the answer of ``site.look``, its ``facts`` from memory where nothing has changed.

    ``full``: every byte is held against RECORD; else contested and wrongly sized files.
    """
    tables = stack_tables().namespaces
    memory = Memory()
    name = f"site\0{spec.name}\0{venv}\0{full}\0{_edition()}"
    known = memory.load(name)
    answer: dict[str, Any] = reach.agent.call(
        "site.look",
        venv=venv,
        seen=known.stat if known else None,
        full=full,
        namespaces={each.name: each.objects for each in tables},
        kernels=[each.package for each in tables],
        on_event=lambda event: listener.advance(spec.name, event["bytes"]),
    )
    if answer["facts"] is None and known:
        answer["facts"] = known.tree
    elif answer["stat"]:
        memory.save(name, Remembered(stat=answer["stat"], tree=answer["facts"]))
    return answer


def site_facts(
    spec: Spec, answer: Mapping[str, Any], saved: SavedFacts | None, *, own: bool
) -> tuple[object, ...]:
    """Return what was looked at, typed: one value a type, for the judge.

    ``own``: a build of the spec, whose requirements and series it must meet. With ``saved`` facts of another
    machine its glibc counts, and what this machine's processes and users have does not.
    """
    facts = answer["facts"]
    installed = Installed.from_answer(facts["survey"], spec.name)
    live = LiveFacts.from_answer(answer["live"], spec.name, str(answer["path"]))
    if saved:
        glibc = saved.facts.system.glibc
        libc = f"glibc {glibc.value}" if glibc.is_known else None
        interpreter = replace(installed.tree.interpreter, libc=libc)
        installed = replace(installed, tree=replace(installed.tree, interpreter=interpreter))
        live = replace(live, processes=(), hidden=0, user_installed={})
    known: list[object] = [installed, live, SiteFacts.from_answer(facts["site"], spec.name)]
    if facts["applied"] is not None:
        known.append(Applied(files=facts["applied"]))
    if own:
        env = spec.env
        known.append(Wanted(requires=env.requires, overrides=env.overrides, excludes=env.excludes))
    return tuple(known)


def _edition() -> str:
    """Return a digest of what is asked and of the agent's code: another edition remembers nothing."""
    content = hashlib.sha256(archive())
    content.update(repr(stack_tables().namespaces).encode())
    return content.hexdigest()[:16]
