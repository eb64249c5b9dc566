"""Command lines: what they ask for, and what is said of a wrong one."""

from __future__ import annotations

import pytest

from hostenv import arguments
from hostenv.errors import InputError


@pytest.mark.parametrize("session", sorted(arguments._SESSIONS))
def test_every_session_has_a_help_text_that_shows_its_words(session: str) -> None:
    with pytest.raises(arguments.HelpRequested) as asked:
        arguments.parse(session, ["--help"])
    first = str(asked.value).splitlines()[0]
    assert first.startswith(f"usage: nox -s {session} -- ")
    assert first.endswith("[options]")


@pytest.mark.parametrize("word", ["0", "-1", "x", "1.5"])
def test_a_number_of_hosts_is_a_whole_one(word: str) -> None:
    with pytest.raises(InputError, match="1 or more"):
        arguments.parse("build_env", ["local", "--jobs", word])


def test_words_keep_their_order_and_upgrade_may_be_repeated() -> None:
    asked = arguments.parse("lock", ["b", "a", "--upgrade", "numpy", "--upgrade", "torch"])
    assert (asked.hosts, asked.upgrade) == (("b", "a"), ("numpy", "torch"))
    assert arguments.parse("lock", ["a", "--upgrade"]).upgrade == ("",)


def test_an_unknown_option_says_where_help_is() -> None:
    with pytest.raises(InputError, match="--frob") as refused:
        arguments.parse("lock", ["a", "--frob"])
    assert refused.value.hint == "nox -s lock -- --help"


@pytest.mark.parametrize("session", sorted(arguments._SESSIONS))
def test_every_session_has_a_help_text_that_shows_its_words(session: str) -> None:
    with pytest.raises(arguments.HelpRequested) as asked:
        parse(session, ["--help"])
    first = str(asked.value).splitlines()[0]
    assert first.startswith(f"usage: nox -s {session} -- ")
    assert first.endswith("[options]")


def test_an_unknown_option_says_where_help_is() -> None:
    with pytest.raises(InputError, match="--frob") as refused:
        parse("lock", ["a", "--frob"])
    assert refused.value.hint == "nox -s lock -- --help"
