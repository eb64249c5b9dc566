"""Facts as they would be after a change of distributions: known in full, or by their versions alone."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from hostenv.facts.distributions import Installed
from hostenv.facts.gpu_code import GpuCodeFacts
from hostenv.facts.objects import LoadFacts
from hostenv.facts.site import SiteFacts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from packaging.utils import NormalizedName

    from hostenv.checks.judge import Facts
    from hostenv.checks.suggest import Change
    from hostenv.facts.candidates import Candidate, Excerpt
    from hostenv.facts.distributions import Distribution
    from hostenv.facts.gpu_code import GpuCode
    from hostenv.facts.objects import Load
    from hostenv.facts.operators import Operators
    from hostenv.facts.site import ObjectFile

_NVIDIA = re.compile(
    r"\A(?:lib)?(?:cuda|cudnn|cublas|cufft|cusparse|cusolver|curand|nccl|nvrtc|nvJitLink|nvshmem)"
)
_TORCH = re.compile(r"\Alib(?:torch|c10|shm)|_Z\w*?(?:3c10|2at|5torch|6caffe2)|\Aaoti_torch_")
_RUNTIMES = ("cuda-toolkit", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")


@dataclass(frozen=True, kw_only=True, slots=True)
class Brought:
    """Whole distributions that would be laid over an environment; paths are relative to site-packages."""

    distributions: tuple[Distribution, ...]
    objects: tuple[ObjectFile, ...]
    operators: tuple[Operators, ...]
    gpu: Mapping[str, GpuCode]

    @property
    def names(self) -> frozenset[NormalizedName]:
        """The distributions, normalised."""
        return frozenset(each.key for each in self.distributions)


def brought_by_wheels(candidates: Iterable[Candidate]) -> Brought:
    """Return what wheels would lay."""
    candidates = tuple(candidates)
    return Brought(
        distributions=tuple(each.distribution for each in candidates),
        objects=tuple(found for each in candidates for found in each.objects),
        operators=tuple(each.operators for each in candidates),
        gpu={found.path: found.gpu for each in candidates for found in each.excerpts if found.gpu},
    )


def brought_from(
    installed: Installed, site: SiteFacts, names: Collection[NormalizedName], excerpts: Iterable[Excerpt]
) -> Brought:
    """Return what whole distributions of a reference would lay."""
    wanted = set(names)
    objects = tuple(
        replace(each, path=site.within(each.path)) for each in site.objects if owned(each.owners, wanted)
    )
    paths = {each.path for each in objects}
    packages = {path.partition("/")[0] for path in paths}
    known = site.operators
    operators = replace(
        known,
        makers=tuple(name for name in known.makers if canonicalize_name(name) in wanted),
        sources={path: each for path, each in known.sources.items() if owned([each.owner], wanted)},
        unread={},
        registered={
            space: {path: each for path, each in found.items() if path in paths}
            for space, found in known.registered.items()
        },
        exports={name: each for name, each in known.exports.items() if name in packages},
        modules=tuple(path for path in known.modules if path.partition("/")[0] in packages),
    )
    return Brought(
        distributions=tuple(each for each in installed.distributions if each.key in wanted),
        objects=objects,
        operators=(operators,),
        gpu={each.path: each.gpu for each in excerpts if each.gpu},
    )


def objects_of(facts: Facts, names: Collection[NormalizedName]) -> tuple[str, ...]:
    """Return the objects of some distributions, relative to site-packages."""
    site = facts[SiteFacts]
    return tuple(site.within(each.path) for each in site.objects if owned(each.owners, names))


def laid_over(
    facts: Facts, brought: Brought, out: Collection[NormalizedName], loads: LoadFacts, gpu: GpuCodeFacts
) -> Facts:
    """Return the facts after whole distributions were laid over, and ``out`` left out.

    ``loads`` and ``gpu`` are what is said of the objects that are then there: ``gpu`` of those that were.
    """
    wanted = {*brought.names, *out}
    installed, site = facts[Installed], facts[SiteFacts]
    prefix = f"{site.path}/" if site.path else ""
    gone = set(objects_of(facts, wanted))
    kept = {path: each for path, each in gpu.objects.items() if path not in gone}
    return facts.but(
        loads,
        GpuCodeFacts(objects={**kept, **brought.gpu}, unreadable=gpu.unreadable),
        replace(
            installed,
            distributions=(
                *(each for each in installed.distributions if each.key not in wanted),
                *brought.distributions,
            ),
            conflicts=tuple(each for each in installed.conflicts if not owned(each.claims, wanted)),
        ),
        replace(
            site,
            objects=(
                *(each for each in site.objects if not owned(each.owners, wanted)),
                *(replace(each, path=prefix + each.path) for each in brought.objects),
            ),
            operators=_operators(site.operators, brought.operators, wanted, gone),
        ),
    )


def _operators(
    known: Operators, brought: Iterable[Operators], gone: Collection[NormalizedName], objects: Collection[str]
) -> Operators:
    """Return both sides of operators after distributions went with their objects, and others came."""
    makers = {name for name in known.makers if canonicalize_name(name) not in gone}
    sources = {path: each for path, each in known.sources.items() if not owned([each.owner], gone)}
    registered = {
        space: {path: each for path, each in found.items() if path not in objects}
        for space, found in known.registered.items()
    }
    unread, exports, modules = dict(known.unread), dict(known.exports), set(known.modules)
    for new in brought:
        makers |= set(new.makers)
        sources |= new.sources
        unread |= new.unread
        for space, found in new.registered.items():
            registered[space] = {**registered.get(space, {}), **found}
        exports |= new.exports
        modules = {path for path in modules if path.partition("/")[0] not in new.exports} | set(new.modules)
    return replace(
        known,
        makers=tuple(sorted(makers)),
        sources=sources,
        unread=unread,
        registered={space: found for space, found in registered.items() if found},
        exports=exports,
        modules=tuple(sorted(modules)),
    )


def changed_by_versions(
    facts: Facts, changes: Sequence[Change], resolved: Mapping[NormalizedName, str]
) -> Facts:
    """Return the facts after changes of which only the versions are known.

    Objects of a changed distribution are left out: they cannot be judged before they are there. So are
    objects whose missing library or symbol a changed distribution may bring. ``resolved``: versions of all
    that was resolved with them; they tell for which CUDA another torch is.
    """
    installed, site, loads = facts[Installed], facts[SiteFacts], facts[LoadFacts]
    gone = {each.name for each in changes}
    out = {each.name for each in changes if each.after is None}
    kept = tuple(each for each in installed.distributions if each.key not in gone)
    template = {each.key: each for each in installed.distributions}
    new = tuple(
        _unseen(template.get(each.name, installed.distributions[0]), each.name, each.after)
        for each in changes
        if each.after
    )
    theirs = set(objects_of(facts, gone))
    versions = {each.name: each.after for each in changes if each.after}
    return facts.but(
        replace(
            installed,
            distributions=(*kept, *new),
            conflicts=tuple(each for each in installed.conflicts if not owned(each.claims, out)),
        ),
        replace(
            site,
            objects=tuple(each for each in site.objects if site.within(each.path) not in theirs),
            operators=replace(site.operators, registered={})
            if gone & {canonicalize_name(name) for name in site.operators.makers}
            else site.operators,
        ),
        replace(
            loads,
            preload=None if "torch" in gone or _may_help(gone, loads.preload) else loads.preload,
            objects=tuple(
                each
                for each in loads.objects
                if each.path not in theirs and not _may_help(gone, each.verdict)
            ),
            installed={name: version for name, version in loads.installed.items() if name not in gone}
            | versions,
            cuda=_cuda(resolved) or loads.cuda if "torch" in gone else loads.cuda,
        ),
    )


def owned(owners: Iterable[str], names: Collection[NormalizedName]) -> bool:
    """Tell whether one of ``owners`` (``name==version``) is among ``names``."""
    return any(canonicalize_name(owner.partition("==")[0]) in names for owner in owners)


def _unseen(template: Distribution, name: NormalizedName, version: str) -> Distribution:
    """Return a distribution of which only the name and the version are known; its resolver saw the rest."""
    return replace(
        template,
        name=str(name),
        version=version,
        requires=(),
        requires_python=None,
        tags=(),
        editable=False,
        mismatched=(),
        missing=(),
        unverified=(),
        problems=(),
    )


def _cuda(resolved: Mapping[NormalizedName, str]) -> str | None:
    """Return the CUDA that a resolved torch brings (``13.0``)."""
    for name in _RUNTIMES:
        if (version := resolved.get(canonicalize_name(name))) is not None:
            return ".".join(version.split(".")[:2])
    return None


def _may_help(names: set[NormalizedName], load: Load | None) -> bool:
    """Tell whether what an object lacks is something that one of ``names`` may bring."""
    if load is None or load.loads is True:
        return False
    of_nvidia = bool(_NVIDIA.search(load.missing_library or load.symbol or ""))
    of_torch = bool(_TORCH.search(load.missing_library or load.symbol or ""))
    return (of_torch and "torch" in names) or (
        of_nvidia and any(name == "torch" or name.startswith("nvidia-") for name in names)
    )
