"""Rules on the driver, its kernel module and its device nodes: catalogue K23 to K27 and K29."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostenv.checks.driver_tables import driver_tables
from hostenv.checks.finding import Severity
from hostenv.checks.judge import Rule
from hostenv.facts.host import HostFacts
from hostenv.facts.surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostenv.checks.finding import Finding
    from hostenv.checks.judge import Facts
    from hostenv.facts.host_gpu import DeviceNode, KernelModule
    from hostenv.facts.host_libraries import HostLibrary

COMPATIBILITY = "https://docs.nvidia.com/deploy/cuda-compatibility/"
MODULES = "https://github.com/NVIDIA/open-gpu-kernel-modules"
_CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm")


def _module(host: HostFacts) -> KernelModule | None:
    return host.driver.kernel_module.or_else(None)


def _driver_libraries(host: HostFacts) -> Iterator[HostLibrary]:
    for name in driver_tables().libraries:
        library = host.libraries.find(name)
        if library is not None and library.path is not None:
            yield library


def _has_gpu(host: HostFacts) -> bool:
    """Whether any source shows an NVIDIA GPU."""
    drivers = host.driver
    return bool(host.gpus.or_else(()) or drivers.kernel_gpus.or_else(()) or drivers.pci.or_else(()))


def _models(host: HostFacts) -> list[str]:
    return sorted({gpu.name for gpu in host.gpus.or_else(())})


def _compat(facts: Facts) -> Iterator[Finding]:
    host = facts[HostFacts]
    library = host.libraries.find("libcuda.so.1")
    if library is None or not library.is_compat:
        return
    barred = [model for model in _models(host) if not driver_tables().may_forward(model)]
    module = _module(host)
    evidence = [f"libcuda.so.1 is {library.real}", *_told_by(facts, library)]
    if barred:
        yield COMPAT.finding(
            object=str(library.path),
            message="CUDA fails at start (804, forward compatibility was attempted on non supported HW):"
            f" the toolkit's libcuda comes before the driver's, and {barred[0]} does not support that",
            evidence=evidence,
            fix=_without_compat(facts, library),
        )
    elif module and library.driver_version and _numbers(library.driver_version) < _numbers(module.version):
        yield COMPAT.finding(
            object=str(library.path),
            message="CUDA fails at start (803, unsupported display driver / cuda driver combination): the"
            f" toolkit's libcuda {library.driver_version} is older than the kernel module {module.version}",
            evidence=evidence,
            fix=_without_compat(facts, library),
        )
    else:
        yield COMPAT.finding(
            object=str(library.path),
            severity=Severity.UNKNOWN if not _models(host) else Severity.WARNING,
            message="the toolkit's libcuda comes before the driver's: supported on data centre GPUs only, and"
            " it stops working with a kernel module newer than itself",
            evidence=evidence,
            fix=_without_compat(facts, library),
        )


def _told_by(facts: Facts, library: HostLibrary) -> tuple[str, ...]:
    """Return who names the folder in which the loader found a library."""
    around = facts.get(Surroundings)
    folder = str(library.path).rpartition("/")[0]
    tellers = (
        [each.told_by for each in around.host.folders if each.path == folder]
        if around and around.host
        else []
    )
    return tuple(f"{folder} is named by {teller}" for teller in tellers)


def _without_compat(facts: Facts, library: HostLibrary) -> str:
    told = _told_by(facts, library)
    teller = told[0].rpartition(" named by ")[2] if told else ""
    if teller.startswith("/"):
        return f"take the line out of {teller}, then ldconfig"
    return "take its folder out of LD_LIBRARY_PATH and /etc/ld.so.conf.d, then ldconfig"


def _user_space(facts: Facts) -> Iterator[Finding]:
    host = facts[HostFacts]
    module = _module(host)
    for library in _driver_libraries(host):
        if library.is_compat or library.driver_version is None:
            continue
        if module is None:
            yield MISMATCH.finding(
                object=library.name,
                severity=Severity.UNKNOWN,
                message="not judged: whether it is of the kernel module's version, which is not known",
                evidence=(f"{library.name} {library.driver_version}",),
            )
            return
        if library.driver_version != module.version:
            yield MISMATCH.finding(
                object=library.name,
                message="CUDA and nvidia-smi fail at start (driver/library version mismatch):"
                f" {library.name} is of driver {library.driver_version}, the kernel module {module.version}",
                evidence=(f"{library.real}", f"kernel module: {module.version}"),
                fix=_same_driver(host, library.driver_version, module.version),
                cause=f"driver {library.driver_version} over module {module.version}",
            )


def _same_driver(host: HostFacts, library: str, module: str) -> str:
    container = host.identity.container.or_else(None)
    if container is not None and container.kind != "none":
        return f"in this container install the user-space driver {module} without its kernel module"
    return f"reboot, if {library} was just installed; else install the driver {module}"


def _after_reboot(facts: Facts) -> Iterator[Finding]:
    host, around = facts[HostFacts], facts[Surroundings]
    module = _module(host)
    if around.host is None or module is None:
        return
    for file in around.host.modules:
        if file.version and file.version != module.version:
            yield REBOOT.finding(
                object=file.path,
                message=f"the next boot loads driver {file.version} in place of {module.version}: containers"
                " and libraries of the running one then fail",
                evidence=(f"{file.path}: {file.version}", f"loaded: {module.version}"),
                fix=f"bring every user-space driver to {file.version} with that reboot, or hold the packages",
            )


def _nodes(facts: Facts) -> Iterator[Finding]:
    host = facts[HostFacts]
    nodes = host.driver.device_nodes
    if not _has_gpu(host) and not (nodes.or_else(()) and _module(host)):
        return
    if not nodes.is_known:
        yield NODES.finding(
            object="/dev/nvidia*", severity=Severity.UNKNOWN, message=f"not judged: {nodes.unknown}"
        )
        return
    there = {node.path: node for node in nodes.value}
    needed = [
        *_CONTROL,
        *(f"/dev/nvidia{gpu.minor}" for gpu in host.gpus.or_else(()) if gpu.minor is not None),
    ]
    missing = [path for path in needed if path not in there]
    if missing:
        yield NODES.finding(
            object=missing[0],
            message="CUDA fails at start (999, or no device): the driver's device node is not there, though"
            " nvidia-smi may work",
            evidence=tuple(f"{path} is not there" for path in missing),
            fix=_nodes_fix(facts, missing[0]),
        )
    for path in needed:
        if path in there:
            yield from _node(facts, there[path])


def _node(facts: Facts, node: DeviceNode) -> Iterator[Finding]:
    major = _major(facts, node.path)
    if major is not None and node.major != major:
        yield NODES.finding(
            object=node.path,
            message=f"CUDA fails at start: the node has major number {node.major}, the driver has {major}",
            evidence=(f"/proc/devices: {major}", "the number of nvidia-uvm changes between boots"),
            fix=_nodes_fix(facts, node.path),
        )
    elif not node.usable:
        yield NODES.finding(
            object=node.path,
            message="CUDA fails at start for the user who looked: the node may not be opened for reading and"
            " writing",
            evidence=(f"mode {node.mode:o}",),
            fix=f"chmod 666 {node.path}, or put the user into the group that owns it",
            cause="device nodes closed",
        )


def _major(facts: Facts, path: str) -> int | None:
    """Return the major number that the running kernel has for a node; ``None``: not told."""
    around = facts.get(Surroundings)
    majors = around.host.majors if around and around.host else None
    if majors is None:
        return None
    name = "nvidia-uvm" if path.startswith("/dev/nvidia-uvm") else "nvidia"
    return majors.get(name, majors.get("nvidia-frontend"))


def _nodes_fix(facts: Facts, path: str) -> str:
    container = facts[HostFacts].identity.container.or_else(None)
    if container is None or container.kind == "none":
        return "nvidia-modprobe -u -c=0, at each boot (enable nvidia-persistenced)"
    if container.kind == "lxc":
        major = _major(facts, path)
        return (
            f"in the container's configuration: lxc.cgroup2.devices.allow: c {major or 'MAJOR'}:* rwm and"
            f" lxc.mount.entry: {path} {path[1:]} none bind,optional,create=file"
        )
    return "start the container with the NVIDIA runtime and the capabilities compute,utility"


def _hidden(facts: Facts) -> Iterator[Finding]:
    host = facts[HostFacts]
    shown = host.driver.pci.or_else(())
    if host.gpus.is_known or (host.driver.pci.is_known and not shown):
        return
    kernel = host.driver.kernel_gpus
    yield HIDDEN.finding(
        object="GPUs",
        message="the GPUs' models and compute capabilities are not known: GPU code is not judged for them",
        evidence=(
            f"nvidia-smi: {host.gpus.unknown}",
            f"/proc/driver/nvidia/gpus: {kernel.unknown or f'{len(kernel.value)} GPUs'}",
            *(f"PCI {gpu.address}: 10de:{gpu.device[2:]}, driver {gpu.driver or 'none'}" for gpu in shown),
        ),
        fix="state gpus.compute-capability in the spec, or make nvidia-smi work there",
    )


def _libcuda(facts: Facts) -> Iterator[Finding]:
    host = facts[HostFacts]
    library = host.libraries.find("libcuda.so.1")
    if library is None:
        yield LIBCUDA.finding(
            object="libcuda.so.1", severity=Severity.UNKNOWN, message="not judged: it was not looked for"
        )
    elif library.is_stub:
        yield LIBCUDA.finding(
            object=str(library.path),
            message="every CUDA call fails (34, CUDA driver is a stub library): the loader takes the"
            " toolkit's stub, which is for linking only",
            evidence=(
                f"{library.real}, {library.size} bytes, no driver version in its name",
                *_told_by(facts, library),
            ),
            fix="take the folder out of LD_LIBRARY_PATH; the driver's own libcuda.so.1 must come first",
        )
    elif library.path is None and _has_gpu(host):
        yield LIBCUDA.finding(
            object="libcuda.so.1",
            message="every kernel's import fails: there is a GPU, and no libcuda.so.1 for the loader to find",
            evidence=("LD_LIBRARY_PATH, /etc/ld.so.cache and the default folders have none",),
            fix="install the user-space driver; in a container ask for the capabilities compute,utility",
        )


def _open_module(facts: Facts) -> Iterator[Finding]:
    host = facts[HostFacts]
    pci, module = host.driver.pci, _module(host)
    concerned = [gpu for gpu in pci.or_else(()) if driver_tables().needs_open_module(gpu.device)]
    if not concerned:
        return
    name = f"10de:{concerned[0].device[2:]}"
    if module is None or module.open is None:
        yield OPEN_MODULE.finding(
            object=name,
            severity=Severity.UNKNOWN,
            message="not judged: this GPU needs the open kernel module, and which one is loaded is not known",
            evidence=(host.driver.kernel_module.unknown or "/proc/driver/nvidia/version does not tell",),
        )
    elif not module.open:
        yield OPEN_MODULE.finding(
            object=name,
            message='nvidia-smi says "No devices were found" and CUDA finds no GPU: this GPU needs the open'
            f" kernel module, and the proprietary one ({module.version}) is loaded",
            evidence=tuple(f"PCI {gpu.address}: 10de:{gpu.device[2:]}" for gpu in concerned),
            fix=f"install the open kernel module of {module.version} (package nvidia-open or"
            " nvidia-driver-NNN-open) and reboot",
        )
    elif host.gpus.known_value == ():
        yield OPEN_MODULE.finding(
            object=name,
            message="CUDA finds no GPU: the driver shows none, though the right kernel module is loaded",
            evidence=tuple(
                f"PCI {gpu.address}: 10de:{gpu.device[2:]}, nvidia-smi: none" for gpu in concerned
            ),
            fix="switch on Above 4G Decoding and Resizable BAR in the machine's firmware",
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split("."))


COMPAT = Rule(id="driver-compat", severity=Severity.ERROR, kind="K23", reference=COMPATIBILITY, check=_compat)
MISMATCH = Rule(
    id="driver-library-mismatch",
    severity=Severity.ERROR,
    kind="K24",
    reference="https://github.com/NVIDIA/nvidia-container-toolkit/issues/171",
    check=_user_space,
)
REBOOT = Rule(
    id="driver-changes-at-boot",
    severity=Severity.WARNING,
    kind="K24",
    reference="https://github.com/NVIDIA/nvidia-docker/issues/843",
    check=_after_reboot,
)
NODES = Rule(
    id="device-node",
    severity=Severity.ERROR,
    kind="K25",
    reference="https://github.com/canonical/lxd/issues/5618",
    check=_nodes,
)
HIDDEN = Rule(
    id="gpu-facts-hidden",
    severity=Severity.UNKNOWN,
    kind="K26",
    reference="https://github.com/NVIDIA/libnvidia-container/issues/105",
    check=_hidden,
)
LIBCUDA = Rule(
    id="libcuda-no-driver",
    severity=Severity.ERROR,
    kind="K27",
    reference="https://github.com/vllm-project/vllm/issues/6864",
    check=_libcuda,
)
OPEN_MODULE = Rule(
    id="open-module-needed", severity=Severity.ERROR, kind="K29", reference=MODULES, check=_open_module
)

RULES = (COMPAT, MISMATCH, REBOOT, NODES, HIDDEN, LIBCUDA, OPEN_MODULE)
"""Catalogue K23 to K27 and K29."""
