"""Scripts as installers write them are one another's equal; what else differs in bin/ is told."""

from __future__ import annotations

import hashlib

import pytest

from hostenv.checks import handmade
from hostenv.facts.manifest import Difference, Entry, change

UV = """\
#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")"/'python' "$0" "$@"
' '''
# -*- coding: utf-8 -*-
import sys
from demo.cli import main
if __name__ == "__main__":
    if sys.argv[0].endswith("-script.pyw"):
        sys.argv[0] = sys.argv[0][:-11]
    elif sys.argv[0].endswith(".exe"):
        sys.argv[0] = sys.argv[0][:-4]
    sys.exit(main())
"""
PIP = """\
#!/opt/venv/bin/python3.12
# -*- coding: utf-8 -*-
import re
import sys
from demo.cli import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit(main())
"""
NEW_PIP = """\
#!/opt/venv/bin/python
import sys
from demo.cli import main
if __name__ == '__main__':
    sys.argv[0] = sys.argv[0].removesuffix('.exe')
    sys.exit(main())
"""
OTHER = PIP.replace("demo.cli", "demo.other")
EDITED = NEW_PIP.replace("import sys\n", "import sys, os\nos.environ['X'] = '1'\n", 1)
SHELL = "#!/bin/sh\nexec demo\n"
OWN = "#!/usr/bin/env python3\nprint('own')\n"
STARTS_PIP = NEW_PIP.replace("demo.cli", "pip._internal.cli.main")


def entry(text: str, mode: int = 0o755) -> Entry:
    return Entry(mode, len(text), hashlib.sha256(text.encode()).hexdigest())


def is_aside(one: str | None, other: str | None, path: str = "bin/demo", mode: int = 0o755) -> bool:
    """Tell whether two files of ``bin/`` are left aside where the first was made by hand."""
    entries = (entry(one) if one is not None else None, entry(other, mode) if other is not None else None)
    difference = Difference(path=path, change=change(*entries), reference=entries[0], target=entries[1])
    forms = [handmade.script_form(text or "") for text in (one, other)]
    sides = [{path: form} if form else {} for form in forms]
    return path in handmade.aside([difference], (), *sides)


@pytest.mark.parametrize("one", [PIP, NEW_PIP, PIP.rstrip("\n")])
def test_an_entry_points_script_is_one_whoever_wrote_it(one: str) -> None:
    assert handmade.script_form(one) == "demo.cli:main"
    assert is_aside(one, UV)


def test_a_script_differs_by_its_interpreters_line_alone() -> None:
    moved = OWN.replace("/usr/bin/env python3", "/opt/venv/bin/python")
    assert is_aside(OWN, moved)
    assert not is_aside(OWN, moved.replace("own", "other"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (OTHER, UV),
        (EDITED, UV),
        (SHELL, SHELL + "# edited\n"),
        ("\x7fELF one", "\x7fELF other"),
        ("\x7fELF one", UV),
        (None, UV),
        (UV, None),
        (None, "\x7fELF"),
    ],
)
def test_what_else_differs_is_told(one: str | None, other: str | None) -> None:
    assert not is_aside(one, other)


def test_a_script_that_is_not_executable_is_told() -> None:
    assert is_aside(PIP, UV, mode=0o700)
    assert not is_aside(PIP, UV, mode=0o644)


def test_pips_further_name_is_aside_and_only_if_it_starts_pip() -> None:
    assert is_aside(STARTS_PIP, None, "bin/pip3.12")
    assert not is_aside(STARTS_PIP, None, "bin/piper")
    assert not is_aside(UV, None, "bin/pip3.12")
