"""Facts written out in a test, with sound values for whatever the test does not care about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hostenv.facts.distributions import Distribution, Installed
from hostenv.facts.interpreter import Interpreter
from hostenv.facts.manifest import TreeFacts

SITE = "lib/python3.12/site-packages"

INTERPRETER = Interpreter(
    implementation="cpython",
    version="3.12.1",
    python="3.12",
    abi="cp312",
    present=True,
    system_site=False,
    machine="x86_64",
    system="Linux",
    system_release="6.1",
    system_version="#1",
    libc="glibc 2.36",
)

TREE = TreeFacts(
    fingerprint="0" * 64, interpreter=INTERPRETER, files=0, links=0, bytes=0, left_out=0, read=0, problems=()
)

_SOUND = Distribution(
    name="alpha",
    version="1.0",
    info="",
    requires=(),
    requires_python=None,
    extras=(),
    tags=("py3-none-any",),
    installer="uv",
    direct_url=None,
    editable=False,
    entry_points={},
    files=1,
    mismatched=(),
    missing=(),
    unverified=(),
    problems=(),
)


def a_distribution(name: str, version: str = "1.0", *requires: str, **fields: Any) -> Distribution:
    """Return an installed distribution that is sound but for what is given."""
    return replace(_SOUND, name=name, version=version, requires=requires, **fields)


def an_environment(*distributions: Distribution, **fields: Any) -> Installed:
    """Return an environment of these distributions on a Linux host with CPython 3.12 and glibc 2.36."""
    given: dict[str, Any] = {"tree": TREE, "site": SITE, "unowned": {}, "conflicts": (), **fields}
    return Installed(distributions=distributions, **given)
