"""A WebDAV server in a thread, as much of one as a backup needs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.sax.saxutils import escape

#: ada:secret
LOGIN = "Basic YWRhOnNlY3JldA=="


class DavServer(ThreadingHTTPServer):
    """Files of the one collection ``/backups/``.

    Attributes:
        files: content and time of change (epoch seconds) by name.
        faults: status codes that the next requests are refused with; 0 ends the connection in the middle of the answer.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, tuple[bytes, float]] = {}
        self.faults: list[int] = []
        self.now = 1_700_000_000.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/backups/"


class Handler(BaseHTTPRequestHandler):
    server: DavServer

    def _name(self, path: str) -> str | None:
        path = unquote(urlsplit(path).path)
        return path.removeprefix("/backups/") if path.startswith("/backups/") else None

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, status: int, body: bytes = b"", shorter: int = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) - shorter])

    def _serve(self) -> None:
        body, files, name = self._body(), self.server.files, self._name(self.path)
        shorter = 0
        if self.server.faults:
            fault = self.server.faults.pop(0)
            if fault:
                return self._answer(fault)
            shorter = 1
        if self.headers.get("Authorization") != LOGIN:
            return self._answer(401)
        if name is None:
            return self._answer(404)
        if self.command == "PUT":
            files[name] = (body, self.server.now)
            return self._answer(201)
        if self.command == "PROPFIND":
            return self._answer(207, self._listing())
        if name not in files:
            return self._answer(404)
        if self.command == "GET":
            return self._answer(200, files[name][0], shorter)
        moved = files.pop(name)
        if self.command == "MOVE":
            target = self._name(self.headers["Destination"])
            assert target is not None
            files[target] = moved
        return self._answer(204)

    def _listing(self) -> bytes:
        entry = "<d:response><d:href>/backups/{}</d:href><d:propstat><d:prop>{}</d:prop></d:propstat></d:response>"
        entries = [entry.format("", "")]
        for name, (content, changed) in self.server.files.items():
            length, date = len(content), formatdate(changed, usegmt=True)
            properties = (
                f"<d:getcontentlength>{length}</d:getcontentlength><d:getlastmodified>{date}</d:getlastmodified>"
            )
            entries.append(entry.format(escape(name), properties))
        return f'<d:multistatus xmlns:d="DAV:">{"".join(entries)}</d:multistatus>'.encode()

    do_GET = do_PUT = do_DELETE = do_MOVE = do_PROPFIND = _serve

    def log_message(self, format: str, *args: Any) -> None:
        return


@contextmanager
def serving() -> Iterator[DavServer]:
    """Run a server."""
    with DavServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
