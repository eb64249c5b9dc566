"""The guard before every write: the right machine, both identities shown, the owner named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hostenv.errors import RefusedError
from hostenv.spec.fleet import load_fleet
from hostenv.steps.identity import Seen, require_identity

if TYPE_CHECKING:
    import pathlib

    from hostenv.spec.fleet import Fleet

REST = '[env]\nrequires = ["x"]\n[platform]\nglibc = "2.34"\npython = "3.12"\n'
IDS = {"ct129": "1" * 32, "ct200": "2" * 32}
KEYS = {"ct129": "SHA256:" + "A" * 43, "ct200": "SHA256:" + "B" * 43}
CT129 = Seen(machine_id=IDS["ct129"], host_key=KEYS["ct129"])
CT200 = Seen(machine_id=IDS["ct200"], host_key=KEYS["ct200"])


@pytest.fixture
def fleet(tmp_path: pathlib.Path) -> Fleet:
    for name, machine_id in IDS.items():
        identity = f'[identity]\nmachine-id = "{machine_id}"\nhost-key = "{KEYS[name]}"\n'
        (tmp_path / f"{name}.toml").write_text(f'[host]\nroot = "/r"\n{identity}{REST}')
    (tmp_path / "new.toml").write_text(f'[host]\nroot = "/r"\n{REST}')
    (tmp_path / "watched.toml").write_text(f'[host]\nroot = "/r"\nmode = "observe"\n{REST}')
    local = f'[host]\ntransport = "local"\nroot = "/r/%s"\n{REST}'
    (tmp_path / "local.toml").write_text(local % "local")
    (tmp_path / "known.toml").write_text(f'{local % "known"}[identity]\nmachine-id = "{"3" * 32}"\n')
    return load_fleet(tmp_path)


def guard(fleet: Fleet, name: str, seen: Seen) -> None:
    require_identity(fleet.specs[name], seen, fleet.specs.values())


def test_the_machine_that_is_meant_may_be_written_to(fleet: Fleet) -> None:
    guard(fleet, "ct200", CT200)
    guard(fleet, "local", Seen(machine_id=None, host_key=None))
    guard(fleet, "known", Seen(machine_id="3" * 32, host_key=None))


def test_another_machine_is_refused_by_its_name(fleet: Fleet) -> None:
    with pytest.raises(RefusedError, match=r"^ct200: wrong machine: this is ct129; ") as refused:
        guard(fleet, "ct200", CT129)
    for shown in (*IDS.values(), *KEYS.values()):
        assert shown in refused.value.message


@pytest.mark.parametrize(
    "seen",
    [
        Seen(machine_id="4" * 32, host_key=KEYS["ct200"]),
        Seen(machine_id=IDS["ct200"], host_key="SHA256:" + "C" * 43),
        Seen(machine_id=None, host_key=KEYS["ct200"]),
        Seen(machine_id=IDS["ct200"], host_key=None),
        Seen(machine_id=IDS["ct129"], host_key=KEYS["ct200"]),
    ],
)
def test_half_an_identity_is_none_and_names_nobody(fleet: Fleet, seen: Seen) -> None:
    """A cloned image keeps its machine id, a reinstalled machine may keep its keys."""
    with pytest.raises(RefusedError, match=r"^ct200: wrong machine; "):
        guard(fleet, "ct200", seen)


def test_a_local_machine_with_another_id_is_refused(fleet: Fleet) -> None:
    with pytest.raises(RefusedError, match="known: wrong machine"):
        guard(fleet, "known", Seen(machine_id="5" * 32, host_key=None))


def test_a_host_without_identity_gets_the_lines_to_paste(fleet: Fleet) -> None:
    with pytest.raises(RefusedError, match=r"new: its spec has no \[identity\]") as refused:
        guard(fleet, "new", Seen(machine_id="6" * 32, host_key=KEYS["ct129"]))
    assert refused.value.hint
    assert f'machine-id = "{"6" * 32}"\n    host-key = "{KEYS["ct129"]}"' in refused.value.hint


def test_a_host_that_is_only_observed_is_refused_whatever_it_is(fleet: Fleet) -> None:
    with pytest.raises(RefusedError, match=r"watched: host\.mode is"):
        guard(fleet, "watched", CT129)
