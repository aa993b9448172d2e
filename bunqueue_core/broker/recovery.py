"""Start: take over what a journal holds, step by step, and say how far it has come.

What a stored row becomes is the engine's (:mod:`bunqueue_core.engine.recover`); here is the order, and what is stored in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Sequence
from typing import Any, Final

from bunqueue_core.engine.engine import Engine
from bunqueue_core.model.job import Job, Location
from bunqueue_core.model.payload import Packer
from bunqueue_core.model.requests import DlqEntry
from bunqueue_core.storage.changes import (
    AGE_TABLE,
    CRON_TABLE,
    FLOW_FAILURE_TABLE,
    GROUP_TABLE,
    LOG_TABLE,
    METRICS_TABLE,
    PROOF_TABLE,
    RATE_TABLE,
    WEBHOOK_TABLE,
    WINDOW_TABLE,
    Table,
)
from bunqueue_core.storage.journal import Journal, StoredJob
from bunqueue_core.storage.records import CorruptDependencies, dlq_from_row, job_from_row

#: Rows that are read at once.
LOAD_BATCH: Final = 10_000

#: Jobs that are looked up at once.
LOOK_UP_BATCH: Final = 500

#: Time between two reports of a recovery that takes long, s.
REPORT_S: Final = 5.0

#: Values that could not be read which the log names at most.
_NAMED: Final = 20


class Recovery:
    """One start of a broker.

    Policies of queues come first, because they bound how often a job may be interrupted. Then, in this order: jobs that were
    active, jobs that wait, dead letters, the state of groups, completed jobs, schedules. (Schedules are *read* before anything
    else, so that one that cannot be kept stops the start before it has changed anything; they begin when the broker does.)

    Args:
        engine: what takes the rows over.
        journal: where they are.
        max_completed_jobs: completed jobs to load.
        log: told how far it has come.
    """

    def __init__(self, engine: Engine, journal: Journal, max_completed_jobs: int, log: Callable[..., None]) -> None:
        self._engine = engine
        self._journal = journal
        self._max_completed_jobs = max_completed_jobs
        self._log = log
        self._damaged: list[str] = []
        self._counts: dict[str, int] = {}
        self._begun = self._reported = time.monotonic()

    def run(self, now: int) -> None:
        """Take everything over.

        Args:
            now: epoch ms.

        Raises:
            JournalError: the journal cannot be read or written.
            ConfigurationError: a stored schedule cannot be kept.
        """
        engine, journal = self._engine, self._journal
        engine.load_schedules(journal.load_table(CRON_TABLE), now)
        for controls in journal.load_queues():
            engine.restore_queue(controls, now)
        for id, queue, _ in journal.load_table(PROOF_TABLE):
            engine.proofs[id] = queue
        logs = journal.load_table(LOG_TABLE)
        engine.logged.update(id for id, _ in logs)  # of a job that goes in the following they go, too
        letters, buried = self._read_letters()
        self._active(buried, now)
        gated = self._pending(buried, now)
        engine.restore_dead_letters(letters, now)
        self._restore(GROUP_TABLE, engine.restore_group)
        self._restore(RATE_TABLE, lambda row: engine.restore_use(row, now))
        self._completed(now)
        self._dependencies(gated, now)
        self._restore(WINDOW_TABLE, lambda row: engine.restore_window(row, now))
        self._restore(AGE_TABLE, engine.restore_age)
        self._restore(LOG_TABLE, engine.restore_logs, logs)
        self._restore(METRICS_TABLE, engine.restore_metric)
        self._restore(WEBHOOK_TABLE, engine.restore_webhook)
        engine.finish_recovery(journal.completed_counts(), now)
        if engine.marks.pending:
            journal.commit(engine.marks.drain())
            engine.marks.committed()
        self._summarize()

    # -- steps --------------------------------------------------------------------------------------------------------

    def _read_letters(self) -> tuple[list[tuple[int, DlqEntry]], set[str]]:
        """The dead letters, and the ids of their jobs: a job that ends at this start gets a number behind theirs."""
        packer = Packer()
        letters: list[tuple[int, DlqEntry]] = []
        buried: set[str] = set()
        for batch in self._journal.load_dlq(LOAD_BATCH):
            for row in batch:
                self._engine.next_dlq_id = max(self._engine.next_dlq_id, row.id + 1)
                buried.add(row.job_id)
                try:
                    letters.append((row.id, dlq_from_row(row, packer)))
                except Exception:  # one that cannot be decoded must not stop the start
                    self._damaged.append(f"dlq.{row.id}")
            self._progress("dead letters", len(batch))
        return letters, buried

    def _active(self, buried: Container[str], now: int) -> None:
        """Jobs that were being processed: what becomes of a batch is stored before the next one is read."""
        engine, journal = self._engine, self._journal
        while True:
            rows = journal.load_active(LOAD_BATCH)
            for row in rows:
                job = self._job(row, now)
                if job is not None:
                    engine.restore_active(job, now, buried=row.id in buried)
            self._progress("interrupted", len(rows))
            if rows:
                journal.commit(engine.marks.drain())
                engine.marks.committed()
            if len(rows) < LOAD_BATCH:
                return

    def _pending(self, buried: Container[str], now: int) -> list[Job]:
        """Jobs that waited. Gives those that wait for others: what became of these is not known yet."""
        engine = self._engine
        gated: list[Job] = []
        for batch in self._journal.load_pending(LOAD_BATCH):
            waiting: list[Job] = []
            before = len(gated)
            for row in batch:
                if row.id in engine.jobs:
                    continue  # it was active, and has been taken over a moment ago
                job = self._job(row, now)
                if job is None:
                    continue
                if row.id in buried:
                    engine.marks.removed(job)
                elif job.location == Location.GATED:
                    gated.append(job)
                else:
                    waiting.append(job)
            engine.restore_pending(waiting, now)
            self._progress("pending", len(waiting) + len(gated) - before)
        return gated

    def _completed(self, now: int) -> None:
        """The newest completed jobs; older ones are read when they are asked for.

        A few more than memory is to keep: as many as it may have had before those that it let go.
        """
        most = self._max_completed_jobs + self._max_completed_jobs // 10 + 1
        for batch in self._journal.load_completed(most, LOAD_BATCH):
            jobs = [job_from_row(row, tolerate_corrupt=True, damaged=self._damaged) for row in batch]
            self._engine.restore_completed(jobs, now)
            self._progress("completed", len(batch))

    def _dependencies(self, gated: list[Job], now: int) -> None:
        """Jobs that wait for others, and what those that failed mean to them."""
        engine, journal = self._engine, self._journal
        wanted = list({id for job in gated for id in job.depends_on} - engine.jobs.keys() - engine.proofs.keys())
        for start in range(0, len(wanted), LOOK_UP_BATCH):
            for row in journal.read_jobs(wanted[start : start + LOOK_UP_BATCH]).values():
                if row.state == "completed":
                    job = job_from_row(row, tolerate_corrupt=True, damaged=self._damaged)
                    engine.adopt_completed(job)
                    engine.plan_age(job, now)
        for parent_id, child_id, queue, mode, error, _ in journal.load_table(FLOW_FAILURE_TABLE):
            engine.child_failures.setdefault(parent_id, {})[child_id] = (mode, error, queue)
        engine.restore_pending(gated, now)  # without the children that a parent goes on without
        for parent_id in [id for id in engine.child_failures if id not in engine.jobs]:
            engine.clear_child_failures(parent_id)
        engine.replay_failures(now)

    # -- how ----------------------------------------------------------------------------------------------------------

    def _job(self, row: StoredJob, now: int) -> Job | None:
        """The job of a row; None if its dependencies cannot be read and it went to the dead letters."""
        try:
            return job_from_row(row, damaged=self._damaged)
        except CorruptDependencies:
            self._log("warn", "Job with unreadable dependencies goes to the dead letters", job=row.id, queue=row.queue)
            self._engine.restore_corrupt(job_from_row(row, tolerate_corrupt=True), now)
            return None

    def _restore(
        self, table: Table, restore: Callable[[tuple[Any, ...]], None], rows: Sequence[tuple[Any, ...]] | None = None
    ) -> None:
        for values in self._journal.load_table(table) if rows is None else rows:
            try:
                restore(values)
            except Exception:  # a blob that cannot be decoded; one must not stop the start
                self._damaged.append(f"{table.name}.{values[0]}")

    def _progress(self, phase: str, rows: int) -> None:
        self._counts[phase] = self._counts.get(phase, 0) + rows
        moment = time.monotonic()
        if moment - self._reported >= REPORT_S:
            self._reported = moment
            self._log("info", "Recovery progress", phase=phase, rows=self._counts[phase], elapsedMs=self._elapsed_ms)

    @property
    def _elapsed_ms(self) -> int:
        return round((time.monotonic() - self._begun) * 1000)

    def _summarize(self) -> None:
        damaged, engine, counts = self._damaged, self._engine, self._counts
        if damaged:
            self._log(
                "warn",
                "Stored values cannot be read and are taken for empty",
                count=len(damaged),
                values=damaged[:_NAMED],
            )
        self._log(
            "info",
            "Completed recovery",
            interrupted=counts.get("interrupted", 0),
            pending=counts.get("pending", 0),
            deadLetters=counts.get("dead letters", 0),
            completed=engine.completed_in_memory,
            queues=len(engine.queues),
            durationMs=self._elapsed_ms,
        )


__all__ = ["LOAD_BATCH", "Recovery"]
