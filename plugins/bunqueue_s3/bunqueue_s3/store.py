"""Backups in a bucket, through s3fs.

s3fs finds the credentials, signs, addresses and connects. It usually works on one event loop for the whole process, in a thread
that outlives forks badly and can hang the end of the process. Here it is told to be asynchronous, and works on a loop that belongs
to the store alone and turns only while a method of the store runs, in the thread that called it. Nothing is cached.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit, urlunsplit

import s3fs

from bunqueue_core.backup.errors import BackupError, ObjectMissing, StoreError, StoreTimeout
from bunqueue_s3.errors import CALL_ERRORS, configuration_error, is_missing, is_timeout, is_unknown, store_error
from bunqueue_s3.settings import S3Backup

T = TypeVar("T")

#: Bytes of one part of a large object. S3 takes parts from 5 MiB on; each is held in memory while it is sent.
PART_BYTES: Final = 8 * 1024 * 1024

#: Most parts of one object (S3's limit); a larger one gets larger parts.
MOST_PARTS: Final = 10_000

#: Bytes that are read of a download at once.
READ_BYTES: Final = 256 * 1024

#: Longest wait for an answer, and for a connection, seconds.
TIMEOUT_S: Final = 30.0
CONNECT_S: Final = 10.0

#: What a request with a body may take besides: the time in which that body passes at this rate, bytes a second.
SLOWEST_UPLOAD: Final = 128 * 1024

#: Keys that one page of a listing has at most.
PAGE_KEYS: Final = 100


class S3Store:
    """A :class:`~bunqueue_core.plugins.drivers.BackupStore` in a bucket.

    Args:
        settings: where it is and how it is reached.
        timeout_s: longest wait for one answer, seconds; for one with a body, plus the time for that.
        part_bytes: bytes of one part of a large object.
    """

    def __init__(self, settings: S3Backup, *, timeout_s: float = TIMEOUT_S, part_bytes: int = PART_BYTES) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._part_bytes = part_bytes
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._runner: asyncio.Runner | None = None
        self._client: Any = None
        self._secrets = [
            secret for secret in (settings.access_key_id, settings.secret_access_key, settings.session_token) if secret
        ]

    @property
    def prefix(self) -> str:
        """See :class:`~bunqueue_core.plugins.drivers.BackupStore`."""
        return self._settings.prefix

    # -- the interface ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """List one key: that needs the bucket, the credentials and the region to be right."""
        try:
            self._call("ListObjectsV2", "list_objects_v2", {"Prefix": self._settings.prefix, "MaxKeys": 1})
        except StoreError as error:
            cause = error.__cause__ or error.__context__
            wrong = configuration_error(cause, str(error)) if cause is not None else None
            if wrong is not None:
                raise wrong from None
            raise

    def put(
        self, key: str, chunks: Iterable[bytes], *, size: int | None = None, content_type: str | None = None
    ) -> None:
        """One request for a small object, parts for a large one; either way it appears when the last request succeeded."""
        part_bytes = self._part_bytes if size is None else max(self._part_bytes, -(-size // MOST_PARTS))
        parts = _parts(chunks, part_bytes, size)
        pending = next(parts)
        following = next(parts, None)
        options = {"Key": key, **({"ContentType": content_type} if content_type is not None else {})}
        if following is None:
            self._call("PutObject", "put_object", options, body=pending)
            return
        upload = {
            "Key": key,
            "UploadId": self._call("CreateMultipartUpload", "create_multipart_upload", options)["UploadId"],
        }
        try:
            sent: list[dict[str, Any]] = []
            while True:
                number = len(sent) + 1
                answer = self._call("UploadPart", "upload_part", {**upload, "PartNumber": number}, body=pending)
                sent.append({"ETag": answer["ETag"], "PartNumber": number})
                if following is None:
                    break
                pending, following = following, next(parts, None)
            self._call(
                "CompleteMultipartUpload", "complete_multipart_upload", {**upload, "MultipartUpload": {"Parts": sent}}
            )
        except BaseException:
            # The parts of an upload that is neither completed nor aborted stay, invisible, and cost.
            with contextlib.suppress(StoreError):
                self._call("AbortMultipartUpload", "abort_multipart_upload", upload)
            raise

    def get(self, key: str) -> Iterator[bytes]:
        """See :class:`~bunqueue_core.plugins.drivers.BackupStore`."""
        try:
            body = self._call("GetObject", "get_object", {"Key": key})["Body"]
        except StoreError as error:
            if is_missing(error.__cause__ or error):
                raise ObjectMissing(key) from None
            raise
        try:
            while piece := self._run("GetObject", lambda: body.read(READ_BYTES), self._timeout_s):
                yield piece
        finally:
            body.close()

    def list(self) -> Sequence[tuple[str, int, int]]:
        """See :class:`~bunqueue_core.plugins.drivers.BackupStore`."""
        found: list[tuple[str, int, int]] = []
        token: str | None = None
        seen: set[str] = set()
        while True:
            page = self._call(
                "ListObjectsV2",
                "list_objects_v2",
                {
                    "Prefix": self._settings.prefix,
                    "MaxKeys": PAGE_KEYS,
                    **({"ContinuationToken": token} if token is not None else {}),
                },
            )
            found.extend(
                (str(entry["Key"]), int(entry["Size"]), int(entry["LastModified"].timestamp() * 1000))
                for entry in page.get("Contents", ())
            )
            if not page.get("IsTruncated"):
                return found
            token = page.get("NextContinuationToken")
            if not token or token in seen:
                raise StoreError("S3 backup list returned an invalid continuation token")
            seen.add(token)

    def delete(self, key: str) -> None:
        """See :class:`~bunqueue_core.plugins.drivers.BackupStore`. S3 itself takes a missing object for deleted."""
        try:
            self._call("DeleteObject", "delete_object", {"Key": key})
        except StoreError as error:
            if not is_missing(error.__cause__ or error):
                raise

    def tidy(self, before: int) -> int:
        """Abort uploads of backups under the prefix that were begun before ``before`` and never ended, if the store lists them."""
        try:
            page = self._call("ListMultipartUploads", "list_multipart_uploads", {"Prefix": self._settings.prefix})
        except StoreError as error:
            if is_unknown(error.__cause__ or error):
                return 0
            raise
        aborted = 0
        for upload in page.get("Uploads", ()):
            if upload["Initiated"].timestamp() * 1000 < before and "bunqueue-" in upload["Key"]:
                self._call(
                    "AbortMultipartUpload",
                    "abort_multipart_upload",
                    {"Key": upload["Key"], "UploadId": upload["UploadId"]},
                )
                aborted += 1
        return aborted

    def close(self) -> None:
        """Close connections and the loop. Idempotent; after a fork, in the child, it leaves them to the parent."""
        with self._lock:
            runner, self._runner = self._runner, None
            client, self._client = self._client, None
            if runner is None or self._pid != os.getpid():
                return
            if client is not None:
                with contextlib.suppress(Exception):
                    runner.run(client.close())
            runner.close()

    # -- calls --------------------------------------------------------------------------------------------------------

    def _call(self, operation: str, method: str, arguments: Mapping[str, Any], *, body: bytes | None = None) -> Any:
        """One request to the bucket, without repetition.

        Raises:
            StoreError: it failed; the cause is what the client raised.
        """

        async def send() -> Any:
            client = await self._connected()
            extra = {"Body": body} if body is not None else {}
            return await getattr(client, method)(Bucket=self._settings.bucket, **arguments, **extra)

        return self._run(operation, send, self._timeout_s + (len(body) / SLOWEST_UPLOAD if body is not None else 0))

    def _run(self, operation: str, function: Callable[[], Awaitable[T]], timeout_s: float) -> T:
        async def timed() -> T:
            async with asyncio.timeout(timeout_s):
                return await function()

        with self._lock:
            if self._pid != os.getpid():
                raise StoreError("this process is a fork of the one that opened the store; open another one here")
            if self._runner is None:
                # A factory of its own: nothing becomes the loop of the calling thread.
                self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
            try:
                return self._runner.run(timed())
            except CALL_ERRORS as error:
                if is_timeout(error):
                    raise StoreTimeout(round(timeout_s * 1000)) from error
                raise store_error(operation, error, self._secrets) from error

    async def _connected(self) -> Any:
        if self._client is None:
            self._client = await file_system(self._settings, self._timeout_s).set_session()
        return self._client


def file_system(settings: S3Backup, timeout_s: float = TIMEOUT_S) -> s3fs.S3FileSystem:
    """An s3fs file system as ``settings`` say, which shares nothing with others. Must be made in the loop that it works on.

    Args:
        settings: where the store is.
        timeout_s: longest wait for one answer, seconds.
    """
    style = "path"
    endpoint = settings.endpoint
    if settings.virtual_hosted_style:
        style = "virtual"
        endpoint = _without_bucket(endpoint, settings.bucket) if endpoint is not None else None
    return s3fs.S3FileSystem(
        key=settings.access_key_id,
        secret=settings.secret_access_key,
        token=settings.session_token,
        endpoint_url=endpoint,
        client_kwargs={"region_name": settings.region},
        config_kwargs={
            "connect_timeout": min(CONNECT_S, timeout_s),
            "read_timeout": timeout_s,
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            # Stores that are not Amazon's often refuse checksums in trailers, and need none.
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
            "signature_version": "s3v4",
            "s3": {"addressing_style": style},
        },
        asynchronous=True,
        skip_instance_cache=True,
        use_listings_cache=False,
    )


def _without_bucket(endpoint: str, bucket: str) -> str:
    """The endpoint of the store for an endpoint whose host already contains the bucket, which the client puts there itself."""
    parts = urlsplit(endpoint)
    host = parts.netloc.removeprefix(f"{bucket}.")
    return urlunsplit(parts._replace(netloc=host))


def _parts(chunks: Iterable[bytes], part_bytes: int, size: int | None) -> Iterator[bytes]:
    """``chunks`` in pieces of exactly ``part_bytes``, the last one shorter.

    Raises:
        BackupError: they are not ``size`` bytes in all. The last piece is not handed out then.
    """
    buffer = bytearray()
    total = 0
    for chunk in chunks:
        buffer += chunk
        total += len(chunk)
        while len(buffer) > part_bytes:
            piece = bytes(memoryview(buffer)[:part_bytes])
            del buffer[:part_bytes]
            yield piece
    if size is not None and total != size:
        raise BackupError(f"the object has {total} bytes instead of {size}")
    yield bytes(buffer)


__all__ = ["PART_BYTES", "S3Store", "file_system"]
