"""The agent's entry: owns its process group and answers the controller's requests one after another."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Callable, Dict

from hostenv.agent.wire import AgentError, Wire

OPERATIONS: Dict[str, str] = {
    "echo": "hostenv.agent.main:echo",
    "abi.excerpts": "hostenv.agent.candidates:excerpts",
    "abi.gpu_code": "hostenv.agent.gpucode:gpu_code",
    "abi.objects": "hostenv.agent.objects:objects",
    "abi.wheels": "hostenv.agent.candidates:wheels",
    "abi.surroundings": "hostenv.agent.surroundings:surroundings",
    "record.survey": "hostenv.agent.record:survey",
    "relay.forward": "hostenv.agent.relay:forward",
    "root.state": "hostenv.agent.layout:state",
    "interpreters.find": "hostenv.agent.interpreters:find",
    "interpreters.unpack": "hostenv.agent.interpreter_archive:unpack",
    "overlay.take": "hostenv.agent.taking:take",
    "site.look": "hostenv.agent.sitelook:look",
    "bytecode.run_regardless": "hostenv.agent.bytecode:run_regardless",
    "checkout.commits": "hostenv.agent.checkout:commits",
    "store.find": "hostenv.agent.store:find",
    "store.gather": "hostenv.agent.store:gather",
    "store.present": "hostenv.agent.store:present",
    "store.locate": "hostenv.agent.store:locate",
    "wheelhouse.names": "hostenv.agent.stored:names",
    "wheelhouse.libraries": "hostenv.agent.wheels:libraries",
    "wheelhouse.find": "hostenv.agent.stored:find",
    "wheelhouse.adopt": "hostenv.agent.stored:adopt",
    "wheelhouse.reach": "hostenv.agent.remote_fetch:reach",
    "wheelhouse.fetch": "hostenv.agent.remote_fetch:fetch",
    "writer.take": "hostenv.agent.writer:take",
    "build.make": "hostenv.agent.build:make",
    "build.facts": "hostenv.agent.build:facts",
    "file.digest": "hostenv.agent.stored:digest",
    "builds.contents": "hostenv.agent.prune:contents",
    "builds.list": "hostenv.agent.inventory:builds",
    "builds.prune": "hostenv.agent.prune:prune",
    "builds.wheels": "hostenv.agent.prune:wheels",
    "environment.cache": "hostenv.agent.environment:cache",
    "environment.find": "hostenv.agent.environment:find",
    "environment.claims": "hostenv.agent.environment:claims",
    "environment.kept_manifest": "hostenv.agent.environment:kept_manifest",
    "environment.look": "hostenv.agent.environment:look",
    "environment.manifest": "hostenv.agent.environment:manifest",
    "environment.texts": "hostenv.agent.environment:texts",
    "generation.activate": "hostenv.agent.generations:activate",
    "generation.history": "hostenv.agent.generations:history",
    "generation.require_idle": "hostenv.agent.generations:require_idle",
    "generation.stage": "hostenv.agent.generations:stage",
    "place.begin": "hostenv.agent.place:begin",
    "place.finish": "hostenv.agent.place:finish",
    "place.get": "hostenv.agent.place:get",
    "place.put": "hostenv.agent.place:put",
    "probe.host": "hostenv.agent.probe.host:read",
    "probe.status": "hostenv.agent.probe.status:read",
}
"""Operation name → ``module:function``. A function takes the wire and the request's arguments by keyword
and returns what JSON can hold."""


def echo(wire: Wire, value: Any = None) -> Any:
    """Return ``value``: what a connection test asks for."""
    del wire
    return value


def resolve(name: str) -> Callable[..., Any]:
    """Return the function of an operation, importing its module on first use."""
    if name not in OPERATIONS:
        message = f"the agent knows no operation {name!r}"
        raise AgentError(message)
    module, _, function = OPERATIONS[name].partition(":")
    return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]


def answer(wire: Wire, request: Dict[str, Any]) -> Dict[str, Any]:
    """Run one request; every failure becomes an answer, so that the controller never waits in vain."""
    try:
        return {"result": resolve(request["op"])(wire, **request.get("args", {}))}
    except AgentError as error:
        told = {"outcome": error.outcome, "message": error.message, "hint": error.hint}
    except OSError as error:
        from hostenv.agent.oserrors import words  # noqa: PLC0415  hardly ever needed

        told = {"outcome": "failed", **words(error, request.get("args", {}).get("root"))._asdict()}
    except Exception:  # noqa: BLE001  the far end of a bug: its traceback is shown at the controller
        import traceback  # noqa: PLC0415  hardly ever needed, and a third of the agent's start

        told = {"outcome": "bug", "message": traceback.format_exc(), "hint": None}
    return {"error": told}


def main() -> None:
    """Serve requests on standard input and output until the controller goes away."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    os.umask(0o022)  # uv makes scripts with the umask's mode: a login's own would change the fingerprint
    sink = os.dup(1)
    os.dup2(2, 1)  # whatever prints must not enter the protocol
    source = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.setrecursionlimit(10_000)
    wire = Wire(source, sink)
    wire.start()
    for request in wire.requests():
        wire.reply(answer(wire, request))
