"""HTTP as a wheelhouse needs it: a body from an offset on, or an error that says whether to try again.

Certificates are judged as pip and uv's ``--system-certs`` judge them: by the system's trust store, unless
``REQUESTS_CA_BUNDLE`` or ``CURL_CA_BUNDLE`` names another. A login is sent to the origin it belongs to and
to no other, redirects included; where none is known, netrc is asked.
"""

from __future__ import annotations

import contextlib
import email.utils
import os
import re
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any

import requests
import requests.adapters
import requests.utils
import truststore
import urllib3.exceptions

from hostenv.errors import SupplyError
from hostenv.index.source import Logins, origin

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECT_TIMEOUT = 15.0
READ_TIMEOUT = 45.0
"""Seconds without a byte after which a transfer is tried again."""
LONGEST_WAIT = 60.0
"""Seconds of ``Retry-After`` that are honoured."""
GIVEN_UP = 300.0
"""Seconds of ``Retry-After`` above which asking again soon is no use."""

_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)")


class TransientError(Exception):
    """A transfer failed in a way that may pass; ``wait`` is what the server asked for, in seconds."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


class RangeRefusedError(TransientError):
    """The file there is shorter than what has arrived: to be begun again."""


class Body:
    """The bytes of a file from ``offset`` on; ``total`` is the whole file's size where the server says it."""

    def __init__(self, response: requests.Response, offset: int, total: int | None) -> None:
        self.offset = offset
        self.total = total
        self._response = response

    def read(self, limit: int) -> bytes:
        """Return up to ``limit`` bytes, ``b""`` at the end; raises :class:`TransientError` after a cut."""
        with _told():
            data: bytes = self._response.raw.read(limit, decode_content=False)
        return data

    def abort(self) -> None:
        """Make a read that another thread is in return at once."""
        with contextlib.suppress(Exception):  # it may end by itself at the same moment
            self._response.raw.shutdown()


class Session:
    """Connections to indexes, kept open between files; used by several threads."""

    def __init__(self, logins: Logins, connections: int) -> None:
        self._session = _Requests(logins)
        self._open: set[Body] = set()
        self._changing = threading.Lock()
        self._aborted = False
        own_bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
        adapter = _Adapter if own_bundle else _SystemTrust
        self._session.mount("https://", adapter(pool_connections=16, pool_maxsize=connections))
        self._session.mount("http://", _Adapter(pool_connections=16, pool_maxsize=connections))

    @contextlib.contextmanager
    def body(self, url: str, offset: int = 0) -> Iterator[Body]:
        """Open ``url`` at ``offset``; a server without ranges answers from the start (``Body.offset`` 0)."""
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={offset}-"} if offset else {})
        response = self._get(url, headers)
        with contextlib.closing(response):
            body = _body_of(response, offset)
            with self._changing:
                self._open.add(body)
                if self._aborted:
                    body.abort()
            try:
                yield body
            finally:
                with self._changing:
                    self._open.discard(body)

    def _get(self, url: str, headers: dict[str, str]) -> requests.Response:
        try:
            with _told():
                return self._session.get(
                    url, headers=headers, stream=True, timeout=(CONNECT_TIMEOUT, READ_TIMEOUT)
                )
        except ValueError as error:  # urlsplit's, of where we were sent
            raise SupplyError("the server sends on to something that is no URL") from error

    def abort(self) -> None:
        """Cut every transfer that is under way, or just begins."""
        with self._changing:
            self._aborted = True
            for body in self._open:
                body.abort()

    def close(self) -> None:
        """Close the connections."""
        self._session.close()


class _Requests(requests.Session):
    """A session that decides at every request, redirected ones too, who is let in there."""

    def __init__(self, logins: Logins) -> None:
        super().__init__()
        self._logins = logins
        self._settings: dict[str, Any] = {}
        self.auth = self._authorize
        self.headers["User-Agent"] = "hostenv"

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        """Look up the proxy of an origin once: it takes a fifth of a small wheel's time."""
        whose = origin(url)
        if whose not in self._settings:
            self._settings[whose] = super().merge_environment_settings(url, proxies, stream, verify, cert)
        return {**self._settings[whose]}

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Forget the login of where we were sent from."""
        del response
        prepared_request.headers.pop("Authorization", None)
        self._authorize(prepared_request)

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        url = request.url or ""
        login = self._logins.get(origin(url))
        pair = (login.user, login.password) if login else requests.utils.get_netrc_auth(url)
        if pair:
            requests.auth.HTTPBasicAuth(*pair)(request)
        return request


class _Adapter(requests.adapters.HTTPAdapter):
    """Tries once: what is tried again, and when, is decided above."""


class _SystemTrust(_Adapter):
    """HTTPS judged by the system's trust store alone, not by certifi's list."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        super().init_poolmanager(*args, **kwargs, ssl_context=context)

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        del url, verify, cert
        conn.cert_reqs = "CERT_REQUIRED"


def _body_of(response: requests.Response, offset: int) -> Body:
    status = response.status_code
    if status == requests.codes.partial_content:
        span = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if not span or int(span[1]) != offset:
            raise TransientError("the server sent another range than was asked for")
        return Body(response, offset, int(span[2]) if span[2] != "*" else None)
    if status == requests.codes.ok:
        length = response.headers.get("Content-Length", "")
        return Body(response, 0, int(length) if re.fullmatch("[0-9]{1,18}", length) else None)
    if status == requests.codes.requested_range_not_satisfiable and offset:
        raise RangeRefusedError("the server has no bytes from there on")
    if status in _AGAIN:
        raise TransientError(f"the server answers {status}", _retry_after(response))
    raise _refused(status)


def _refused(status: int) -> SupplyError:
    hint = None
    if status in {requests.codes.unauthorized, requests.codes.forbidden}:
        hint = "give credentials in netrc, or in UV_INDEX_NAME_USERNAME and UV_INDEX_NAME_PASSWORD"
    return SupplyError(f"the server answers {status}", hint=hint)


def _retry_after(response: requests.Response) -> float:
    said = response.headers.get("Retry-After", "")
    wait = 0.0
    if said.isdecimal():
        wait = float(said)
    elif said:
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            wait = email.utils.parsedate_to_datetime(said).timestamp() - time.time()
    if wait > GIVEN_UP:
        raise SupplyError(
            f"the server answers {response.status_code} and asks to wait {wait:.0f} s",
            hint="run the session again then: it goes on where it stopped",
        )
    return min(max(wait, 0.0), LONGEST_WAIT)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Turn the exceptions of requests and urllib3 into ours; their text may hold URLs and is left out."""
    try:
        yield
    except requests.exceptions.SSLError as error:
        raise SupplyError(
            "the server's certificate is not trusted",
            hint="add its authority to the system's trust store, or name it in REQUESTS_CA_BUNDLE",
        ) from error
    except (requests.exceptions.Timeout, urllib3.exceptions.TimeoutError) as error:
        raise TransientError("the server does not answer") from error
    except (requests.exceptions.ConnectionError, urllib3.exceptions.HTTPError) as error:
        raise TransientError("the connection was cut or refused") from error
    except requests.exceptions.RequestException as error:
        raise SupplyError(f"the server cannot be asked: {type(error).__name__}") from error
    except OSError as error:
        raise TransientError(f"the connection failed: {error.strerror}") from error
