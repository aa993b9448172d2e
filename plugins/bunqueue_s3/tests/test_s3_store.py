"""The store: against an S3 API over HTTP, against one that knows little, and through forks, cuts and time-outs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from bunqueue_s3 import S3Backup
from bunqueue_s3.store import MOST_PARTS, S3Store, file_system
from s3_buckets import NewBucket
from strict_s3 import Request, Scripted, StrictS3, listing

from bunqueue_core.backup.errors import ObjectMissing, StoreError, StoreTimeout
from bunqueue_core.model.errors import ConfigurationError
from bunqueue_core.testing.conformance.backup_target import BackupTargetConformance

SECRET = "correct-horse-battery"


@pytest.fixture(scope="module")
def lasting(new_bucket: NewBucket) -> Iterator[S3Store]:
    """One store for many tests: making a client takes longer than most of them."""
    store = S3Store(new_bucket())
    yield store
    store.close()


class TestOverHttp(BackupTargetConformance):
    @pytest.fixture
    def store(self, lasting: S3Store) -> S3Store:
        for key, _, _ in lasting.list():
            lasting.delete(key)
        lasting.tidy(2**45)
        return lasting

    def test_media_types_are_kept(self, store: S3Store) -> None:
        store.put("backups/a", [b"x"], content_type="application/gzip")
        answer = store._call("HeadObject", "head_object", {"Key": "backups/a"})
        assert answer["ContentType"] == "application/gzip"

    def test_an_interrupted_upload_of_old_is_aborted(self, store: S3Store) -> None:
        kept = store._call("CreateMultipartUpload", "create_multipart_upload", {"Key": "backups/other"})["UploadId"]
        store._call("CreateMultipartUpload", "create_multipart_upload", {"Key": "backups/bunqueue-x.db"})
        assert store.tidy(0) == 0
        assert store.tidy(2**45) == 1
        (left,) = store._call("ListMultipartUploads", "list_multipart_uploads", {"Prefix": ""})["Uploads"]
        assert left["UploadId"] == kept
        store._call("AbortMultipartUpload", "abort_multipart_upload", {"Key": "backups/other", "UploadId": kept})

    def test_a_failed_upload_leaves_no_parts(self, store: S3Store) -> None:
        def chunks() -> Iterator[bytes]:
            yield bytes(17_000_000)
            raise RuntimeError

        with pytest.raises(RuntimeError):
            store.put("backups/bunqueue-x.db", chunks())
        assert store._call("ListMultipartUploads", "list_multipart_uploads", {"Prefix": ""}).get("Uploads", []) == []


@pytest.fixture(scope="module")
def lasting_strict() -> Iterator[tuple[StrictS3, S3Store]]:
    server = StrictS3()
    store = S3Store(settings(server))
    yield server, store
    store.close()
    server.close()


@pytest.fixture
def strict(lasting_strict: tuple[StrictS3, S3Store]) -> StrictS3:
    """The server as if it were new."""
    server, _ = lasting_strict
    server.reset()
    return server


@pytest.fixture
def opened(strict: StrictS3, lasting_strict: tuple[StrictS3, S3Store]) -> S3Store:
    """A store on it."""
    return lasting_strict[1]


class TestOnAStrictStore(BackupTargetConformance):
    @pytest.fixture
    def store(self, opened: S3Store) -> S3Store:
        return opened

    def test_the_listing_tells_key_size_and_time(self, store: Any) -> None:
        store.put("backups/a.db", [b"xy"])
        assert store.list() == [("backups/a.db", 2, 1_796_053_886_000)]


def settings(strict: StrictS3, **options: Any) -> S3Backup:
    given = {"bucket": "vault", "endpoint": strict.url, "access_key_id": "AKIATEST", "secret_access_key": SECRET}
    return S3Backup(**{**given, **options})


class TestRequests:
    def test_nothing_is_sent_that_stores_refuse(self, strict: StrictS3, opened: S3Store) -> None:
        opened.put("backups/small", [b"x"])
        opened.put("backups/large", [bytes(9_000_000)])
        list(opened.get("backups/large"))
        opened.list()
        opened.delete("backups/small")
        assert [request.method for request in strict.requests] == [
            *("PUT", "POST", "PUT", "PUT", "POST", "GET", "GET", "DELETE")
        ]
        assert all(not name.startswith("x-amz-checksum") for each in strict.requests for name in each.headers)

    def test_each_call_is_one_request(self, strict: StrictS3, opened: S3Store) -> None:
        strict.script = lambda request: (503, "SlowDown", "Reduce your request rate")
        with pytest.raises(StoreError) as caught:
            opened.list()
        assert len(strict.requests) == 1
        assert caught.value.retryable

    def test_a_large_object_has_no_more_parts_than_s3_takes(self) -> None:
        from bunqueue_s3.store import _parts

        size = MOST_PARTS * 10 + 1
        part_bytes = -(-size // MOST_PARTS)
        assert len(list(_parts([bytes(size)], part_bytes, size))) <= MOST_PARTS

    def test_the_region_is_signed_for(self, strict: StrictS3) -> None:
        store = S3Store(settings(strict, region="auto", session_token="a-session"))
        store.list()
        store.close()
        headers = strict.requests[0].headers
        assert "/auto/s3/aws4_request" in headers["authorization"]
        assert headers["x-amz-security-token"] == "a-session"

    @pytest.mark.parametrize(
        ("options", "url"),
        [
            ({"endpoint": "https://s3.example.net"}, "https://s3.example.net/vault/backups/x"),
            ({"endpoint": "http://s3.example.net/base"}, "http://s3.example.net/base/vault/backups/x"),
            (
                {"endpoint": "https://vault.s3.example.net", "virtual_hosted_style": True},
                "https://vault.s3.example.net/backups/x",
            ),
            (
                {"endpoint": "https://s3.example.net", "virtual_hosted_style": True},
                "https://vault.s3.example.net/backups/x",
            ),
            ({"endpoint": None, "region": "eu-west-1"}, "https://s3.eu-west-1.amazonaws.com/vault/backups/x"),
            (
                {"endpoint": None, "region": "eu-west-1", "virtual_hosted_style": True},
                "https://vault.s3.eu-west-1.amazonaws.com/backups/x",
            ),
        ],
    )
    async def test_addresses(self, options: dict[str, Any], url: str) -> None:
        given = S3Backup(**{"bucket": "vault", "access_key_id": "k", "secret_access_key": "s", **options})
        client = await file_system(given).set_session()
        signed = await client.generate_presigned_url("get_object", {"Bucket": "vault", "Key": "backups/x"})
        await client.close()
        assert signed.partition("?")[0] == url

    def test_the_usual_chain_finds_credentials(
        self, strict: StrictS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
    ) -> None:
        (tmp_path / "credentials").write_text(
            "[backups]\naws_access_key_id = AKIAPROFILE\naws_secret_access_key = of-the-profile\n"
        )
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        monkeypatch.setenv("AWS_PROFILE", "backups")
        store = S3Store(settings(strict, access_key_id=None, secret_access_key=None))
        store.check()
        store.close()
        assert "Credential=AKIAPROFILE/" in strict.requests[0].headers["authorization"]


class TestErrors:
    @pytest.mark.parametrize(
        ("scripted", "text", "retryable"),
        [
            (
                (403, "AccessDenied", "Access Denied"),
                "the store refused ListObjectsV2: AccessDenied (HTTP 403): Access Denied",
                False,
            ),
            (
                (404, "NoSuchBucket", "No such bucket"),
                "the store refused ListObjectsV2: NoSuchBucket (HTTP 404): No such bucket",
                False,
            ),
            ((500, "InternalError", "We"), "the store refused ListObjectsV2: InternalError (HTTP 500): We", True),
            ((503, "", ""), "the store refused ListObjectsV2: 503 (HTTP 503): Service Unavailable", True),
            ((429, "TooManyRequests", "x"), "the store refused ListObjectsV2: TooManyRequests (HTTP 429): x", True),
            ((400, "RequestTimeout", "x"), "the store refused ListObjectsV2: RequestTimeout (HTTP 400): x", True),
            (
                (403, "Odd", f"you sent {SECRET} and AKIATEST"),
                "the store refused ListObjectsV2: Odd (HTTP 403): you sent *** and ***",
                False,
            ),
            (
                (403, "Odd", "long " * 100),
                f"the store refused ListObjectsV2: Odd (HTTP 403): {('long ' * 40)[:199]}…",
                False,
            ),
        ],
    )
    def test_what_the_store_refused_is_named_without_secrets(
        self, strict: StrictS3, opened: S3Store, scripted: Scripted, text: str, retryable: bool
    ) -> None:
        strict.script = lambda request: scripted
        with pytest.raises(StoreError) as caught:
            opened.list()
        assert (str(caught.value), caught.value.retryable) == (text, retryable)

    @pytest.mark.parametrize(
        ("scripted", "mend"),
        [
            ((404, "NoSuchBucket", ""), "backup.bucket (S3_BUCKET)"),
            ((403, "InvalidAccessKeyId", ""), "backup.accessKeyId (S3_ACCESS_KEY_ID)"),
            ((403, "SignatureDoesNotMatch", ""), "backup.secretAccessKey (S3_SECRET_ACCESS_KEY)"),
            ((403, "AccessDenied", ""), "the permissions of the access key"),
            ((400, "AuthorizationHeaderMalformed", ""), "backup.region (S3_REGION)"),
            ((403, "Odd", ""), "the access key and its permissions"),
            ((405, "MethodNotAllowed", ""), "the settings of backup"),
        ],
    )
    def test_a_store_that_refuses_the_check_says_what_to_mend(
        self, strict: StrictS3, opened: S3Store, scripted: Scripted, mend: str
    ) -> None:
        strict.script = lambda request: scripted
        with pytest.raises(ConfigurationError, match=r"^Backups to S3: the store refused ListObjectsV2") as caught:
            opened.check()
        assert str(caught.value).endswith(f"; mend {mend}")

    def test_a_store_in_trouble_passes_for_one_that_cannot_be_reached(self, strict: StrictS3, opened: S3Store) -> None:
        strict.script = lambda request: (503, "ServiceUnavailable", "")
        with pytest.raises(StoreError) as caught:
            opened.check()
        assert caught.value.retryable

    def test_nobody_listens(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        store = S3Store(
            S3Backup(bucket="b", access_key_id="k", secret_access_key="s", endpoint=f"http://127.0.0.1:{port}")
        )
        with pytest.raises(StoreError) as caught:
            store.check()
        store.close()
        assert str(caught.value) == "the store cannot be reached (ListObjectsV2: Connection refused)"
        assert caught.value.retryable

    def test_no_credentials(self, strict: StrictS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        store = S3Store(settings(strict, access_key_id=None, secret_access_key=None))
        with pytest.raises(ConfigurationError, match=r"no usable credentials: set backup\.accessKeyId"):
            store.check()
        store.close()

    def test_a_store_that_does_not_answer(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            store = S3Store(
                S3Backup(bucket="b", access_key_id="k", secret_access_key="s", endpoint=f"http://127.0.0.1:{port}"),
                timeout_s=0.2,
            )
            with pytest.raises(StoreTimeout) as caught:
                store.list()
            assert caught.value.after_ms == 200
            store.close()

    def test_a_store_that_stops_taking_an_upload(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            store = S3Store(
                S3Backup(bucket="b", access_key_id="k", secret_access_key="s", endpoint=f"http://127.0.0.1:{port}"),
                timeout_s=0.2,
            )
            with pytest.raises(StoreTimeout):
                store.put("k", [bytes(16_384)])
            store.close()

    @pytest.mark.parametrize("token", ["", "<NextContinuationToken>same</NextContinuationToken>"])
    def test_a_listing_that_does_not_go_on(self, strict: StrictS3, opened: S3Store, token: str) -> None:
        strict.script = lambda request: listing(truncated=True, more=token)
        with pytest.raises(StoreError, match="S3 backup list returned an invalid continuation token"):
            opened.list()

    def test_a_download_that_breaks_off(self, strict: StrictS3, opened: S3Store) -> None:
        opened.put("backups/a", [bytes(1_000_000)])
        strict.cut_answers_at = 400_000
        with pytest.raises(StoreError, match=r"the store cannot be reached \(GetObject") as caught:
            list(opened.get("backups/a"))
        assert caught.value.retryable

    def test_an_object_in_a_bucket_that_is_gone_is_not_just_missing(self, strict: StrictS3, opened: S3Store) -> None:
        strict.script = lambda request: (404, "NoSuchBucket", "gone")
        with pytest.raises(StoreError, match="NoSuchBucket") as caught:
            list(opened.get("backups/a"))
        assert not isinstance(caught.value, ObjectMissing)


class TestLife:
    def test_threads_take_turns(self, strict: StrictS3, opened: S3Store) -> None:
        errors: list[BaseException] = []

        def work(name: str) -> None:
            try:
                for number in range(5):
                    opened.put(f"backups/{name}-{number}", [b"x"])
                    opened.list()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(strict.objects) == 15

    def test_it_can_be_used_again_after_it_was_closed(self, opened: S3Store) -> None:
        opened.list()
        opened.close()
        assert opened.list() == []

    def test_no_thread_and_no_loop_are_left_behind(self, strict: StrictS3) -> None:
        code = (
            "import sys, threading\n"
            "from bunqueue_s3 import S3Backup\n"
            "from bunqueue_s3.store import S3Store\n"
            "import fsspec.asyn\n"
            f"store = S3Store(S3Backup(bucket='vault', endpoint={strict.url!r}, access_key_id='k', secret_access_key='s'))\n"
            "store.put('a', [b'x'])\n"
            "store.close()\n"
            "print(sorted(thread.name for thread in threading.enumerate()), fsspec.asyn.loop)\n"
        )
        result = subprocess.run(
            [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout == "['MainThread'] [None]\n"

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
    def test_a_fork_does_not_use_its_parents_connections(self, strict: StrictS3) -> None:
        code = (
            "import os, sys\n"
            "from bunqueue_s3 import S3Backup\n"
            "from bunqueue_s3.store import S3Store\n"
            f"store = S3Store(S3Backup(bucket='vault', endpoint={strict.url!r}, access_key_id='k', secret_access_key='s'))\n"
            "store.list()\n"
            "sys.stdout.flush()\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    try:\n"
            "        store.list()\n"
            "    except Exception as error:\n"
            "        print(type(error).__name__, error, flush=True)\n"
            "    store.close()\n"
            "    os._exit(0)\n"
            "os.waitpid(child, 0)\n"
            "print(store.list())\n"
            "store.close()\n"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert result.stdout == (
            "StoreError this process is a fork of the one that opened the store; open another one here\n[]\n"
        ), result.stderr


def test_requests_are_recorded_for_failing_tests() -> None:
    assert "body" not in repr(Request("GET", "/", {}, {}, b"x" * 1000))
