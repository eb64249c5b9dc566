"""Where a hand-made environment is not what its spec says, told from facts."""

from __future__ import annotations

import datetime as dt
import hashlib

import pytest

from hostenv.checks.drift import drift_of_handmade
from hostenv.facts.distributions import Installed
from hostenv.spec.overlay import Origin, OverlaidDistribution, Overlay
from hostenv.spec.overlaylist import NOBODY, OverlayFile

SITE = "lib/python3.12/site-packages"
SHIPPED, PATCHED, OTHER = (hashlib.sha256(word).hexdigest() for word in (b"shipped", b"patched", b"other"))
TREE: dict[str, object] = {
    "fingerprint": None,
    "interpreter": {
        "implementation": "cpython",
        **dict.fromkeys(("version", "python", "abi", "libc"), None),
        **dict.fromkeys(("machine", "system", "system_release", "system_version"), ""),
        **dict.fromkeys(("present", "system_site"), True),
    },
    **dict.fromkeys(("files", "links", "bytes", "left_out", "read"), 0),
    "problems": [],
}
LISTS = ("requires", "extras", "tags", "mismatched", "missing", "unverified", "problems")


def installed(unowned: dict[str, str | None], problems: dict[str, str] | None = None) -> Installed:
    kernel: dict[str, object] = {
        "name": "kernel",
        "version": "1.0",
        "info": f"{SITE}/kernel-1.0.dist-info",
        **dict.fromkeys(("requires_python", "installer", "direct_url"), None),
        **{name: [] for name in LISTS},
        "editable": False,
        "entry_points": {},
        "files": 1,
    }
    unread: object = [
        {"path": f"{SITE}/{path}", "reason": reason} for path, reason in (problems or {}).items()
    ]
    return Installed.from_answer(
        {
            "tree": TREE | {"problems": unread},
            "site": SITE,
            "distributions": [kernel],
            "unowned": {f"{SITE}/{path}": digest for path, digest in unowned.items()},
            "conflicts": [],
        },
        "ref",
    )


OVERLAY = Overlay(
    name="ours",
    why="w",
    origin=Origin(host="ref", venv="/opt/venv", taken=dt.date(2026, 12, 1), python="3.12", arch="x86_64"),
    distributions=(OverlaidDistribution(name="kernel", version="1.0"),),
    binaries=(),
    files=(
        OverlayFile(path="kernel/a.py", dist="kernel", mode=0o644, size=7, sha256=SHIPPED),
        OverlayFile(path="loose.py", dist=NOBODY, mode=0o644, size=7, sha256=SHIPPED),
        OverlayFile(path="alias.py", dist=NOBODY, target="loose.py"),
    ),
)
SOUND: dict[str, str | None] = {"loose.py": SHIPPED, "alias.py": None, "kernel/added.py": PATCHED}


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (SOUND, []),
        ({**SOUND, "loose.py": OTHER}, ["overlay  loose.py is not what overlays/ours has"]),
        ({**SOUND, "alias.py": OTHER}, ["overlay  alias.py is not what overlays/ours has"]),
        (
            {path: digest for path, digest in SOUND.items() if path != "loose.py"},
            ["overlay  loose.py is not what overlays/ours has"],
        ),
        ({**SOUND, "kernel/added.py": OTHER}, ["edited   kernel/added.py"]),
        (
            {path: digest for path, digest in SOUND.items() if path != "kernel/added.py"},
            ["pristine kernel/added.py: the series was not applied"],
        ),
        ({**SOUND, "stray.py": OTHER}, ["edited   stray.py"]),
    ],
)
def test_loose_files_and_a_series_over_an_overlay_are_compared(
    there: dict[str, str | None], said: list[str]
) -> None:
    applied = {"kernel/a.py": PATCHED, "kernel/added.py": PATCHED}
    found = drift_of_handmade(installed(there), wheels={}, overlays=[OVERLAY], applied=applied)
    assert list(found) == said


def test_what_could_not_be_read_is_drift_unless_the_spec_ignores_it() -> None:
    """Neither found different nor missing: nobody knows what it is."""
    there = installed(SOUND, {"demo/a.py": "changed while it was read", "logs/pipe": "is a FIFO"})
    found = drift_of_handmade(
        there,
        wheels={},
        overlays=[OVERLAY],
        applied={"kernel/added.py": PATCHED},
        ignore=[f"{SITE}/logs/*"],
    )
    assert list(found) == ["unread   demo/a.py changed while it was read"]
