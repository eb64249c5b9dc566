"""Words of a command line become a request, or an error that says which words would do."""

from __future__ import annotations

import pytest

from hostenv import arguments
from hostenv.arguments import parse
from hostenv.errors import InputError


@pytest.mark.parametrize(
    ("option", "word", "least"),
    [
        ("--jobs", "x", 1),
        ("--jobs", "0", 1),
        ("--jobs", "1.5", 1),
        ("--jobs", "²", 1),
        ("--serial", "-1", 1),
        ("--max-fail", "many", 0),
        ("--max-fail", "-1", 0),
    ],
)
def test_what_is_no_number_is_told_in_words(option: str, word: str, least: int) -> None:
    with pytest.raises(InputError, match=f"must be a whole number, {least} or more") as caught:
        parse("switch", ["a", f"{option}={word}"])
    assert option in caught.value.message


def test_a_bound_on_failures_is_of_the_sessions_that_roll_over_hosts() -> None:
    assert parse("switch", ["a"]).max_fail == 0
    assert parse("rollback", ["a", "--max-fail", "2", "--serial", "1"]).max_fail == 2
    assert parse("build_env", ["a"]).max_fail is None


@pytest.mark.parametrize("words", [["--upgrade", "local"], ["--dry-run", "--upgrade", "local"]])
def test_a_host_that_was_taken_for_a_distribution_is_named(words: list[str]) -> None:
    with pytest.raises(InputError, match='--upgrade took "local" for a distribution') as caught:
        parse("lock", words)
    assert "put HOST first" in str(caught.value.hint)


@pytest.mark.parametrize("words", [[], ["--upgrade"], ["--jobs", "x", "--upgrade", "a"]])
def test_other_faults_beside_upgrade_keep_their_words(words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        parse("lock", words)
    assert "took" not in caught.value.message


def test_a_bare_upgrade_is_of_everything() -> None:
    assert parse("lock", ["local", "--upgrade"]).upgrade == ("",)
    assert parse("lock", ["local", "--upgrade", "torch", "--upgrade", "numpy"]).upgrade == ("torch", "numpy")


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


def test_why_is_explained_by_what_the_session_does_with_it() -> None:
    told = []
    for session in ("overlay", "rollback"):
        with pytest.raises(arguments.HelpRequested) as text:
            parse(session, ["--help"])
        told.append(str(text.value))
    assert "kept in overlays/NAME.toml" in told[0]
    assert "kept with the hold" in told[1]
