"""A backup: its seven steps in their order, what each failure leaves, and what is kept."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from bunqueue_sqlite.settings import SqliteStorage
from bunqueue_sqlite.snapshots import SqliteFiles
from fixtures.backups import START_MS, Bench, fail_at

from bunqueue_core.backup.errors import BackupError, StoreError, StoreTimeout
from bunqueue_core.backup.service import ABANDONED_MS
from bunqueue_core.model.errors import JournalError

KEY = re.compile(
    r"backups/bunqueue-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-\d{3}Z-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\.db"
)


class Steps:
    """Records the steps that progress is told of, and may raise in one."""

    def __init__(self, fail_in: str = "") -> None:
        self.names: list[str] = []
        self.told: list[tuple[str, int, int | None]] = []
        self._fail_in = fail_in

    def __call__(self, step: str, done: int, total: int | None) -> None:
        self.told.append((step, done, total))
        if not self.names or self.names[-1] != step:
            self.names.append(step)
        if step == self._fail_in:
            raise OSError(28, "No space left on device")


class TestSteps:
    def test_the_seven_steps_come_in_their_order(self, bench: Bench) -> None:
        steps = Steps()
        flushed: list[int] = []

        def flush() -> int:
            flushed.append(len(bench.store.calls))
            return 0

        outcome = bench.backups(flush=flush).run(steps)

        assert outcome.success
        assert flushed == [0]
        assert steps.names == ["flush", "snapshot", "check", "compress", "upload metadata", "upload", "clean up"]
        key = str(outcome.key)
        assert bench.store.calls == [("put", key + ".meta.json"), ("put", key), ("list", ""), ("tidy", "")]

    def test_progress_counts_bytes_up_to_the_whole(self, bench: Bench) -> None:
        steps = Steps()
        outcome = bench.backups().run(steps)
        for step, size in (("compress", outcome.size), ("upload", outcome.compressed_size)):
            counts = [(done, total) for name, done, total in steps.told if name == step]
            assert counts == sorted(counts)
            assert counts[-1] == (size, size)

    def test_names_types_and_contents(self, bench: Bench) -> None:
        outcome = bench.backups(unique=lambda: "91000e36-8513-467b-a556-b4f5dac2242d").run()

        key = str(outcome.key)
        assert KEY.fullmatch(key)
        assert key == "backups/bunqueue-2026-11-30T00-53-20-000Z-91000e36-8513-467b-a556-b4f5dac2242d.db"
        assert set(bench.store.objects) == {key, key + ".meta.json"}
        assert bench.store.types == {key: "application/gzip", key + ".meta.json": "application/json"}
        payload = bench.store.objects[key]
        snapshot = gzip.decompress(payload)
        assert snapshot.startswith(b"SQLite format 3\0")
        text = bench.store.objects[key + ".meta.json"].decode()
        metadata = json.loads(text)
        assert text.startswith('{\n  "timestamp": "2026-11-30T00:53:20.000Z",\n')
        assert metadata.pop("counts")["jobs"] == 20
        assert metadata == {
            "timestamp": "2026-11-30T00:53:20.000Z",
            "version": "1.2.3",
            "size": len(snapshot),
            "compressedSize": len(payload),
            "checksum": hashlib.sha256(snapshot).hexdigest(),
            "compressed": True,
        }
        assert (outcome.size, outcome.compressed_size) == (len(snapshot), len(payload))

    def test_names_have_a_random_part(self, bench: Bench) -> None:
        from bunqueue_core.backup.service import Backups

        backups = Backups(bench.store, bench.files, version="1", log=bench.log, now=lambda: START_MS)
        first, second = backups.run(), backups.run()
        assert KEY.fullmatch(str(first.key))
        assert first.key != second.key

    def test_the_outcome_as_a_document(self, bench: Bench) -> None:
        outcome = bench.backups().run()
        assert set(outcome.as_dict()) == {"success", "key", "size", "compressedSize", "duration"}
        bench.store.fault = fail_at("put")
        assert bench.backups().run().as_dict() == {"success": False, "error": "access denied"}

    def test_nothing_stays_beside_the_database(self, bench: Bench) -> None:
        before = bench.beside()
        assert bench.backups().run().success
        assert bench.beside() == before

    def test_events(self, bench: Bench) -> None:
        key = bench.backups().run().key
        bench.store.fault = fail_at("put")
        bench.backups().run()
        assert bench.events == [
            ("storage:backup-started", {"bucket": "bkt"}),
            ("storage:backup-completed", {"bucket": "bkt", "key": key}),
            ("storage:backup-started", {"bucket": "bkt"}),
            ("storage:backup-failed", {"bucket": "bkt", "error": "access denied"}),
        ]

    def test_a_listener_that_fails_fails_no_backup(self, bench: Bench) -> None:
        def announce(event: str, fields: Any) -> None:
            raise RuntimeError

        assert bench.backups(announce=announce).run().success


class TestFailures:
    """A failure at any step leaves neither half a backup nor a file beside the database."""

    def expect_nothing(self, bench: Bench, before: dict[str, str], *keys: str) -> None:
        assert bench.store.payloads == []
        assert list(bench.store.objects) == list(keys)
        assert bench.beside() == before

    @pytest.mark.parametrize(
        ("remaining", "text"),
        [
            (1, "Cannot create a consistent backup while 1 write remains buffered"),
            (3, "Cannot create a consistent backup while 3 writes remain buffered"),
        ],
    )
    def test_writes_that_remain_buffered(self, bench: Bench, remaining: int, text: str) -> None:
        before = bench.beside()
        steps = Steps()
        outcome = bench.backups(flush=lambda: remaining).run(steps)
        assert (outcome.success, outcome.error) == (False, text)
        assert steps.names == ["flush"]
        self.expect_nothing(bench, before)
        assert bench.store.calls == []

    def test_no_database(self, bench: Bench) -> None:
        bench.path.unlink()
        assert bench.backups().run().error == f"Database file not found: {bench.path}"

    def test_a_full_disk_during_the_snapshot(self, bench: Bench) -> None:
        class Full:
            def snapshot(self, path: Path) -> None:
                path.write_bytes(b"SQLite format 3\0 and no more")
                path.with_name(path.name + "-journal").write_bytes(b"x")
                raise JournalError("cannot make a snapshot: the disk is full", disk_full=True)

        before = bench.beside()
        outcome = bench.backups(source=Full()).run()
        assert outcome.error == "cannot make a snapshot: the disk is full"
        self.expect_nothing(bench, before)

    def test_a_snapshot_that_is_damaged(self, bench: Bench) -> None:
        files = bench.files

        class Damaging:
            def snapshot(self, path: Path) -> None:
                files.snapshot(path)
                content = bytearray(path.read_bytes())
                content[4096 * 3 : 4096 * 4] = bytes(4096)
                path.write_bytes(content)

        before = bench.beside()
        outcome = bench.backups(source=Damaging()).run()
        assert str(outcome.error).startswith("Database integrity check failed: ")
        self.expect_nothing(bench, before)
        assert bench.store.calls == []

    @pytest.mark.parametrize("step", ["snapshot", "check", "compress", "upload metadata"])
    def test_a_full_disk_at_any_step(self, bench: Bench, step: str) -> None:
        before = bench.beside()
        outcome = bench.backups().run(Steps(fail_in=step))
        assert outcome.error == "cannot write beside the database: No space left on device"
        self.expect_nothing(bench, before)

    def test_metadata_that_is_refused(self, bench: Bench) -> None:
        before = bench.beside()
        bench.store.fault = fail_at("put", part=".meta.json")
        outcome = bench.backups().run()
        assert (outcome.success, outcome.error) == (False, "access denied")
        self.expect_nothing(bench, before)
        assert [operation for operation, _ in bench.store.calls] == ["put"]

    def test_a_payload_that_is_refused_takes_its_metadata_with_it(self, bench: Bench) -> None:
        before = bench.beside()
        bench.store.fault = fail_at("put", end=".db")
        outcome = bench.backups().run()
        assert outcome.error == "access denied"
        self.expect_nothing(bench, before)
        (_, metadata), (_, key), first, second = bench.store.calls
        assert (first, second) == (("delete", key), ("delete", metadata))

    def test_a_payload_that_was_published_although_its_upload_failed_is_withdrawn(self, bench: Bench) -> None:
        before = bench.beside()

        bench.store.fault = fail_at("put after", end=".db", error=StoreError("the connection was lost"))
        assert bench.backups().run().error == "the connection was lost"
        self.expect_nothing(bench, before)

    def test_after_a_time_out_nothing_is_withdrawn(self, bench: Bench) -> None:
        # The upload may still end, and a payload without metadata would be no backup.
        bench.store.fault = fail_at("put", end=".db", error=StoreTimeout(30_000))
        outcome = bench.backups().run()
        assert outcome.error == "S3 backup upload timed out after 30000ms"
        assert [operation for operation, _ in bench.store.calls] == ["put"] * 5
        assert bench.store.payloads == []

    def test_a_time_out_before_another_error_counts_too(self, bench: Bench) -> None:
        errors: list[Exception] = [StoreTimeout(5), StoreError("access denied")]

        def fault(operation: str, key: str) -> None:
            if operation == "put" and key.endswith(".db"):
                raise errors.pop(0)

        bench.store.fault = fault
        assert bench.backups().run().error == "access denied"
        assert [operation for operation, _ in bench.store.calls] == ["put", "put", "put"]

    def test_what_cannot_be_withdrawn_is_logged(self, bench: Bench) -> None:
        def fault(operation: str, key: str) -> None:
            if operation == "delete" or (operation == "put" and key.endswith(".db")):
                raise StoreError("access denied")

        bench.store.fault = fault
        assert bench.backups().run().error == "access denied"
        assert bench.log.messages == ["Failed to clean incomplete backup publication"] * 2 + ["Backup failed"]

    def test_an_unexpected_error_is_a_failure_too(self, bench: Bench) -> None:
        bench.store.fault = fail_at("put", error=KeyError("x"))
        assert bench.backups().run().error == "KeyError: 'x'"


class TestAttempts:
    def test_passing_troubles_are_waited_out(self, bench: Bench) -> None:
        bench.store.fault = fail_at("put", times=2, error=StoreError("HTTP 503", retryable=True), part=".db.meta.json")
        assert bench.backups().run().success
        assert bench.sleeps == [0.5, 1.0]
        assert [message for level, message, _ in bench.log.records if level == "warn"] == [
            "S3 metadata upload failed (attempt 1/4), retrying in 500ms",
            "S3 metadata upload failed (attempt 2/4), retrying in 1000ms",
        ]

    def test_they_are_not_waited_out_for_ever(self, bench: Bench) -> None:
        bench.store.fault = fail_at("put", error=StoreError("HTTP 503", retryable=True))
        outcome = bench.backups().run()
        assert outcome.error == "HTTP 503"
        assert bench.sleeps == [0.5, 1.0, 2.0]
        assert len(bench.store.calls) == 4

    def test_a_payload_is_sent_from_its_beginning_again(self, bench: Bench) -> None:
        left = [1]

        def fault(operation: str, key: str) -> None:
            if operation == "put after" and key.endswith(".db") and left:
                left.pop()
                del bench.store.objects[key]
                raise StoreError("lost", retryable=True)

        bench.store.fault = fault
        backups = bench.backups()
        assert backups.run().success
        assert backups.verify().success

    def test_a_refusal_is_final(self, bench: Bench) -> None:
        bench.store.fault = fail_at("put")
        bench.backups().run()
        assert bench.sleeps == []


class TestOneAtATime:
    def test_a_second_call_is_rejected(self, bench: Bench) -> None:
        backups = bench.backups()
        inner = []

        def progress(step: str, done: int, total: int | None) -> None:
            if step == "check":
                inner.append(backups.run())

        assert backups.run(progress).success
        assert inner[0].as_dict() == {"success": False, "error": "Backup already in progress"}
        numbers = backups.statistics()
        assert (numbers.attempts, numbers.successes, numbers.overlap_rejections) == (1, 1, 1)

    def test_numbers_add_up_at_any_moment(self, bench: Bench) -> None:
        backups = bench.backups()
        seen = []
        backups.run(lambda *_: seen.append(backups.statistics()))
        assert all(numbers.in_progress and numbers.attempts == 1 for numbers in seen)
        bench.store.fault = fail_at("put")
        bench.now += 1000
        backups.run()
        bench.now += 1000
        backups.run()
        numbers = backups.statistics()
        assert (numbers.attempts, numbers.successes, numbers.failures, numbers.in_progress) == (3, 1, 2, False)
        assert numbers.consecutive_failures == 2
        assert (numbers.last_success_at, numbers.last_failure_at) == (START_MS, START_MS + 2000)
        assert numbers.last_duration_ms is not None
        assert numbers.last_size_bytes == len(bench.store.objects[bench.store.payloads[0]])
        bench.store.fault = lambda operation, key: None
        backups.run()
        assert backups.statistics().consecutive_failures == 0

    def test_cancelling_withdraws_what_was_begun(self, bench: Bench) -> None:
        before = bench.beside()
        backups = bench.backups()

        def progress(step: str, done: int, total: int | None) -> None:
            if step == "upload":
                backups.cancel()

        outcome = backups.run(progress)
        assert outcome.error == "cancelled: the process is stopping"
        assert bench.store.objects == {}
        assert bench.beside() == before
        assert backups.run().error == "cancelled: the process is stopping"

    def test_cancelling_interrupts_what_the_storage_does(self, bench: Bench) -> None:
        entered, interrupted = threading.Event(), threading.Event()

        class Slow(SqliteFiles):
            def inspect(self, path: Path) -> dict[str, int]:
                entered.set()
                assert interrupted.wait(30)
                raise JournalError("cannot check the database: interrupted")

            def interrupt(self) -> None:
                interrupted.set()

        backups = bench.backups(files=Slow(SqliteStorage(data_path=bench.path)))
        ended = []
        thread = threading.Thread(target=lambda: ended.append(backups.run()))
        thread.start()
        assert entered.wait(30)
        backups.cancel()
        thread.join()
        assert ended[0].error == "cancelled: the process is stopping"


class TestKeeping:
    def test_the_newest_are_kept_with_their_metadata(self, bench: Bench) -> None:
        backups = bench.backups(retention=2)
        keys = []
        for _ in range(4):
            keys.append(str(backups.run().key))
            bench.now += 1000
            bench.store.clock += 1000
        assert set(bench.store.objects) == {name for key in keys[2:] for name in (key, key + ".meta.json")}

    def test_of_one_second_the_newest_name_is_kept(self, bench: Bench) -> None:
        backups = bench.backups(retention=1)
        for _ in range(3):
            last = backups.run().key
            bench.now += 10
        assert bench.store.payloads == [last]

    def test_what_this_program_did_not_name_is_neither_counted_nor_deleted(self, bench: Bench) -> None:
        foreign = [
            "backups/other.db",
            "backups/deep/bunqueue-2020-01-01T00-00-00-000Z.db",
            "backups/x.meta.json",
            "z.db",
        ]
        for key in foreign:
            bench.store.objects[key] = b"x"
            bench.store.modified[key] = bench.store.clock - 10 * ABANDONED_MS
        bench.backups(retention=1).run()
        assert set(foreign) <= set(bench.store.objects)

    def test_early_names_count(self, bench: Bench) -> None:
        early = "backups/bunqueue-2020-01-01T00-00-00-000Z.db"
        bench.store.objects[early] = b"x"
        bench.store.modified[early] = START_MS - 1
        bench.backups(retention=1).run()
        assert early not in bench.store.objects

    def test_one_that_cannot_be_deleted_stops_nothing(self, bench: Bench) -> None:
        backups = bench.backups(retention=1)
        first = str(backups.run().key)
        bench.store.clock += 1000
        second = str(backups.run().key)
        assert first not in bench.store.objects
        bench.store.clock += 1000
        bench.store.fault = fail_at("delete", part=second)
        outcome = backups.run()
        assert outcome.success
        assert "Failed to delete old backup" in bench.log.messages
        # Its metadata stays with it, and both go after the next backup.
        assert {second, second + ".meta.json"} <= set(bench.store.objects)
        bench.store.fault = lambda operation, key: None
        backups.run()
        assert second not in bench.store.objects

    def test_a_listing_that_fails_fails_no_backup(self, bench: Bench) -> None:
        bench.store.fault = fail_at("list")
        assert bench.backups().run().success
        assert "Backup cleanup failed" in bench.log.messages

    def test_abandoned_metadata_goes_after_a_day(self, bench: Bench) -> None:
        name = "backups/bunqueue-2026-11-29T00-00-00-000Z-00000000-0000-4000-8000-00000000000{}.db.meta.json"
        old, young = name.format(8), name.format(9)
        for key, age in ((old, ABANDONED_MS + 1), (young, ABANDONED_MS - 1)):
            bench.store.objects[key] = b"{}"
            bench.store.modified[key] = bench.store.clock - age
        bench.backups().run()
        assert old not in bench.store.objects
        assert young in bench.store.objects
        assert bench.store.tidied == [bench.store.clock - ABANDONED_MS]

    def test_without_a_number_to_keep_nothing_is_deleted(self, bench: Bench) -> None:
        backups = bench.backups(retention=0)
        backups.run()
        backups.run()
        assert len(bench.store.payloads) == 2


class TestListing:
    def test_newest_first(self, bench: Bench) -> None:
        backups = bench.backups()
        keys = []
        for _ in range(3):
            keys.append(backups.run().key)
            bench.store.clock += 1000
        found = backups.list()
        assert [backup.key for backup in found] == keys[::-1]
        assert found[0].size == len(bench.store.objects[str(keys[2])])
        assert found[0].modified_at == START_MS + 2000

    def test_a_failure_is_never_an_empty_list(self, bench: Bench) -> None:
        bench.store.fault = fail_at("list")
        with pytest.raises(BackupError, match=r"^Failed to list backups: access denied$"):
            bench.backups().list()
