"""Command lines without their secrets."""

from __future__ import annotations

import re
from typing import List, Sequence

MASK = "***"
MOST_ARGUMENTS = 100
LONGEST = 400
"""Characters of one argument that are told."""
_LOOKED_AT = 1024
"""Characters of one argument that are looked at: the patterns take a time that grows with its square."""

_WORDS = frozenset(
    {"apikey", "auth", "authorization", "bearer", "cookie", "credential", "credentials", "key", "passcode"}
    | {"passphrase", "passwd", "password", "pat", "pwd", "secret", "token"}
)
_OPTION = re.compile(r"\A(--?[A-Za-z][\w.-]*)(=?)(.*)\Z", re.DOTALL)
_ASSIGNMENT = re.compile(r"\A([A-Za-z_]\w*)=(.*)\Z", re.DOTALL)
_INSIDE = (
    # user:password in a URL
    (re.compile(r"(?<=://)[^/\s@'\"]+(?=@)"), MASK),
    # tokens that show what they are: Hugging Face, OpenAI and kin, GitHub, GitLab, Slack, AWS
    (
        re.compile(
            r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[\w-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}"
            r"|glpat-[\w-]{8,}|xox[abposr]-[\w-]{8,}|AKIA[A-Z0-9]{12,})"
        ),
        MASK,
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w+/=.~-]{6,}"), rf"\1 {MASK}"),
    # --api-key X inside a shell line, or a title that a process wrote over its arguments
    (
        re.compile(
            r"(?i)((?<!\S)--?(?:\w+[-_.])*(?:apikey|auth|credentials?|key|passphrase|passwd|password|secret|token))"
            r"\s+(?!--)(?:\"[^\"]*\"|'[^']*'|\S+)"
        ),
        rf"\1 {MASK}",
    ),
    # "token": "…" inside JSON, token=… inside a query or a shell line
    (
        re.compile(
            r"""(?ix) (["']?\b[\w-]*
            (?:api[_-]?key|auth(?:orization)?|passwd|password|secret|token)["']?\s*[:=]\s*)
            (?:"[^"]*"|'[^']*'|[^\s"',;&}]+)"""
        ),
        rf"\1{MASK}",
    ),
)


def masked(arguments: Sequence[str]) -> List[str]:
    """Return a command line's arguments with everything that may be a secret replaced, then shortened.

    Judged by the option's or variable's name (one of its words is ``key``, ``token``, ``password`` and so on,
    which ``--max-total-tokens`` and ``--tokenizer`` are not) and by the value's own form.
    """
    told: List[str] = []
    hidden = False
    for argument in arguments[:MOST_ARGUMENTS]:
        hidden = hidden and not argument.startswith("--")
        told.append(MASK if hidden else _shortened(_masked(argument[:_LOOKED_AT]), len(argument)))
        option = _OPTION.match(argument[:_LOOKED_AT])
        hidden = bool(not hidden and option and not option.group(2) and _is_secret(option.group(1)))
    if len(arguments) > MOST_ARGUMENTS:
        told.append(f"… {len(arguments) - MOST_ARGUMENTS} more")
    return told


def masked_text(text: str) -> str:
    """Return free text (a unit's description, a process title) with what looks like a secret replaced."""
    text = text[:_LOOKED_AT]
    for pattern, replacement in _INSIDE:
        text = pattern.sub(replacement, text)
    return text


def _masked(argument: str) -> str:
    for pattern in (_OPTION, _ASSIGNMENT):
        match = pattern.match(argument)
        if match and match.group(match.lastindex or 0) and _is_secret(match.group(1)) and "=" in argument:
            return f"{match.group(1)}={MASK}"
    return masked_text(argument)


def _is_secret(name: str) -> bool:
    return not _WORDS.isdisjoint(word.lower() for word in re.split(r"[-_.]+", name))


def _shortened(masked_argument: str, length: int) -> str:
    if len(masked_argument) <= LONGEST and length <= _LOOKED_AT:
        return masked_argument
    return f"{masked_argument[:LONGEST]}… ({length} characters)"
