"""What nvidia-smi says: asked with a time limit, in its XML form, which all drivers since 2012 have."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Optional
from xml.etree import ElementTree as ET

from hostenv.agent.probe.command import Command, find
from hostenv.agent.probe.fact import Json, UnknownError, fact, known, unknown
from hostenv.agent.probe.tree import Tree

_PLACES = "/usr/bin:/usr/local/bin:/usr/local/nvidia/bin:/opt/bin:/usr/lib/wsl/lib"
_MIB = re.compile(r"(\d+) MiB\Z")


class Smi:
    """nvidia-smi started twice, side by side: everything as XML, and the one column that XML lacks."""

    def __init__(self, path: str, timeout: float, tree: Optional[Tree] = None) -> None:
        self._timeout = timeout
        self._program = find("nvidia-smi", f"{path}:{_PLACES}", tree or Tree())
        self._log = self._start("-q", "-x")
        self._capabilities = self._start("--query-gpu=uuid,compute_cap", "--format=csv,noheader")

    def _start(self, *arguments: str) -> Any:
        if self._program is None:
            return UnknownError("nvidia-smi is not on the host", f"PATH and {_PLACES}")
        try:
            return Command((self._program, *arguments))
        except UnknownError as error:
            return error

    def read(self) -> Json:
        """Return the facts, waiting for the answers."""
        how = "nvidia-smi -q -x"
        try:
            log = parse_log(_answer(self._log, self._timeout))
        except UnknownError as error:
            _answer_quietly(self._capabilities)
            return unread(error.reason, error.how or how)
        capabilities = fact(
            "nvidia-smi --query-gpu=compute_cap",
            lambda: parse_capabilities(_answer(self._capabilities, self._timeout)),
        )
        return {
            "driver": fact(how, _text, log, "driver_version"),
            "cuda": fact(how, _text, log, "cuda_version"),
            "gpus": fact(how, gpus_of, log, capabilities),
        }


def unread(reason: str, how: str = "nvidia-smi -q -x") -> Json:
    """Return the facts where nothing of them could be read."""
    return {name: unknown(reason, how) for name in ("driver", "cuda", "gpus")}


def _answer(asked: Any, timeout: float) -> str:
    if isinstance(asked, UnknownError):
        raise asked
    return str(asked.result(timeout))


def _answer_quietly(asked: Any) -> None:
    if isinstance(asked, Command):
        fact("", asked.result, 0.1)


def parse_log(text: str) -> ET.Element:
    """Return the root of ``nvidia-smi -q -x``; an error text in its place becomes the reason.

    nvidia-smi prints "Failed to initialize NVML: Driver/library version mismatch" to standard output.
    """
    try:
        log = ET.fromstring(text)  # noqa: S314  expat >= 2.4.1 bounds entities, and no DTD is fetched
    except ET.ParseError:
        told = (text.strip() or "nothing").splitlines()[0][:300]
        raise UnknownError(f"answered: {told}", "nvidia-smi -q -x") from None
    if log.tag != "nvidia_smi_log":
        raise UnknownError(f"answered XML of another kind: {log.tag}", "nvidia-smi -q -x")
    return log


def parse_capabilities(text: str) -> Dict[str, str]:
    """Return UUID → compute capability from the CSV form."""
    found = {}
    for line in text.splitlines():
        uuid, _, capability = line.partition(",")
        if re.fullmatch(r"\d+\.\d+", capability.strip()):
            found[uuid.strip()] = capability.strip()
    if not found:
        raise UnknownError(f"answered: {(text.strip() or 'nothing').splitlines()[0][:300]}")
    return found


def gpus_of(log: ET.Element, capabilities: Json) -> List[Json]:
    """Return every GPU of the log; sizes are bytes, what a GPU does not tell is ``None``."""
    return [_gpu(index, gpu, capabilities) for index, gpu in enumerate(log.findall("gpu"))]


def _gpu(index: int, gpu: ET.Element, capabilities: Json) -> Json:
    uuid = _text(gpu, "uuid")
    minor = _optional(gpu, "minor_number")
    return {
        "index": index,
        "uuid": uuid,
        "name": _text(gpu, "product_name"),
        "pci": _pci(gpu.get("id") or ""),
        "minor": int(minor) if minor and minor.isdigit() else None,
        "compute_capability": _capability(uuid, capabilities),
        "memory_total": _bytes(gpu, "fb_memory_usage/total"),
        "memory_used": _bytes(gpu, "fb_memory_usage/used"),
        "memory_free": _bytes(gpu, "fb_memory_usage/free"),
        "mig": _optional(gpu, "mig_mode/current_mig"),
        "mig_devices": [_mig_device(device) for device in gpu.findall("mig_devices/mig_device")],
        "processes": [_process(each) for each in gpu.findall("processes/process_info")],
    }


def _capability(uuid: str, capabilities: Json) -> Json:
    if "unknown" in capabilities:
        return dict(capabilities)
    if uuid not in capabilities["value"]:
        return unknown("nvidia-smi told none for this GPU", capabilities["how"])
    return known(capabilities["value"][uuid], capabilities["how"])


def _mig_device(device: ET.Element) -> Json:
    return {
        "gpu_instance": _optional(device, "gpu_instance_id"),
        "compute_instance": _optional(device, "compute_instance_id"),
        "memory_total": _bytes(device, "fb_memory_usage/total"),
        "memory_used": _bytes(device, "fb_memory_usage/used"),
    }


def _process(told: ET.Element) -> Json:
    pid = _optional(told, "pid")
    return {
        "pid": int(pid) if pid and pid.isdigit() else None,
        "kind": _optional(told, "type"),
        "name": _optional(told, "process_name"),
        "memory": _bytes(told, "used_memory"),
    }


def _pci(address: str) -> str:
    """Return a PCI address as the kernel writes it: 00000000:00:06.0 → 0000:00:06.0."""
    domain, _, rest = address.partition(":")
    return f"{domain[-4:]}:{rest}".lower()


def _optional(element: ET.Element, path: str) -> Optional[str]:
    text = (element.findtext(path) or "").strip()
    return None if text in {"", "N/A", "[N/A]", "Not Supported", "[Not Supported]"} else text


def _text(element: ET.Element, path: str) -> str:
    text = _optional(element, path)
    if text is None:
        raise UnknownError(f"nvidia-smi does not tell {path}")
    return text


def _bytes(element: ET.Element, path: str) -> Optional[int]:
    match = _MIB.match(_optional(element, path) or "")
    return int(match.group(1)) << 20 if match else None


def search_path() -> str:
    """Return the PATH of the agent's own login."""
    return os.environ.get("PATH", "/usr/bin:/bin")
