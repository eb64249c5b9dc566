"""What surrounds an environment: what compiles for it, where kernels are kept, what the loader is told."""

from __future__ import annotations

import glob
import os
import re
import time
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional

from hostenv.agent import driverfiles, jitcaches, pyvenv, toolkit
from hostenv.agent.wire import AgentError

if TYPE_CHECKING:
    from hostenv.agent.wire import Wire

_CONFIGURATION = "/etc/ld.so.conf"
_CONFIGURATIONS = "/etc/ld.so.conf.d/*.conf"
_OF_THE_LOGIN = ("PATH", "CUDA_HOME", "CUDA_PATH")
_NCCL = ("/etc/nccl.conf", "~/.nccl.conf")
_ROCM = "/opt/rocm"
_TEXT_LIMIT = 1 << 16
_MOST_NAMES = 2000


def surroundings(
    wire: Wire,
    *,
    venv: str,
    environment: Optional[Mapping[str, str]] = None,
    user: Optional[str] = None,
    host: bool = True,
) -> Dict[str, Any]:
    """Return what :class:`hostenv.facts.surroundings.Surroundings` reads; nothing is run or written.

    ``environment``: the variables of the service, ``user`` its login (else the agent's own). Without
    ``host`` only what lies in the environment itself is told: it is judged for another machine.
    """
    del wire
    started = time.monotonic()
    sites = pyvenv.site_packages(venv)
    if len(sites) != 1:
        raise AgentError(f"{venv} has {len(sites)} site-packages folders, not one")
    site, settings = os.path.join(venv, sites[0]), dict(environment or {})
    if "PATH" not in settings:  # as the probe's toolchain: the login's, where the spec names none
        login = {name: os.environ[name] for name in _OF_THE_LOGIN if name in os.environ}
        settings = {**login, **settings}
    include = _include(venv, sites[0])
    ninja = os.path.join(venv, "bin", "ninja")
    return {
        "venv": venv,
        "toolkits": toolkit.toolkits(site, toolkit.cuda_home(settings) if host else None),
        "assemblers": toolkit.assemblers(site, settings),
        "python_headers": include,
        "has_python_headers": os.path.isfile(os.path.join(include, "Python.h")),
        "ninja": ninja if os.access(ninja, os.X_OK) else None,
        "host": _host(settings, user) if host else None,
        "seconds": round(time.monotonic() - started, 3),
    }


def _include(venv: str, site: str) -> str:
    """Return where the headers of the environment's interpreter lie."""
    program = os.path.realpath(os.path.join(venv, "bin", "python"))
    return os.path.join(os.path.dirname(os.path.dirname(program)), "include", site.split(os.sep)[1])


def _host(environment: Mapping[str, str], user: Optional[str]) -> Dict[str, Any]:
    who = jitcaches.account(user, environment)
    return {
        "caches": jitcaches.caches(environment, who),
        "folders": library_folders(environment.get("LD_LIBRARY_PATH", "")),
        "preloaded": _text("/etc/ld.so.preload").split(),
        "nccl": [path for path in (place.replace("~", who.home) for place in _NCCL) if os.path.exists(path)],
        "majors": driverfiles.majors(),
        "modules": driverfiles.modules(),
        "rocm": os.path.isdir(_ROCM),
    }


def library_folders(library_path: str) -> List[Dict[str, Any]]:
    """Return the folders that LD_LIBRARY_PATH and the loader's configuration name, with their libraries."""
    tellers: Dict[str, str] = {}
    for folder in library_path.split(":"):
        if folder.startswith("/"):
            tellers.setdefault(os.path.normpath(folder), "LD_LIBRARY_PATH")
    for file in (_CONFIGURATION, *sorted(glob.glob(_CONFIGURATIONS))):
        for line in _text(file).splitlines():
            if line.strip().startswith("/"):
                tellers.setdefault(os.path.normpath(line.strip()), file)
    return [{"path": path, "told_by": by, "libraries": _libraries(path)} for path, by in tellers.items()]


def _libraries(folder: str) -> List[str]:
    try:
        names = sorted(name for name in os.listdir(folder) if re.search(r"\.so(\.\d+)*\Z", name))
    except OSError:
        return []
    return names[:_MOST_NAMES]


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_TEXT_LIMIT)
    except OSError:
        return ""
