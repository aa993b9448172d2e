"""A restore: its five steps in their order, and that nothing changes unless all of them succeed."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from bunqueue_sqlite.files import OwnerLock
from bunqueue_sqlite.settings import SqliteStorage
from bunqueue_sqlite.snapshots import SqliteFiles, settle
from fixtures.backups import Bench, Records, fail_at, jobs_in, make_database

from bunqueue_core import Queue
from bunqueue_core.backup.errors import StoreError
from bunqueue_core.model.errors import JournalError

SIDECARS = ("-wal", "-shm", "-journal")


@pytest.fixture
def backed_up(bench: Bench) -> tuple[Bench, str]:
    """A backup of 20 jobs, and a database that has 5 more since."""
    key = str(bench.backups().run().key)
    with Queue("mail", embedded=True, data_path=bench.path) as queue:
        queue.add_bulk([{"name": "later"}] * 5)
    bench.store.calls.clear()
    return bench, key


def stale(path: Path) -> None:
    """Put remains of another program beside the database."""
    for suffix in SIDECARS:
        path.with_name(path.name + suffix).write_bytes(b"stale " + suffix.encode())


class TestRestore:
    def test_the_five_steps_come_in_their_order(self, backed_up: tuple[Bench, str]) -> None:
        bench, key = backed_up
        steps: list[str] = []
        outcome = bench.backups().restore(key, lambda step, *_: steps.append(step) if step not in steps else None)
        assert outcome.success
        assert steps == ["download", "download metadata", "decompress", "check", "install"]
        assert bench.store.calls == [("get", key), ("get", key + ".meta.json")]
        assert jobs_in(bench.path) == 20

    def test_only_the_database_is_left(self, backed_up: tuple[Bench, str]) -> None:
        bench, key = backed_up
        stale(bench.path)
        assert bench.backups().restore(key).success
        assert list(bench.beside()) == ["jobs.db"]
        assert jobs_in(bench.path) == 20

    def test_the_jobs_are_there_again(self, backed_up: tuple[Bench, str]) -> None:
        bench, key = backed_up
        outcome = bench.backups().restore(key)
        with Queue("mail", embedded=True, data_path=bench.path) as queue:
            assert queue.get_job_counts()["waiting"] == 20
        assert set(outcome.as_dict()) == {"success", "key", "size", "compressedSize", "duration"}

    def test_a_database_that_is_gone_comes_back(self, backed_up: tuple[Bench, str]) -> None:
        bench, key = backed_up
        bench.path.unlink()
        assert bench.backups().restore(key).success
        assert jobs_in(bench.path) == 20

    def test_the_modes_of_the_database_are_kept(self, backed_up: tuple[Bench, str]) -> None:
        bench, key = backed_up
        bench.path.chmod(0o600)
        assert bench.backups().restore(key).success
        assert bench.path.stat().st_mode & 0o777 == 0o600

    def test_the_key_need_not_lie_under_the_prefix(self, backed_up: tuple[Bench, str]) -> None:
        bench, key = backed_up
        for suffix in ("", ".meta.json"):
            bench.store.objects["elsewhere" + suffix] = bench.store.objects.pop(key + suffix)
        assert bench.backups().restore("elsewhere").success

    def test_a_download_that_breaks_off_begins_again(self, backed_up: tuple[Bench, str]) -> None:
        bench, key = backed_up
        bench.store.fault = fail_at("get within", times=1, error=StoreError("cut", retryable=True))
        assert bench.backups().restore(key).success
        assert jobs_in(bench.path) == 20
        assert bench.sleeps == [0.5]

    def test_an_uncompressed_backup_without_metadata_is_taken(self, backed_up: tuple[Bench, str]) -> None:
        bench, key = backed_up
        bench.store.objects["legacy.db"] = gzip.decompress(bench.store.objects[key])
        outcome = bench.backups().restore("legacy.db")
        assert outcome.success
        assert "compressedSize" not in outcome.as_dict()
        assert jobs_in(bench.path) == 20

    def test_while_another_process_owns_the_database_it_is_refused(self, backed_up: tuple[Bench, str]) -> None:
        bench, key = backed_up
        before = bench.beside()
        owner = OwnerLock(bench.path)
        owner.acquire()
        try:
            outcome = bench.backups().restore(key)
        finally:
            owner.release()
        assert f"the database is in use by process {os.getpid()}" in str(outcome.error)
        assert bench.beside() == before
        assert bench.store.calls == []

    def test_while_it_restores_nobody_else_owns_the_database(self, backed_up: tuple[Bench, str]) -> None:
        bench, key = backed_up
        refused = []

        def progress(step: str, done: int, total: int | None) -> None:
            if step == "check":
                with pytest.raises(JournalError) as caught:
                    OwnerLock(bench.path).acquire()
                refused.append(caught.value.busy)

        assert bench.backups().restore(key, progress).success
        assert refused == [True]


def rewritten(change: Callable[[dict[str, Any]], Any]) -> Callable[[Bench, str], None]:
    """Change the metadata of a backup."""

    def apply(bench: Bench, key: str) -> None:
        metadata = json.loads(bench.store.objects[key + ".meta.json"])
        changed = change(metadata)
        bench.store.objects[key + ".meta.json"] = json.dumps(metadata if changed is None else changed).encode()

    return apply


def replaced(content: Callable[[bytes], bytes]) -> Callable[[Bench, str], None]:
    """Change a payload's database, with metadata that fits."""

    def apply(bench: Bench, key: str) -> None:
        data = content(gzip.decompress(bench.store.objects[key]))
        payload = bench.store.objects[key] = gzip.compress(data)
        rewritten(
            lambda metadata: metadata.update(
                size=len(data), compressedSize=len(payload), checksum=hashlib.sha256(data).hexdigest()
            )
        )(bench, key)

    return apply


def without_metadata(bench: Bench, key: str) -> None:
    del bench.store.objects[key + ".meta.json"]


def with_metadata(content: bytes) -> Callable[[Bench, str], None]:
    def apply(bench: Bench, key: str) -> None:
        bench.store.objects[key + ".meta.json"] = content

    return apply


def cut_payload(bench: Bench, key: str) -> None:
    payload = bench.store.objects[key] = bench.store.objects[key][:-200]
    rewritten(lambda metadata: metadata.update(compressedSize=len(payload)))(bench, key)


def lengthened_payload(bench: Bench, key: str) -> None:
    payload = bench.store.objects[key] = bench.store.objects[key] + b"more"
    rewritten(lambda metadata: metadata.update(compressedSize=len(payload)))(bench, key)


def scrambled_payload(bench: Bench, key: str) -> None:
    payload = bench.store.objects[key] = b"\x1f\x8b" + bytes(100)
    rewritten(lambda metadata: metadata.update(compressedSize=len(payload)))(bench, key)


def page_lost(data: bytes) -> bytes:
    return data[: 4096 * 3] + bytes(4096) + data[4096 * 4 :]


def edited(sql: str) -> Callable[[bytes], bytes]:
    """The database after a statement."""

    def apply(data: bytes) -> bytes:
        connection = apsw.Connection(":memory:")
        connection.deserialize("main", data)
        connection.execute(sql)
        return bytes(connection.serialize("main"))

    return apply


INVALID = "Backup metadata is invalid or does not match the payload"
FAILURES: dict[str, tuple[Callable[[Bench, str], None], str]] = {
    "no metadata": (without_metadata, "Compressed backup is invalid because metadata is missing"),
    "metadata is no JSON": (with_metadata(b"{"), "Backup metadata is invalid: Expecting property name"),
    "metadata is no text": (with_metadata(b"\xff\xfe\x00"), "Backup metadata is invalid: "),
    "metadata is no object": (with_metadata(b"[]"), "Backup metadata is invalid"),
    "metadata is endless": (with_metadata(b"[" * 100_000), "Backup metadata is invalid"),
    **{
        f"metadata lacks {name}": (rewritten(lambda metadata, name=name: metadata.pop(name) and None), INVALID)  # type: ignore[misc]
        for name in ("timestamp", "version", "size", "compressedSize", "checksum", "compressed")
    },
    "metadata is of another payload": (rewritten(lambda metadata: metadata.update(compressedSize=7)), INVALID),
    "a negative size": (rewritten(lambda metadata: metadata.update(size=-1)), INVALID),
    "a checksum that is none": (rewritten(lambda metadata: metadata.update(checksum="x" * 64)), INVALID),
    "not compressed": (rewritten(lambda metadata: metadata.update(compressed=False)), INVALID),
    "a smaller size": (
        rewritten(lambda metadata: metadata.update(size=metadata["size"] - 1)),
        "Backup size mismatch - file may be corrupted",
    ),
    "a larger size": (
        rewritten(lambda metadata: metadata.update(size=metadata["size"] + 1)),
        "Backup size mismatch - file may be corrupted",
    ),
    "another checksum": (
        rewritten(lambda metadata: metadata.update(checksum="0" * 64)),
        "Backup checksum mismatch - file may be corrupted",
    ),
    "an upper-case checksum": (
        rewritten(lambda metadata: metadata.update(checksum=metadata["checksum"].upper())),
        "Backup checksum mismatch - file may be corrupted",
    ),
    "a payload that is cut off": (cut_payload, "unexpected end of file"),
    "a payload with something behind it": (lengthened_payload, "The payload is damaged: data after its end"),
    "a payload that is damaged": (scrambled_payload, "The payload is damaged: "),
    "no database": (replaced(lambda _: b"text" * 1000), "Restored data is not a valid SQLite database"),
    "nothing": (replaced(lambda _: b""), "Restored data is not a valid SQLite database"),
    "half a database": (replaced(lambda data: data[: len(data) // 2]), "Database integrity check failed: "),
    "a database that lost a page": (replaced(page_lost), "Database integrity check failed: "),
    "a database of another program": (
        replaced(edited("PRAGMA application_id = 7")),
        "the backup is a database of another program",
    ),
    "a database without our versions": (
        replaced(edited("DROP TABLE bunqueue_schema")),
        "the backup is a database of another program",
    ),
    "a database of a newer version": (
        replaced(edited("INSERT INTO bunqueue_schema VALUES (99, 0)")),
        "the backup has schema version 99, and this version of bunqueue_sqlite knows versions up to",
    ),
}


class TestFailures:
    @pytest.mark.parametrize("case", list(FAILURES))
    def test_the_database_and_what_lies_beside_it_stay_to_the_byte(
        self, backed_up: tuple[Bench, str], case: str
    ) -> None:
        bench, key = backed_up
        damage, text = FAILURES[case]
        damage(bench, key)
        stale(bench.path)
        before = bench.beside()
        outcome = bench.backups().restore(key)
        assert not outcome.success
        assert str(outcome.error).startswith(text), outcome.error
        assert bench.beside() == before
        assert bench.log.messages[-1] == "Restore failed"

    @pytest.mark.parametrize("case", list(FAILURES))
    def test_a_verification_finds_the_same(self, backed_up: tuple[Bench, str], case: str) -> None:
        bench, key = backed_up
        damage, text = FAILURES[case]
        damage(bench, key)
        before = bench.beside()
        outcome = bench.backups().verify(key)
        assert str(outcome.error).startswith(text), outcome.error
        assert bench.beside() == before

    def test_no_such_backup(self, backed_up: tuple[Bench, str]) -> None:
        bench, _ = backed_up
        before = bench.beside()
        assert bench.backups().restore("nope.db").error == "Backup not found: nope.db"
        assert bench.beside() == before

    def test_a_refusal(self, backed_up: tuple[Bench, str]) -> None:
        bench, key = backed_up
        before = bench.beside()
        bench.store.fault = fail_at("get")
        assert bench.backups().restore(key).error == "access denied"
        assert bench.beside() == before

    @pytest.mark.parametrize("step", ["download", "download metadata", "decompress", "check", "install"])
    def test_a_full_disk_at_any_step(self, backed_up: tuple[Bench, str], step: str) -> None:
        bench, key = backed_up
        stale(bench.path)
        before = bench.beside()

        def progress(told: str, done: int, total: int | None) -> None:
            if told == step:
                raise OSError(errno.ENOSPC, "No space left on device")

        outcome = bench.backups().restore(key, progress)
        assert outcome.error == "cannot write beside the database: No space left on device"
        assert bench.beside() == before

    def test_a_folder_that_does_not_exist(self, backed_up: tuple[Bench, str], tmp_path: Path) -> None:
        bench, key = backed_up
        files = SqliteFiles(SqliteStorage(data_path=tmp_path / "nowhere" / "jobs.db"))
        outcome = bench.backups(files=files).restore(key)
        assert "the folder" in str(outcome.error)
        assert "does not exist; create it first" in str(outcome.error)

    @pytest.mark.parametrize("failing", range(1, 5))
    def test_a_rename_that_fails_is_taken_back(
        self, backed_up: tuple[Bench, str], monkeypatch: pytest.MonkeyPatch, failing: int
    ) -> None:
        bench, key = backed_up
        stale(bench.path)
        before = bench.beside()
        count = [0]

        def counted(original: Callable[..., None]) -> Callable[..., None]:
            def rename(*arguments: Any) -> None:
                count[0] += 1
                if count[0] == failing:
                    raise OSError(errno.EIO, "Input/output error")
                original(*arguments)

            return rename

        monkeypatch.setattr("bunqueue_sqlite.snapshots.os.rename", counted(os.rename))
        monkeypatch.setattr("bunqueue_sqlite.snapshots.os.replace", counted(os.replace))
        outcome = bench.backups().restore(key)
        assert outcome.error == "cannot put the restored database in its place: Input/output error"
        assert bench.beside() == before

    def test_what_cannot_even_be_taken_back_is_settled_by_the_next_owner(
        self, backed_up: tuple[Bench, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench, key = backed_up
        stale(bench.path)
        before = bench.beside()
        count = [0]
        original = os.rename

        def rename(source: Any, target: Any) -> None:
            count[0] += 1
            if count[0] >= 3:
                raise OSError(errno.EIO, "Input/output error")
            original(source, target)

        monkeypatch.setattr("bunqueue_sqlite.snapshots.os.rename", rename)
        outcome = bench.backups().restore(key)
        assert str(outcome.error).startswith(
            "Restore failed and sidecar rollback failed: Input/output error; jobs.db-shm: "
        )
        monkeypatch.undo()
        assert bench.beside() != before
        with bench.files.own():
            pass
        assert bench.beside() == before


class TestInterruption:
    """A restore that was killed at any point is settled by the next owner: nothing is lost, nothing mixed."""

    def prepared(self, bench: Bench, tag: str) -> Path:
        """A candidate with 3 jobs, and a database with 20 whose log says that one of them is gone."""
        candidate = bench.files.candidate(tag)
        make_database(candidate, 3)
        connection = apsw.Connection(str(bench.path))
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.pragma("journal_mode", "WAL")
        connection.execute("DELETE FROM jobs WHERE id = (SELECT min(id) FROM jobs)")
        connection.close()
        assert bench.path.with_name("jobs.db-wal").stat().st_size > 0
        return candidate

    @pytest.mark.parametrize("put_aside", [1, 2])
    def test_before_the_rename_it_is_taken_back(self, bench: Bench, put_aside: int) -> None:
        self.prepared(bench, "1-a")
        for suffix in SIDECARS[:put_aside]:
            os.rename(f"{bench.path}{suffix}", f"{bench.path}{suffix}.restore-quarantine-1-a")
        log = Records()
        settle(bench.path, log)
        assert log.messages == ["Took back a restore that was interrupted: the database is as it was before"]
        assert jobs_in(bench.path) == 19
        assert [name for name in bench.beside() if "restore" in name] == []

    def test_after_the_rename_it_is_finished(self, bench: Bench) -> None:
        candidate = self.prepared(bench, "1-a")
        for suffix in SIDECARS[:2]:
            os.rename(f"{bench.path}{suffix}", f"{bench.path}{suffix}.restore-quarantine-1-a")
        os.replace(candidate, bench.path)
        log = Records()
        settle(bench.path, log)
        assert log.messages == ["Finished a restore that was interrupted: the database is the restored one"]
        assert list(bench.beside()) == ["jobs.db"]
        assert jobs_in(bench.path) == 3

    def test_a_queue_settles_it_when_it_opens_the_database(self, bench: Bench) -> None:
        self.prepared(bench, "1-a")
        for suffix in SIDECARS[:2]:
            os.rename(f"{bench.path}{suffix}", f"{bench.path}{suffix}.restore-quarantine-1-a")
        with Queue("mail", embedded=True, data_path=bench.path) as queue:
            assert queue.get_job_counts()["waiting"] == 19

    def test_a_download_that_was_left_goes(self, bench: Bench) -> None:
        bench.path.with_name("jobs.db.restore-1-a.gz.tmp").write_bytes(b"x")
        bench.path.with_name("jobs.db.restore-1-a.tmp").write_bytes(b"x")
        settle(bench.path)
        assert list(bench.beside()) == ["jobs.db"]

    def test_what_another_program_wrote_meanwhile_is_not_overwritten(self, bench: Bench) -> None:
        self.prepared(bench, "1-a")
        os.rename(f"{bench.path}-wal", f"{bench.path}-wal.restore-quarantine-1-a")
        bench.path.with_name("jobs.db-wal").write_bytes(b"of another program")
        before = bench.beside()
        with pytest.raises(JournalError, match="another program has written to the database since"):
            settle(bench.path)
        assert bench.beside() == before

    def test_meanwhile_no_backup_is_made(self, bench: Bench) -> None:
        self.prepared(bench, "1-a")
        os.rename(f"{bench.path}-wal", f"{bench.path}-wal.restore-quarantine-1-a")
        outcome = bench.backups().run()
        assert "a restore of the database runs or was interrupted" in str(outcome.error)


class TestVerify:
    def test_the_newest_is_verified_and_nothing_stays(self, bench: Bench) -> None:
        backups = bench.backups()
        backups.run()
        bench.store.clock += 1000
        bench.now += 5000
        key = backups.run().key
        before = bench.beside()
        steps: list[str] = []
        outcome = backups.verify(progress=lambda step, *_: steps.append(step) if step not in steps else None)
        assert outcome.success
        assert outcome.key == key
        assert outcome.counts["jobs"] == 20
        assert steps == ["download", "download metadata", "decompress", "check"]
        assert bench.beside() == before
        numbers = backups.statistics()
        assert (numbers.verifications, numbers.verification_failures) == (1, 0)
        assert numbers.last_verified_at == bench.now

    def test_the_numbers_of_rows_must_agree(self, backed_up: tuple[Bench, str]) -> None:
        bench, key = backed_up
        rewritten(lambda metadata: metadata["counts"].update(jobs=21))(bench, key)
        backups = bench.backups()
        assert backups.verify().error == "Backup has 20 rows in jobs, and its metadata says 21"
        assert backups.statistics().verification_failures == 1
        assert backups.statistics().last_verified_at is None

    def test_metadata_without_numbers_of_rows_is_enough(self, backed_up: tuple[Bench, str]) -> None:
        bench, key = backed_up
        rewritten(lambda metadata: metadata.pop("counts") and None)(bench, key)
        assert bench.backups().verify().success

    def test_without_any_backup(self, bench: Bench) -> None:
        bench.store.objects["backups/foreign.db"] = b"x"
        bench.store.modified["backups/foreign.db"] = 1
        assert bench.backups().verify().error == "There is no backup to verify"

    def test_it_needs_no_ownership(self, backed_up: tuple[Bench, str]) -> None:
        bench, _ = backed_up
        with Queue("mail", embedded=True, data_path=bench.path):
            assert bench.backups().verify().success


class TestSnapshotsBesideAServer:
    def test_what_is_committed_is_in_the_backup_although_a_reader_holds_the_log(self, bench: Bench) -> None:
        with Queue("mail", embedded=True, data_path=bench.path) as queue:
            reader = sqlite3.connect(f"file:{bench.path}?mode=ro", uri=True)
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM jobs").fetchall()
            queue.add_bulk([{"name": "more", "durable": True}] * 7)
            outcome = bench.backups().run()
            reader.close()
        assert outcome.success
        metadata = json.loads(bench.store.objects[f"{outcome.key}.meta.json"])
        assert metadata["counts"]["jobs"] == 27

    def test_a_copy_of_a_closed_database_leaves_nothing_beside_it(self, bench: Bench, tmp_path: Path) -> None:
        bench.files.snapshot(tmp_path / "copy.db")
        assert list(bench.beside()) == ["copy.db", "jobs.db"]

    def test_a_copy_does_not_replace_a_file(self, bench: Bench, tmp_path: Path) -> None:
        (tmp_path / "copy.db").write_bytes(b"x")
        with pytest.raises(JournalError, match="the file exists already"):
            bench.files.snapshot(tmp_path / "copy.db")

    def test_quotes_in_the_path(self, tmp_path: Path) -> None:
        folder = tmp_path / 'it\'s "here"'
        folder.mkdir()
        bench = Bench(folder)
        backups = bench.backups()
        key = str(backups.run().key)
        assert backups.restore(key).success
        assert jobs_in(bench.path) == 20


class TestLeftovers:
    def test_what_a_killed_backup_left_is_removed_by_the_next(self, bench: Bench) -> None:
        for name in (
            "backup-snapshot-1-a.gz.tmp",
            "backup-snapshot-1-a.tmp",
            "verify-2-b.gz.tmp",
            "verify-2-b.tmp-wal",
        ):
            bench.path.with_name(f"jobs.db.{name}").write_bytes(b"x")
        assert bench.backups().run().success
        assert list(bench.beside()) == ["jobs.db"]
        assert "Removed what an interrupted backup left behind" in bench.log.messages

    def test_what_a_living_one_uses_is_left_alone(self, bench: Bench) -> None:
        first, second = bench.backups(), bench.backups()
        outcomes = []

        def progress(step: str, done: int, total: int | None) -> None:
            if step == "check":
                outcomes.append(second.run())

        assert first.run(progress).success
        assert outcomes[0].success
        assert len(bench.store.payloads) == 2
        assert list(bench.beside()) == ["jobs.db"]
