"""A package index on loopback: the simple API and the files, with every fault that a network has."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import re
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

if TYPE_CHECKING:
    import pathlib
    from types import TracebackType

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What goes wrong with one answer.

    ``status`` replaces the answer (with ``headers``), ``redirect`` sends elsewhere, ``cut_after`` bytes of
    body the connection is closed, ``pause`` seconds pass before the body, ``body`` replaces the content,
    ``no_range`` answers a range with the whole file.
    """

    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    redirect: str | None = None
    cut_after: int | None = None
    pause: float = 0.0
    body: bytes | None = None
    no_range: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What was asked: the method, the path, the Range and Authorization headers as they came."""

    method: str
    path: str
    range: str | None
    authorization: str | None

    @property
    def file(self) -> str:
        """The file's name."""
        return self.path.rstrip("/").rsplit("/", 1)[-1]


@dataclass(slots=True)
class Registry:
    """Serves the wheels in ``folder`` while a ``with`` block runs.

    ``faults[FILE]`` are taken one an answer, the last one for good if it is in ``lasting``. ``login`` is
    asked of every request. ``requests`` is what came. ``bare`` leaves hashes and sizes out of the index.
    """

    folder: pathlib.Path
    login: tuple[str, str] | None = None
    bare: bool = False
    faults: dict[str, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    lasting: dict[str, Fault] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    _server: http.server.ThreadingHTTPServer | None = None
    _known: dict[pathlib.Path, str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        registry = self

        class Handler(_Handler):
            served: ClassVar[Registry] = registry

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._server:
            self._server.shutdown()
            self._server.server_close()

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        port = self._server.server_address[1] if self._server else 0
        return f"http://127.0.0.1:{port}"

    @property
    def simple(self) -> str:
        """The index's address, for ``--default-index``."""
        return f"{self.origin}/simple"

    def file_url(self, name: str) -> str:
        """Where a wheel lies."""
        return f"{self.origin}/files/{name}"

    def asked(self, name: str) -> list[Request]:
        """Return the requests for one file."""
        return [request for request in self.requests if request.file == name]

    def project(self, name: str) -> list[dict[str, object]]:
        """Return the files of a project as PEP 691 lists them."""
        found = []
        for path in sorted(self.folder.iterdir()):
            stem = path.name.removesuffix(".tar.gz")
            project = stem.split("-")[0] if path.suffix == ".whl" else stem.rpartition("-")[0]
            if re.sub(r"[-_.]+", "-", project).lower() != name:
                continue
            digest = self._digest(path)
            found.append(
                {
                    "filename": path.name,
                    "url": f"../../files/{path.name}",
                    "hashes": {} if self.bare else {"sha256": digest},
                    **({} if self.bare else {"size": path.stat().st_size}),
                    "upload-time": "2026-01-01T00:00:00Z",
                }
            )
        return found

    def _digest(self, path: pathlib.Path) -> str:
        if path not in self._known:
            with path.open("rb") as file:
                self._known[path] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._known[path]

    def next_fault(self, name: str) -> Fault:
        """Take the next fault of a file."""
        if self.faults[name]:
            return self.faults[name].pop(0)
        return self.lasting.get(name, Fault())


class _Handler(http.server.BaseHTTPRequestHandler):
    served: ClassVar[Registry]
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        request = Request(
            method=self.command,
            path=self.path,
            range=self.headers["Range"],
            authorization=self.headers["Authorization"],
        )
        self.served.requests.append(request)
        if not self._let_in(request):
            self._send(401, b"", (("WWW-Authenticate", 'Basic realm="wheels"'),), body=body)
        elif self.path.startswith("/simple/"):
            files = self.served.project(request.file)
            listing = {"meta": {"api-version": "1.1"}, "name": request.file, "files": files}
            kind = (("Content-Type", "application/vnd.pypi.simple.v1+json"),)
            self._send(200 if files else 404, json.dumps(listing).encode(), kind, body=body)
        else:
            self._file(request, body=body)

    def _let_in(self, request: Request) -> bool:
        if not self.served.login:
            return True
        expected = base64.b64encode(":".join(self.served.login).encode()).decode()
        return request.authorization == f"Basic {expected}"

    def _file(self, request: Request, *, body: bool) -> None:
        path = self.served.folder / request.file
        fault = self.served.next_fault(request.file)
        if fault.status:
            self._send(fault.status, b"", fault.headers, body=body)
        elif fault.redirect:
            self._send(302, b"", (("Location", fault.redirect),), body=body)
        elif not path.is_file():
            self._send(404, b"", (), body=body)
        else:
            self._content(request, path, fault, body=body)

    def _content(self, request: Request, path: pathlib.Path, fault: Fault, *, body: bool) -> None:
        size = len(fault.body) if fault.body is not None else path.stat().st_size
        wanted = _RANGE.fullmatch(request.range or "")
        start, end = 0, size
        if wanted and not fault.no_range:
            start, end = int(wanted[1]), min(int(wanted[2] or size) + 1, size)
            if start >= size:
                self._send(416, b"", (("Content-Range", f"bytes */{size}"),), body=body)
                return
        self.send_response(206 if wanted and not fault.no_range else 200)
        if wanted and not fault.no_range:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        self.wfile.flush()
        time.sleep(fault.pause)
        if body:
            self._stream(path, fault, start, end)

    def _stream(self, path: pathlib.Path, fault: Fault, start: int, end: int) -> None:
        if fault.cut_after is not None:
            end = min(end, start + fault.cut_after)
            self.close_connection = True
        try:
            if fault.body is not None:
                self.wfile.write(fault.body[start:end])
                self.wfile.flush()
                return
            with path.open("rb") as file:
                self.connection.sendfile(file, start, end - start)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _send(self, status: int, content: bytes, headers: tuple[tuple[str, str], ...], *, body: bool) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)
