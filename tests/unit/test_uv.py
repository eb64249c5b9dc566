"""What of uv's words reaches a log or an error: no credentials."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostenv.machine.uv import without_credentials

SECRET = "s3cret"  # noqa: S105  what must not be shown
_PRINTED = "".join(sorted(set(string.printable) - set(string.whitespace)))
_IN_USERINFO = st.text(_PRINTED.replace("/", ""), max_size=12)
_IN_QUERY = st.text(_PRINTED, max_size=12)
_QUOTED = st.sampled_from(["{}", "`{}`", "({})", "'{}':", '"{}",'])


@given(before=_IN_USERINFO, after=_IN_USERINFO, quoted=_QUOTED, scheme=st.sampled_from(["http", "https"]))
def test_no_user_and_no_password_is_left(before: str, after: str, quoted: str, scheme: str) -> None:
    url = f"{scheme}://{before}{SECRET}{after}@index.example/simple/"
    text = without_credentials(f"error: failed to fetch {quoted.format(url)} at once")
    assert SECRET not in text
    assert quoted.format(f"{scheme}://index.example/simple/") in text


@given(before=_IN_QUERY, after=st.text(string.ascii_letters, max_size=5), quoted=_QUOTED)
def test_no_query_is_left(before: str, after: str, quoted: str) -> None:
    url = f"https://index.example/simple/?token={before}{SECRET}{after}"
    text = without_credentials(f"error: failed to fetch {quoted.format(url)} at once")
    assert SECRET not in text
    assert quoted.format("https://index.example/simple/?…") in text


@pytest.mark.parametrize(
    "text",
    [
        "Because a>=2 and b==1 (what? nothing else), a@1 depends on b",
        "see https://index.example/simple/a/ (and no other)",
        "file:///srv/wheels/a-1-py3-none-any.whl#sha256=00",
    ],
)
def test_other_words_stay_as_they_are(text: str) -> None:
    assert without_credentials(text) == text
