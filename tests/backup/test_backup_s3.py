"""Backups and restores through a real S3 API over HTTP, with faults at every step."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bunqueue_s3.store import S3Store
from fixtures.backups import Bench, CuttingProxy, jobs_in
from fixtures.s3_server import Bucket, NewBucket, new_bucket

from bunqueue_core import Queue
from bunqueue_core.model.errors import JournalError

__all__ = ["new_bucket"]

#: Sizes of databases: a payload that goes in one request, and one that goes in two parts.
SIZES = {"whole": 300_000, "in parts": 6_000_000}

#: The smallest parts that S3 takes.
PART_BYTES = 5 * 1024 * 1024


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Databases of incompressible jobs, to be copied."""
    made = {}
    for name, size in SIZES.items():
        path = tmp_path_factory.mktemp("databases") / "jobs.db"
        with Queue("mail", embedded=True, data_path=path) as queue:
            noise = random.Random(size)
            queue.add_bulk([{"name": "send", "data": noise.randbytes(size // 10)} for _ in range(10)])
        made[name] = path
    return made


@pytest.fixture
def bucket(new_bucket: NewBucket) -> Bucket:
    return new_bucket()


@pytest.fixture
def open_store() -> Iterator[Callable[..., S3Store]]:
    """Opens stores, and closes them after the test."""
    stores: list[S3Store] = []

    def open(settings: Any, **options: Any) -> S3Store:
        stores.append(S3Store(settings, part_bytes=PART_BYTES, **options))
        return stores[-1]

    yield open
    for store in stores:
        store.close()


@pytest.fixture
def cutting() -> Iterator[Callable[..., CuttingProxy]]:
    """Makes proxies, and closes them after the test."""
    proxies: list[CuttingProxy] = []

    def make(*arguments: Any, **options: Any) -> CuttingProxy:
        proxies.append(CuttingProxy(*arguments, **options))
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.close()


Open = Callable[..., S3Store]
Cut = Callable[..., CuttingProxy]


@pytest.mark.parametrize("size", list(SIZES))
def test_there_and_back(
    tmp_path: Path, databases: dict[str, Path], bucket: Bucket, open_store: Open, size: str
) -> None:
    bench = Bench(tmp_path, databases[size])
    backups = bench.backups(open_store(bucket.settings()), retention=1)
    backups.run()
    bench.now += 10
    outcome = backups.run()
    assert outcome.success
    assert bucket.keys == [outcome.key, f"{outcome.key}.meta.json"]
    assert bucket.uploads == []
    head = bucket.client.head_object(Bucket=bucket.name, Key=outcome.key)
    assert head["ContentType"] == "application/gzip"
    snapshot = gzip.decompress(bucket.read(str(outcome.key)))
    metadata = json.loads(bucket.read(f"{outcome.key}.meta.json"))
    assert metadata["checksum"] == hashlib.sha256(snapshot).hexdigest()
    assert metadata["compressedSize"] == head["ContentLength"]
    assert backups.verify().counts["jobs"] == 10
    bench.path.unlink()
    assert backups.restore(str(outcome.key)).success
    assert bench.path.read_bytes() == snapshot


@pytest.mark.parametrize("size", list(SIZES))
def test_a_connection_that_is_always_cut_in_the_upload(
    tmp_path: Path, databases: dict[str, Path], bucket: Bucket, open_store: Open, cutting: Cut, size: str
) -> None:
    bench = Bench(tmp_path, databases[size])
    before = bench.beside()
    proxy = cutting(bucket.port, cut_after=SIZES[size] // 2)
    outcome = bench.backups(open_store(bucket.settings(proxy.port))).run()
    assert str(outcome.error).startswith("the store cannot be reached (")
    assert proxy.cuts >= 4
    assert bench.sleeps == [0.5, 1.0, 2.0]
    assert bucket.keys == []
    assert bucket.uploads == []
    assert bench.beside() == before


@pytest.mark.parametrize("size", list(SIZES))
def test_a_connection_that_is_cut_once(
    tmp_path: Path, databases: dict[str, Path], bucket: Bucket, open_store: Open, cutting: Cut, size: str
) -> None:
    bench = Bench(tmp_path, databases[size])
    proxy = cutting(bucket.port, cut_after=SIZES[size] // 2, times=1)
    backups = bench.backups(open_store(bucket.settings(proxy.port)))
    assert backups.run().success
    assert proxy.cuts == 1
    assert bucket.uploads == []
    assert backups.verify().success


def test_a_connection_that_is_cut_in_the_download(
    tmp_path: Path, databases: dict[str, Path], bucket: Bucket, open_store: Open, cutting: Cut
) -> None:
    bench = Bench(tmp_path, databases["whole"])
    key = str(bench.backups(open_store(bucket.settings())).run().key)
    before = bench.beside()
    proxy = cutting(bucket.port, cut_answers_after=100_000)
    outcome = bench.backups(open_store(bucket.settings(proxy.port))).restore(key)
    assert str(outcome.error).startswith("the store cannot be reached (GetObject")
    assert proxy.cuts == 4
    assert bench.beside() == before
    proxy.times = proxy.cuts + 1
    assert bench.backups(open_store(bucket.settings(proxy.port))).restore(key).success
    assert jobs_in(bench.path) == 10


def test_a_key_without_permission_publishes_nothing(
    tmp_path: Path, databases: dict[str, Path], bucket: Bucket, open_store: Open
) -> None:
    bench = Bench(tmp_path, databases["whole"])
    outcome = bench.backups(open_store(bucket.settings(bucket="somebody-elses"))).run()
    assert str(outcome.error).startswith("the store refused PutObject: NoSuchBucket (HTTP 404)")
    assert bench.sleeps == []


def test_a_full_disk_publishes_nothing(
    tmp_path: Path, databases: dict[str, Path], bucket: Bucket, open_store: Open
) -> None:
    class Full:
        def snapshot(self, path: Path) -> None:
            raise JournalError("cannot make a snapshot: the disk is full", disk_full=True)

    bench = Bench(tmp_path, databases["whole"])
    outcome = bench.backups(open_store(bucket.settings()), source=Full()).run()
    assert outcome.error == "cannot make a snapshot: the disk is full"
    assert bucket.keys == []


def _wrong(**fields: Any) -> Callable[[Bucket, str], None]:
    def apply(bucket: Bucket, key: str) -> None:
        metadata = json.loads(bucket.read(key + ".meta.json"))
        bucket.write(key + ".meta.json", json.dumps({**metadata, **fields}).encode())

    return apply


def _cut(bucket: Bucket, key: str) -> None:
    payload = bucket.read(key)[:-1000]
    bucket.write(key, payload)
    _wrong(compressedSize=len(payload))(bucket, key)


def _invalid(bucket: Bucket, key: str) -> None:
    content = b"SQLite format 3\0" + bytes(8176)
    payload = gzip.compress(content)
    bucket.write(key, payload)
    checksum = hashlib.sha256(content).hexdigest()
    _wrong(size=len(content), compressedSize=len(payload), checksum=checksum)(bucket, key)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (
            lambda bucket, key: bucket.delete(key + ".meta.json"),
            "Compressed backup is invalid because metadata is missing",
        ),
        (lambda bucket, key: bucket.delete(key), "Backup not found: "),
        (_wrong(checksum="0" * 64), "Backup checksum mismatch - file may be corrupted"),
        (_wrong(size=1), "Backup size mismatch - file may be corrupted"),
        (_wrong(compressedSize=1), "Backup metadata is invalid or does not match the payload"),
        (_cut, "unexpected end of file"),
        (_invalid, "Database integrity check failed: "),
    ],
    ids=["no metadata", "no payload", "checksum", "size", "compressed size", "cut off", "invalid candidate"],
)
def test_a_backup_that_is_not_whole_changes_nothing(
    tmp_path: Path, databases: dict[str, Path], bucket: Bucket, open_store: Open, damage: Any, text: str
) -> None:
    bench = Bench(tmp_path, databases["whole"])
    backups = bench.backups(open_store(bucket.settings()))
    key = str(backups.run().key)
    damage(bucket, key)
    before = bench.beside()
    assert str(backups.restore(key).error).startswith(text)
    assert str(backups.verify(key).error).startswith(text)
    assert bench.beside() == before
