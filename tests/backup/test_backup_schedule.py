"""When backups are made: a pure agenda, and the thread that keeps it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from bunqueue_core.backup.reports import Outcome
from bunqueue_core.backup.schedule import Agenda, BackupThread

HOUR = 3_600_000


def run(agenda: Agenda, until: int) -> list[tuple[int, list[str]]]:
    """What is due when, if every piece of work takes no time."""
    found: list[tuple[int, list[str]]] = []
    while agenda.next_at <= until:
        at = agenda.next_at
        found.append((at, list(agenda.take(at))))
    return found


class TestAgenda:
    def test_the_first_backup_is_due_after_a_minute_then_every_interval_from_the_start(self) -> None:
        agenda = Agenda(1_000, 6 * HOUR)
        assert run(agenda, 13 * HOUR) == [
            (61_000, ["backup"]),
            (1_000 + 6 * HOUR, ["backup"]),
            (1_000 + 12 * HOUR, ["backup"]),
        ]

    def test_a_first_run_that_is_a_tick_as_well_is_one_backup(self) -> None:
        assert [at for at, _ in run(Agenda(0, 60_000), 200_000)] == [60_000, 120_000, 180_000]

    def test_what_was_missed_is_not_made_up_for(self) -> None:
        agenda = Agenda(0, 60_000)
        assert agenda.take(1_000_000) == ["backup"]
        assert agenda.next_at == 1_020_000

    def test_nothing_is_due_before_its_time(self) -> None:
        assert Agenda(0, 60_000).take(59_999) == []

    def test_a_verification_follows_the_backup(self) -> None:
        agenda = Agenda(0, HOUR, 2 * HOUR)
        assert run(agenda, 3 * HOUR) == [
            (60_000, ["backup", "verify"]),
            (HOUR, ["backup"]),
            (2 * HOUR, ["backup", "verify"]),
            (3 * HOUR, ["backup"]),
        ]

    def test_intervals_beyond_32_bits(self) -> None:
        agenda = Agenda(0, 2**53 - 1)
        agenda.take(60_000)
        assert agenda.next_at == 2**53 - 1


class Recorded:
    """Stands for the backups."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.changed = threading.Condition()

    def _note(self, what: str) -> Outcome:
        with self.changed:
            self.done.append(what)
            self.changed.notify_all()
        return Outcome(success=True)

    def run(self) -> Outcome:
        return self._note("backup")

    def verify(self) -> Outcome:
        return self._note("verify")

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.done) >= count, 30)


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class TestThread:
    @pytest.fixture
    def made(self) -> Any:
        recorded, clock = Recorded(), Clock()
        thread = BackupThread(recorded, HOUR, 2 * HOUR, clock=clock)  # type: ignore[arg-type]
        yield recorded, clock, thread
        thread.stop()
        assert thread.join(30)

    def test_it_works_when_something_is_due(self, made: Any) -> None:
        recorded, clock, thread = made
        assert not thread.running
        thread.start()
        thread.start()
        assert thread.running
        clock.now = 60_000
        thread.wake()
        recorded.wait_for(2)
        clock.now = HOUR
        thread.wake()
        recorded.wait_for(3)
        assert recorded.done == ["backup", "verify", "backup"]

    def test_stopped_it_begins_nothing(self, made: Any) -> None:
        recorded, clock, thread = made
        thread.start()
        thread.stop()
        thread.stop()
        clock.now = 60_000
        thread.wake()
        assert thread.join(30)
        assert not thread.running
        assert recorded.done == []

    def test_started_again_it_counts_from_then(self, made: Any) -> None:
        recorded, clock, thread = made
        thread.start()
        thread.stop()
        assert thread.join(30)
        clock.now = 50_000
        thread.start()
        clock.now = 110_000
        thread.wake()
        recorded.wait_for(2)
        assert recorded.done == ["backup", "verify"]
