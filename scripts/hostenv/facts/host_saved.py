"""Facts kept in ``envspecs/facts/HOST.json``: what stays the same between two probes, dated."""

from __future__ import annotations

import datetime as dt
import json
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostenv.errors import InputError
from hostenv.facts.fact import Fact
from hostenv.facts.host import HostFacts

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping

_LARGEST = 64_000_000
"""Bytes of a file of facts that are read; a longer one is refused."""
SKEW = dt.timedelta(hours=1)
"""How far the clock of a host that was probed may be ahead of ours."""
_OF_A_BOOT = ("boot_id", "boot_id_own", "boot_clock", "namespaces")
_OF_A_MOMENT_GPU = ("memory_used", "memory_free")
_OF_A_MOMENT_DISK = ("free", "files_free")


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedFacts:
    """Facts from a file, and where they came from. ``document`` is what the file holds, as JSON."""

    path: pathlib.Path
    facts: HostFacts
    document: Mapping[str, Any]

    @classmethod
    def load(cls, path: pathlib.Path) -> SavedFacts:
        """Read a file. Raises :class:`~hostenv.errors.InputError` where it is absent or malformed."""
        try:
            document = json.loads(_content(path))
        except OSError as error:
            hint = f"nox -s probe -- {path.stem} --save"
            raise InputError(f"{path}: {error.strerror}", hint=hint) from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: not JSON: {error}", hint="save the facts again") from error
        return cls(path=path, facts=HostFacts.from_dict(document, name=str(path)), document=document)

    def fresh(self, *, now: dt.datetime, max_age: dt.timedelta) -> Fact[HostFacts]:
        """Return the facts, unknown where they are older than ``max_age`` or from the future."""
        age = self.age(now)
        if age.unknown is not None:
            return Fact(how=age.how, unknown=age.unknown)
        if age.value > max_age:
            reason = f"read {age.value.days} days ago, the spec allows {max_age.days}: probe with --save"
            return Fact(how=age.how, unknown=reason)
        return Fact(how=age.how, known_value=self.facts)

    def age(self, now: dt.datetime) -> Fact[dt.timedelta]:
        """Return how long ago the facts were read, by the clock of their host; unknown from the future."""
        age = now - self.facts.read_at
        if age < -SKEW:
            reason = f"dated {self.facts.read_at:%Y-%m-%d %H:%M} UTC, which is still to come"
            return Fact(how=str(self.path), unknown=reason)
        return Fact(how=str(self.path), known_value=max(age, dt.timedelta()))


def _content(path: pathlib.Path) -> str:
    hint = "name a file that probe --save wrote"
    if not stat.S_ISREG(path.stat().st_mode):
        raise InputError(f"{path}: not a regular file", hint=hint)
    with path.open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise InputError(f"{path}: longer than {_LARGEST // 1_000_000} MB", hint=hint)
    return content.decode("utf-8")


def saved_form(answer: Mapping[str, Any]) -> str:
    """Return a probe's answer as the file keeps it: sorted, one value a line, nothing of a moment or a boot.

    Left out are processes, boot id and clock, namespaces, memory and space in use.
    """
    kept: dict[str, Any] = {
        name: value for name, value in answer.items() if name not in {"processes", "seconds"}
    }
    kept["identity"] = {
        name: {"unknown": "of one boot: not saved", "how": fact["how"]} if name in _OF_A_BOOT else fact
        for name, fact in answer["identity"].items()
    }
    kept["system"] = {**answer["system"], "memory": _without(answer["system"]["memory"], ("available",))}
    kept["disks"] = [_without(disk, _OF_A_MOMENT_DISK) for disk in answer["disks"]]
    if "value" in answer["gpus"]:
        gpus = [_gpu(gpu) for gpu in answer["gpus"]["value"]]
        kept["gpus"] = {**answer["gpus"], "value": gpus}
    return json.dumps(kept, indent=1, sort_keys=True) + "\n"


def _gpu(gpu: Mapping[str, Any]) -> dict[str, Any]:
    devices = [{**device, "memory_used": None} for device in gpu["mig_devices"]]
    return {**gpu, **dict.fromkeys(_OF_A_MOMENT_GPU), "mig_devices": devices, "processes": []}


def _without(fact: Mapping[str, Any], names: tuple[str, ...]) -> Mapping[str, Any]:
    if "value" not in fact:
        return fact
    return {**fact, "value": {**fact["value"], **dict.fromkeys(names)}}
