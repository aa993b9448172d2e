"""The store: objects as files of one WebDAV collection (RFC 4918)."""

from __future__ import annotations

import base64
import contextlib
import ssl
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import quote, unquote, urlsplit
from xml.etree import ElementTree

from bunqueue_core.backup.errors import ObjectMissing, StoreError
from bunqueue_core.model.errors import ConfigurationError
from bunqueue_webdav.settings import WebdavBackup

#: What the names of unfinished uploads begin with.
PART = ".bunqueue-part-"

CHUNK_BYTES = 1024 * 1024

#: What a listing asks for.
PROPERTIES = b'<propfind xmlns="DAV:"><prop><getcontentlength/><getlastmodified/></prop></propfind>'


class WebdavStore:
    """An opened collection. Each call has a connection of its own, so that nothing can be left half-read.

    Args:
        settings: where it is.
    """

    #: The collection belongs to the backups of one database.
    prefix = ""

    def __init__(self, settings: WebdavBackup) -> None:
        url = urlsplit(settings.url)
        self._secure = url.scheme == "https"
        self._host = url.netloc.rpartition("@")[2]
        self._path = url.path
        self._timeout_s = settings.timeout_ms / 1000
        self._headers: dict[str, str] = {}
        if settings.user is not None:
            login = base64.b64encode(f"{settings.user}:{settings.password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {login}"

    @contextlib.contextmanager
    def _asked(
        self,
        method: str,
        name: str = "",
        body: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[HTTPResponse]:
        """Send a request; the answer, whatever its status, while the block runs."""
        connection: HTTPConnection
        if self._secure:
            context = ssl.create_default_context()
            connection = HTTPSConnection(self._host, timeout=self._timeout_s, context=context)
        else:
            connection = HTTPConnection(self._host, timeout=self._timeout_s)
        try:
            connection.request(method, self._path + quote(name), body, {**self._headers, **(headers or {})})
            with connection.getresponse() as answer:
                yield answer
        except (OSError, HTTPException) as error:
            raise StoreError(f"{method} failed: {type(error).__name__}", retryable=True) from error
        finally:
            connection.close()

    def put(
        self, key: str, chunks: Iterable[bytes], *, size: int | None = None, content_type: str | None = None
    ) -> None:
        """Upload under another name, then give the object its own: a half of it is never seen."""
        part = f"{PART}{uuid.uuid4()}"
        headers = {"Content-Type": content_type or "application/octet-stream"}
        if size is not None:
            headers["Content-Length"] = str(size)
        try:
            with self._asked("PUT", part, _counted(key, chunks, size), headers) as answer:
                _accept("PUT", answer)
            place = {"Destination": f"{self._base}{quote(key)}", "Overwrite": "T"}
            with self._asked("MOVE", part, headers=place) as answer:
                _accept("MOVE", answer)
        except BaseException:
            with contextlib.suppress(StoreError):
                self.delete(part)
            raise

    @property
    def _base(self) -> str:
        return f"{'https' if self._secure else 'http'}://{self._host}{self._path}"

    def get(self, key: str) -> Iterator[bytes]:
        """The object's bytes; a connection that ends early is an error, not an end."""
        with self._asked("GET", key) as answer:
            if answer.status == 404:
                raise ObjectMissing(key)
            _accept("GET", answer)
            while chunk := answer.read(CHUNK_BYTES):
                yield chunk
            if answer.length:
                raise StoreError(f"GET ended {answer.length} bytes early", retryable=True)

    def delete(self, key: str) -> None:
        """Remove it; a missing one is no error."""
        with self._asked("DELETE", key) as answer:
            if answer.status != 404:
                _accept("DELETE", answer)

    def list(self) -> Sequence[tuple[str, int, int]]:
        """(key, size, time of change) of every object."""
        return [found for found in self._listed() if not found[0].startswith(PART)]

    def tidy(self, before: int) -> int:
        """Remove unfinished uploads that are older; an upload that goes on is younger."""
        old = [name for name, _, changed in self._listed() if name.startswith(PART) and changed < before]
        for name in old:
            self.delete(name)
        return len(old)

    def _listed(self) -> Sequence[tuple[str, int, int]]:
        with self._asked("PROPFIND", body=PROPERTIES, headers={"Depth": "1"}) as answer:
            _accept("PROPFIND", answer)
            try:
                entries = ElementTree.fromstring(answer.read()).findall("{DAV:}response")
            except ElementTree.ParseError as error:
                raise StoreError("PROPFIND was answered with something else than XML") from error
        found = []
        for entry in entries:
            path = unquote(urlsplit(entry.findtext("{DAV:}href", "")).path)
            size, changed = (entry.findtext(f".//{{DAV:}}{name}") for name in ("getcontentlength", "getlastmodified"))
            if path.startswith(self._path) and size and changed:  # the collection itself has no length
                moment = int(parsedate_to_datetime(changed).timestamp() * 1000)
                found.append((path.removeprefix(self._path), int(size), moment))
        return found

    def check(self) -> None:
        """Write and remove something; say which setting to mend if that is refused."""
        name = f"{PART}{uuid.uuid4()}"
        with self._asked("PUT", name, b"check") as answer:
            if answer.status in (401, 403):
                raise ConfigurationError("backup.user: the server refuses the user or the password")
            if answer.status in (404, 405, 409):
                raise ConfigurationError(f"backup.url: there is no collection {self._base}; create it")
            _accept("PUT", answer)
        self.delete(name)

    def close(self) -> None:
        """No connection is kept."""


def _accept(method: str, answer: HTTPResponse) -> None:
    """Refuse an answer that is no success."""
    if not 200 <= answer.status < 300:
        full = ": it is full" if answer.status == 507 else ""
        passing = answer.status in (408, 429) or (answer.status >= 500 and answer.status != 507)
        raise StoreError(f"the server answered {method} with {answer.status}{full}", retryable=passing)


def _counted(key: str, chunks: Iterable[bytes], size: int | None) -> Iterator[bytes]:
    """The chunks; an error if they are not ``size`` bytes."""
    sent = 0
    for chunk in chunks:
        sent += len(chunk)
        yield chunk
    if size is not None and sent != size:
        raise StoreError(f"{key} has {sent} bytes instead of {size}")
