"""An object store that knows little: a bucket in memory, path style, and nothing that came to S3 after 2013.

Whatever it does not know it refuses, as some stores do: checksums in headers and trailers, chunked bodies, bulk deletion. Answers
can be scripted, so that errors and broken listings can be had too.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

#: Status, code, message and further headers of an answer that a test scripts.
Scripted = tuple[int, str, str]


@dataclass
class Request:
    """A request that came in."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = field(repr=False)


class StrictS3:
    """The server, on a free port, in a thread. Bucket ``vault`` exists."""

    def __init__(self) -> None:
        self.reset()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Forget everything."""
        self.objects: dict[str, bytes] = {}
        self.types: dict[str, str] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.requests: list[Request] = []
        #: May answer in the store's place.
        self.script: Callable[[Request], Scripted | bytes | None] = lambda request: None
        #: Bytes of an answer's body after which the connection is closed.
        self.cut_answers_at: int | None = None

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, request: Request) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        for name in request.headers:
            if name.startswith(("x-amz-checksum", "x-amz-trailer", "x-amz-sdk-checksum")):
                return _error(
                    501,
                    "NotImplemented",
                    f"A header you provided implies functionality that is not implemented: {name}",
                )
        if "aws-chunked" in request.headers.get("content-encoding", "") or "STREAMING" in request.headers.get(
            "x-amz-content-sha256", ""
        ):
            return _error(501, "NotImplemented", "Transfers in signed chunks are not implemented")
        if not request.headers.get("authorization", "").startswith("AWS4-HMAC-SHA256 "):
            return _error(403, "AccessDenied", "Access Denied")
        scripted = self.script(request)
        if isinstance(scripted, bytes):
            return 200, {"content-type": "application/xml"}, scripted
        if scripted is not None:
            return _error(*scripted)
        bucket, _, key = unquote(request.path).lstrip("/").partition("/")
        if bucket != "vault":
            return _error(404, "NoSuchBucket", "The specified bucket does not exist")
        return self._operation(request, key)

    def _operation(self, request: Request, key: str) -> tuple[int, dict[str, str], bytes]:
        query = request.query
        match request.method:
            case "GET" if "uploads" in query:
                return _error(501, "NotImplemented", "That is not implemented")
            case "GET" if not key:
                return self._list(query)
            case "GET":
                if key not in self.objects:
                    return _error(404, "NoSuchKey", "The specified key does not exist.")
                return 200, {"content-type": "application/octet-stream"}, self.objects[key]
            case "PUT" if "partNumber" in query:
                self.uploads[query["uploadId"]][int(query["partNumber"])] = request.body
                return 200, {"etag": f'"{hashlib.md5(request.body).hexdigest()}"'}, b""
            case "PUT":
                self.objects[key] = request.body
                self.types[key] = request.headers.get("content-type", "")
                return 200, {"etag": f'"{hashlib.md5(request.body).hexdigest()}"'}, b""
            case "POST" if "uploads" in query:
                self.uploads[f"upload-{len(self.requests)}"] = {}
                name = f"upload-{len(self.requests)}"
                self.types[key] = request.headers.get("content-type", "")
                body = f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
                return 200, {}, body.encode()
            case "POST" if "uploadId" in query:
                parts = self.uploads.pop(query["uploadId"])
                self.objects[key] = b"".join(parts[number] for number in sorted(parts))
                return 200, {}, b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"
            case "DELETE" if "uploadId" in query:
                self.uploads.pop(query["uploadId"], None)
                return 204, {}, b""
            case "DELETE":
                if self.objects.pop(key, None) is None:
                    return _error(404, "NoSuchKey", "The specified key does not exist.")  # unlike Amazon's
                return 204, {}, b""
        return _error(501, "NotImplemented", "That is not implemented")

    def _list(self, query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        most = min(int(query.get("max-keys", "1000")), 1000)
        keys = [key for key in sorted(self.objects) if key.startswith(query.get("prefix", ""))]
        keys = [key for key in keys if key > query.get("continuation-token", "")]
        page = keys[:most]
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-30T15:51:26.000Z</LastModified>"
            f"<Size>{len(self.objects[key])}</Size></Contents>"
            for key in page
        )
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if len(keys) > most else ""
        return 200, {}, listing(entries, truncated=len(keys) > most, more=more)


def listing(entries: str = "", *, truncated: bool = False, more: str = "") -> bytes:
    """A page of a listing."""
    return (
        f"<ListBucketResult><Name>vault</Name><IsTruncated>{str(truncated).lower()}</IsTruncated>"
        f"{entries}{more}</ListBucketResult>"
    ).encode()


def _error(status: int, code: str, message: str) -> tuple[int, dict[str, str], bytes]:
    body = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>" if code else ""
    return status, {"content-type": "application/xml"}, body.encode()


def _handler(store: StrictS3) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", "0")))
            request = Request(self.command, parts.path, query, headers, body)
            store.requests.append(request)
            status, fields, content = store.answer(request)
            self.send_response(status)
            for name, value in fields.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if store.cut_answers_at is not None and len(content) > store.cut_answers_at:
                content = content[: store.cut_answers_at]
                self.close_connection = True
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: a test that fails shows the requests."""

    return Handler
