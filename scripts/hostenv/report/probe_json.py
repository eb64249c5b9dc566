"""The probe's report as JSON, for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.checks.free_gpus import gpu_uses
from hostenv.report.findings import error_fields

if TYPE_CHECKING:
    from hostenv.checks.free_gpus import GpuUse
    from hostenv.errors import HostenvError
    from hostenv.workflows.probe import HostProbe, ProbeReport

PROBE_VERSION = 1
"""Version of the document that ``docs/schema/probe.schema.json`` describes."""


def error_document(error: HostenvError) -> dict[str, object]:
    """Return what ``--json`` writes where no host was asked."""
    return {"version": PROBE_VERSION, "hosts": [], "relations": [], "error": error_fields(error)}


def probe_document(report: ProbeReport) -> dict[str, object]:
    """Return the report as what ``--json`` writes (``docs/schema/probe.schema.json``)."""
    return {
        "version": PROBE_VERSION,
        "hosts": [_host_document(host) for host in report.hosts],
        "relations": [
            {
                "first": relation.first,
                "second": relation.second,
                "kind": relation.kind.value,
                "container": relation.container,
                "evidence": list(relation.evidence),
            }
            for relation in report.relations
        ],
    }


def _host_document(host: HostProbe) -> dict[str, object]:
    error = host.error
    uses = gpu_uses(host.facts, host.spec.gpus.reserved if host.spec.gpus else ()) if host.facts else None
    return {
        "name": host.name,
        "seconds": round(host.seconds, 3),
        "outcome": "ok" if error is None else error.outcome.value,
        "error": None if error is None else str(error),
        "parent_of": list(host.parent_of),
        "host_key": host.host_key,
        "facts": host.answer,
        "gpus": None if uses is None else [_use_document(use) for use in uses.or_else(())],
        "notes": [
            {
                "rule": note.rule,
                "severity": note.severity.value,
                "kind": note.kind,
                "object": note.object,
                "message": note.message,
                "evidence": list(note.evidence),
                "fix": note.fix,
            }
            for note in host.notes
        ],
    }


def _use_document(use: GpuUse) -> dict[str, object]:
    return {
        "index": use.gpu.index,
        "uuid": use.gpu.uuid,
        "use": use.use.value,
        "why": use.why,
        "reserved": use.reserved.why if use.reserved else None,
        "holders": [
            {
                "what": holder.what,
                "pid": holder.pid,
                "bytes": holder.bytes,
                "since": holder.since.isoformat() if holder.since else None,
                "visible": holder.process is not None,
            }
            for holder in use.holders
        ],
    }
