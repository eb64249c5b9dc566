"""Asking uv which packages answer some requirements on a platform, and where their wheels lie."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import TYPE_CHECKING

from hostenv.errors import SupplyError
from hostenv.machine import uv
from hostenv.steps import pylock

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterable, Iterator

    from hostenv.spec.lockplatform import LockPlatform


def reach(indexes: Iterable[str], torch_backend: str | None) -> list[str]:
    """Return uv's arguments for indexes that a spec names and that uv's settings define.

    What ``UV_INDEX`` already defines (``name=URL``) needs no argument.
    """
    defined = {each.partition("=")[0] for each in os.environ.get("UV_INDEX", "").split() if "=" in each}
    names = [name for name in indexes if name != "default" and name not in defined]
    arguments = [part for name in names for part in ("--index", name)]
    arguments += ["--preview-features", "index-by-name"] if names else []
    return arguments + (["--torch-backend", torch_backend] if torch_backend else [])


def compile_pylock(
    arguments: Iterable[str], platform: LockPlatform, folder: pathlib.Path
) -> tuple[pylock.PylockPackage, ...]:
    """Run ``uv pip compile`` for ``platform`` in ``folder`` and read the ``pylock.toml`` that it writes."""
    output = folder / "pylock.toml"
    command = ["pip", "compile", "--quiet", "--no-build", "--no-header", "--format", "pylock.toml"]
    command += ["--python-version", platform.python, "--python-platform", platform.uv_platform]
    command += ["--python", sys.executable]  # uv wants some interpreter; none on PATH shall matter
    with _explained(platform):
        uv.run([*command, "--output-file", output.name, *arguments], folder=folder)
    return pylock.read(output.read_text(encoding="utf-8"), folder=folder, platform=platform)


@contextlib.contextmanager
def _explained(platform: LockPlatform) -> Iterator[None]:
    """Turn uv's refusal of a package without wheels into what an operator can do about it."""
    try:
        yield
    except uv.UvError as error:
        names = dict.fromkeys(re.findall(r"Wheels are required for `([^`]+)`", error.said))
        if names:
            raise no_wheel(names, platform) from error
        raise


def no_wheel(names: Iterable[str], platform: LockPlatform) -> SupplyError:
    """Return the error for packages that have no wheel for ``platform``, by name."""
    listed = ", ".join(names)
    return SupplyError(
        f"no wheel for {platform.name} (glibc {platform.glibc}): {listed}; nothing is built from source",
        hint="build the wheel once (pip wheel --no-deps NAME) and serve it by UV_FIND_LINKS or an index of "
        "yours, ask for a version that has wheels (env.constraints), or leave it out (env.excludes)",
    )
