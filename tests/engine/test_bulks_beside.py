"""An embedded broker writes a bulk beside its producer, who goes on, but no further than one commit ahead."""

from __future__ import annotations

import threading

import pytest
from fixtures.local import Bench, job

from bunqueue_core.model.ports import Ports
from bunqueue_core.model.requests import Event, PullRequest
from bunqueue_core.storage import buffer
from bunqueue_core.storage.changes import ChangeSet
from bunqueue_core.testing import DictJournal

PATIENCE_S = 30
BULK = 200


class GatedJournal(DictJournal):
    """Commits of jobs wait at a gate; what happens is noted in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.begun = threading.Event()
        self.notes: list[str] = []
        self.threads: set[str] = set()

    def commit(self, changes: ChangeSet) -> None:
        self.threads.add(threading.current_thread().name)
        self.begun.set()
        assert self.gate.wait(PATIENCE_S)
        super().commit(changes)
        self.notes.append(f"wrote {len(changes.put)}")


@pytest.fixture
def gated() -> tuple[Bench, GatedJournal]:
    journal = GatedJournal()
    return Bench(journal, role="embedded", ports=Ports()), journal


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nothing goes on because of the time that has passed."""
    monkeypatch.setattr(buffer, "PRODUCER_PATIENCE_S", PATIENCE_S)


def bulk(bench: Bench, count: int = BULK) -> list[str]:
    return bench.broker.push("q", [job() for _ in range(count)]).result(PATIENCE_S).ids


def stored(journal: DictJournal, ids: list[str]) -> int:
    return len(journal.read_jobs(ids))


def test_a_bulk_is_written_beside_its_producer(gated: tuple[Bench, GatedJournal]) -> None:
    bench, journal = gated
    ids = bulk(bench)
    assert journal.begun.is_set(), "it is on its way"
    assert journal.notes == [], "and the producer did not wait for its end"
    journal.gate.set()
    bench.broker.close().result(PATIENCE_S)
    assert journal.threads == {"bunqueue"}
    assert journal.notes == [f"wrote {BULK}"]
    assert stored(journal, ids) == BULK


def test_a_producer_is_no_further_than_one_commit_ahead(gated: tuple[Bench, GatedJournal]) -> None:
    bench, journal = gated
    bulk(bench)
    second: list[str] = []

    def produce() -> None:
        second.extend(bulk(bench))
        journal.notes.append("produced")

    producer = threading.Thread(target=produce)
    producer.start()
    producer.join(0.1)
    journal.gate.set()
    producer.join(PATIENCE_S)
    bench.broker.close().result(PATIENCE_S)
    assert journal.notes.index("produced") > journal.notes.index(f"wrote {BULK}")
    assert stored(journal, second) == BULK


def test_a_bulk_whose_commit_fails_is_kept_and_written_later() -> None:
    journal = DictJournal()
    bench = Bench(journal, role="embedded", ports=Ports())
    journal.fail_commits = 2
    ids = [id for _ in range(3) for id in bulk(bench)]
    assert bench.broker.flush() or bench.broker.flush()
    assert stored(journal, ids) == 3 * BULK
    bench.broker.close().result(PATIENCE_S)


def test_a_listener_may_add_a_bulk_in_the_thread_that_writes() -> None:
    journal = DictJournal()
    bench = Bench(journal, role="embedded", ports=Ports())
    added = threading.Event()
    threads: list[str] = []
    ids: list[str] = []

    def heard(event: Event) -> None:
        if event.queue == "delayed" and event.type == "pulled" and not ids:
            ids.extend(bulk(bench))
            threads.append(threading.current_thread().name)
            added.set()

    bench.broker.subscribe(heard)
    bench.broker.pull(PullRequest("delayed", 1, "w", wait_ms=60_000))
    bench.broker.push("delayed", [job(delay=20)]).result(PATIENCE_S)
    assert added.wait(PATIENCE_S)
    bench.broker.close().result(PATIENCE_S)
    assert threads == ["bunqueue"]
    assert stored(journal, ids) == BULK


def test_who_has_nothing_to_write_does_not_stand_in_the_way_of_who_has(gated: tuple[Bench, GatedJournal]) -> None:
    bench, journal = gated
    bulk(bench)
    # All that is unwritten is being written: this would wait for it.
    assert bench.broker.run_due() == 0
    assert journal.notes == []
    journal.gate.set()
    bench.broker.close().result(PATIENCE_S)


def test_bulks_of_many_producers_are_all_written() -> None:
    journal = DictJournal()
    bench = Bench(journal, role="embedded", ports=Ports())
    ids: list[str] = []
    failures: list[BaseException] = []

    def produce(size: int) -> None:
        try:
            for _ in range(20):
                ids.extend(bulk(bench, size))
        except BaseException as error:
            failures.append(error)

    producers = [threading.Thread(target=produce, args=(size,)) for size in (1, 50, 100, 150, 400)]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join(PATIENCE_S)
    assert failures == []
    bench.broker.close().result(PATIENCE_S)
    assert stored(journal, ids) == len(set(ids)) == 20 * (1 + 50 + 100 + 150 + 400)
