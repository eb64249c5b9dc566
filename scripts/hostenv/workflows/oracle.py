"""Holds the simulated loader against the real one: every shared object of an environment, in both modes."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostenv.errors import HostError
from hostenv.facts.objects import LoadFacts
from hostenv.machine.agent import agent_on
from hostenv.machine.local import LocalTransport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hostenv.facts.objects import Load

CHILD = pathlib.Path(__file__).with_name("dlopen_child.py")
ALONE, AFTER = "alone", "after import"


@dataclass(frozen=True, kw_only=True, slots=True)
class Disagreement:
    """One object on which the simulation and the loader differ; texts are ``""`` where it loads."""

    path: str
    mode: str
    real: str
    simulated: str

    def __str__(self) -> str:
        real, simulated = self.real or "loads", self.simulated or "loads"
        return f"{self.path} ({self.mode})\n  loader:    {real}\n  simulated: {simulated}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What a comparison found. ``failing`` counts the objects that the real loader refuses, by mode."""

    objects: int
    failing: Mapping[str, int]
    disagreements: tuple[Disagreement, ...]


def compare(venv: str, environment: Mapping[str, str] | None = None, package: str = "torch") -> Comparison:
    """Judge every shared object of ``venv`` and open each with the real loader; runs the environment's code.

    ``environment`` are LD_LIBRARY_PATH and LD_PRELOAD as both shall see them. Messages must be the same to
    the letter, and with them the first missing library or symbol. Where ``import package`` fails, that
    failure is compared instead of the objects after it.
    """
    settings = dict(environment or {})
    with agent_on(LocalTransport("local")) as agent:
        answer = agent.call("abi.objects", venv=venv, environment=settings, package=package, gpu=False)
    facts = LoadFacts.from_dict(answer)
    python = f"{venv}/bin/python"
    paths = [f"{facts.site}/{item.path}" for item in facts.objects]
    real = _ask(python, (), paths, settings)
    loads: dict[str, Sequence[Load]] = {ALONE: [item.alone for item in facts.objects]}
    found = {ALONE: [real[path] for path in paths]}
    disagreements: list[Disagreement] = []
    if facts.preload is not None:
        after = _ask(python, (package,), paths, settings)
        if "" in after:
            disagreements += _import(package, after[""], facts.preload)
        else:
            loads[AFTER] = [item.after for item in facts.objects]
            found[AFTER] = [after[path] for path in paths]
    for mode, simulated in loads.items():
        for item, load, text in zip(facts.objects, simulated, found[mode], strict=True):
            if not agrees(load, text):
                disagreements.append(
                    Disagreement(path=item.path, mode=mode, real=text, simulated=load.text or "")
                )
    return Comparison(
        objects=len(paths),
        failing={mode: sum(1 for text in texts if text) for mode, texts in found.items()},
        disagreements=tuple(disagreements),
    )


def agrees(simulated: Load, real: str) -> bool:
    """Say whether a verdict is what the loader says; some files kill the process that opens them."""
    if real.startswith(("signal", "exit")):
        ends = ("dies of SIGBUS", "the process dies")
        return simulated.loads is False and any(end in (simulated.text or "") for end in ends)
    return (simulated.text or "") == real and simulated.loads is (not real)


def _import(package: str, real: str, simulated: Load) -> list[Disagreement]:
    if simulated.loads is False and (simulated.text or "?") in real:
        return []
    return [Disagreement(path=f"import {package}", mode=AFTER, real=real, simulated=simulated.text or "")]


def _ask(
    python: str, packages: tuple[str, ...], paths: Sequence[str], settings: Mapping[str, str]
) -> dict[str, str]:
    done = subprocess.run(
        (python, "-I", str(CHILD), *packages),
        input=b"\0".join(map(os.fsencode, paths)),
        capture_output=True,
        check=False,
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C", **settings},
    )
    try:
        return dict(json.loads(done.stdout))
    except ValueError as error:
        said = done.stderr.decode(errors="replace").strip()[-2000:]
        raise HostError(f"{python} did not open the objects (exit {done.returncode}): {said}") from error
