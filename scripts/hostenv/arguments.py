"""Command lines of the sessions: words after ``--`` become a request."""

from __future__ import annotations

import argparse
import itertools
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from hostenv.errors import InputError
from hostenv.workflows.request import Request

if TYPE_CHECKING:
    from collections.abc import Sequence


class HelpRequested(Exception):  # noqa: N818  not an error: the words asked for the help text
    """``--help`` was given; ``str()`` is the text to show."""


class _Parser(argparse.ArgumentParser):
    """An argparse parser that raises: ``SystemExit`` would end all of nox without a summary."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{self.prog}: {message}", hint=f"{self.prog} --help")

    def print_help(self, file: object = None) -> None:
        del file
        raise HelpRequested(self.format_help())


_Adder = Callable[[argparse.ArgumentParser], None]


def _writing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print the plan and stop")


def _locking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--upgrade",
        nargs="?",
        const="",
        action="append",
        metavar="NAME",
        help="newest version of one distribution (may be repeated), or of all without NAME",
    )


def _pythons(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--python", metavar="3.N", help="for this minor version, where the spec allows several"
    )


def _switching(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--despite-running", action="store_true", help="switch although processes run through the link"
    )
    parser.add_argument(
        "--adopt-link", action="store_true", help="move aside what stands at host.link and put the link there"
    )


def _judging(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--venv", metavar="PATH", help="this environment on the host, built by anyone")
    parser.add_argument(
        "--facts", type=pathlib.Path, metavar="FILE", help="judge against saved facts of another machine"
    )
    parser.add_argument(
        "--suggest", action="store_true", help="for what fails, find the smallest change that makes it pass"
    )
    parser.add_argument(
        "--reference",
        metavar="PLACE",
        help="an environment that works, to take distributions from: HOST, HOST:PATH, or a path there",
    )
    parser.add_argument(
        "--rehash",
        action="store_true",
        help="read every byte and hold it against RECORD, not only what is contested",
    )


def _probing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--save", action="store_true", help="keep the stable facts in envspecs/facts, for locks and checks"
    )


def _matching(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--diff", action="store_true", help="show what differs in text files")
    parser.add_argument("--rehash", action="store_true", help="read every byte, whatever is remembered")
    parser.add_argument(
        "--manifest",
        type=pathlib.Path,
        metavar="FILE",
        help="hold every place against this file of a capture, instead of against the first",
    )


def _pruning(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wheels", action="store_true", help="remove wheels, too, that no build and no lock names"
    )
    parser.add_argument(
        "--despite-unknown",
        action="store_true",
        help="although processes of other users cannot be looked into",
    )


def _taking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--venv", metavar="PATH", help="this environment on the host, built by anyone")


def _syncing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--discard-edits", action="store_true", help="save what was edited by hand on a target, and go on"
    )
    parser.add_argument(
        "--from-drift", action="store_true", help="capture the reference first where it has drifted"
    )


def _from_git(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from-git", nargs=2, metavar=("DIR", "BASE..BRANCH"), help="commits of a checkout there as patches"
    )
    parser.add_argument("--strip", metavar="FOLDER/", help="the folder of the checkout that is installed")
    parser.add_argument(
        "--replace",
        action="store_true",
        help="write the class anew although it was edited by hand, or is another environment's",
    )


def _rolling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--serial", type=_positive, metavar="N", help="this many hosts at a time")
    parser.add_argument(
        "--max-fail",
        type=_count,
        default=0,
        metavar="N",
        help="start no further host once more than N have failed (0)",
    )


def _building(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stage", action="store_true", help="stop before the switch")
    parser.add_argument(
        "--relock", action="store_true", help="resolve again where a remote host's lock is stale"
    )


def _remaking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--remake",
        action="store_true",
        help="make the build anew though it is there; refused while processes use it",
    )


def _choosing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--build",
        metavar="ID",
        help="this build, by its id or the beginning of it, instead of the staged or previous one",
    )


def _holding(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--why", metavar="TEXT", help="kept with the hold that a rollback sets")


def _explaining(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--why", metavar="TEXT", help="kept in overlays/NAME.toml (as it works on HOST)")


_SESSIONS: dict[str, tuple[str, tuple[_Adder, ...]]] = {
    "build_env": (
        "Build each host's environment, check it and switch to it.",
        (_writing, _building, _remaking, _locking, _switching),
    ),
    "lock": ("Resolve for each host's platform and write its lock.", (_writing, _locking, _pythons)),
    "fetch": ("Fill the wheelhouse of each host with the wheels of its lock.", (_writing,)),
    "switch": ("Activate the staged build, or another.", (_writing, _choosing, _switching, _rolling)),
    "verify_abi": ("Judge every binary of each host's environment, statically.", (_judging,)),
    "probe": ("Read what is there, on several hosts at once; nothing is changed.", (_probing,)),
    "status": ("One line a host: build, processes, hold, GPUs, disk; nothing is changed.", ()),
    "oracle": ("Hold the simulated loader against the real one; HOST is the path of a venv here.", ()),
    "match": (
        (
            "Compare each TARGET with the first; a place is HOST, its [capture] venv where its spec has one, "
            "else its current build, or HOST:PATH, any virtual environment; the path is printed. One place "
            "alone is compared with what was built there. (verify_abi, status, builds: the current build.)"
        ),
        (_matching,),
    ),
    "overlay": (
        "Take distributions (names or patterns), or loose ./FILES and ./FOLDERS/, of HOST as overlays/NAME.",
        (_writing, _taking, _explaining),
    ),
    "sync_patches": (
        "Bring series and overlays of REFERENCE to each TARGET, and prove them equal.",
        (_writing, _building, _switching, _syncing),
    ),
    "capture": (
        "Turn the environment of HOST into a spec, series, overlays and a manifest; HOST is only read.",
        (_writing, _taking, _from_git),
    ),
    "builds": ("List the builds of each host: size, age, and what uses them.", ()),
    "prune": ("Remove the builds that nothing uses, beyond build.keep.", (_writing, _pruning)),
    "rollback": (
        "Go back to the previous generation and hold the host there.",
        (_writing, _choosing, _holding, _switching, _rolling),
    ),
}


_DEFAULT_HOSTS = frozenset({"verify_abi"})
"""Sessions that, without a HOST, take the default hosts of ``envspecs/fleet.toml``."""


_WORDS: dict[str, str] = {
    "match": "REFERENCE TARGET...",
    "oracle": "VENV...",
    "overlay": "HOST NAME DIST...",
    "sync_patches": "REFERENCE TARGET...",
    "verify_abi": "[HOST...]",
}
"""What the words of a session are called where they are not all hosts alike."""


def parse(session: str, words: Sequence[str]) -> Request:
    """Return the request that ``words`` make of a session.

    Raises :class:`~hostenv.errors.InputError` on a bad word, :class:`HelpRequested` on ``--help``.
    """
    description, adders = _SESSIONS[session]
    named = _WORDS.get(session, "HOST...")
    usage = f"%(prog)s {named} [options]"
    parser = _Parser(prog=f"nox -s {session} --", usage=usage, description=description, allow_abbrev=False)
    count = "*" if session in _DEFAULT_HOSTS else "+"
    parser.add_argument(
        "hosts", nargs=count, metavar=named, help="a HOST is a name in envspecs/, @tag or @all"
    )
    parser.add_argument(
        "--json",
        type=pathlib.Path,
        metavar="FILE",
        help="write the result as JSON, too; - for standard output, the page is then on standard error",
    )
    parser.add_argument("--jobs", type=_positive, default=8, metavar="N", help="hosts side by side (8)")
    for add in adders:
        add(parser)
    given = vars(_parsed(parser, words))
    for name in ("hosts", "upgrade", "from_git"):
        if given.get(name) is not None:
            given[name] = tuple(given[name])
    return Request(session=session, **given)


def _parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Parse; where nothing but the order is wrong, since ``--upgrade`` took the HOST for a NAME, say that."""
    try:
        return parser.parse_args(list(words))
    except InputError:
        for at, (option, taken) in enumerate(itertools.pairwise(words)):
            if option == "--upgrade" and _parses(parser, [taken, *words[: at + 1], *words[at + 2 :]]):
                raise InputError(
                    f'{parser.prog}: --upgrade took "{taken}" for a distribution, and no HOST is left',
                    hint=f"put HOST first: {parser.prog} {taken} --upgrade",
                ) from None
        raise


def _parses(parser: argparse.ArgumentParser, words: Sequence[str]) -> bool:
    try:
        parser.parse_args(list(words))
    except InputError:
        return False
    return True


def _positive(word: str) -> int:
    return _whole(word, 1)


def _count(word: str) -> int:
    return _whole(word, 0)


def _whole(word: str, least: int) -> int:
    if not (word.isascii() and word.isdigit() and int(word) >= least):
        raise argparse.ArgumentTypeError(f"must be a whole number, {least} or more, not {word!r}")
    return int(word)
