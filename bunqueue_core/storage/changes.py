"""What one commit writes: immutable rows, built whole from the engine's live objects at one instant.

A driver applies a :class:`ChangeSet` in one transaction, in the order of its fields. Marks coalesce before: what was created and
removed between two commits is never in one; a job appears in at most one of ``removed``+``put``, ``removed`` and ``moved``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

#: Columns of the ``jobs`` table that every row fills; the rest of :data:`JOB_COLUMNS` often has its default.
PLAIN_COLUMNS: Final = ("id", "queue", "name", "data", "priority", "created_at", "run_at", "state")

#: Columns after the plain ones, in the order of :attr:`JobRow.rest`, with the default of each.
REST_COLUMNS: Final[tuple[tuple[str, Any], ...]] = (
    ("started_at", None),
    ("completed_at", None),
    ("attempts", 0),
    ("max_attempts", 3),
    ("backoff", 1000),
    ("ttl", None),
    ("timeout", None),
    ("unique_key", None),
    ("custom_id", None),
    ("depends_on", None),
    ("parent_id", None),
    ("children_ids", None),
    ("tags", None),
    ("lifo", 0),
    ("group_id", None),
    ("progress", 0),
    ("progress_msg", None),
    ("remove_on_complete", 0),
    ("remove_on_fail", 0),
    ("fail_parent_on_failure", 0),
    ("remove_dependency_on_failure", 0),
    ("continue_parent_on_failure", 0),
    ("ignore_dependency_on_failure", 0),
    ("stall_timeout", None),
    ("last_heartbeat", None),
    ("stall_count", 0),
    ("timeline", None),
    ("stacktrace", None),
    ("dlq_retry_state", None),
    ("extended_options", None),
)

JOB_COLUMNS: Final = PLAIN_COLUMNS + tuple(name for name, _ in REST_COLUMNS)
REST_DEFAULTS: Final = tuple(default for _, default in REST_COLUMNS)


class JobRow(NamedTuple):
    """A whole row of ``jobs``: :data:`PLAIN_COLUMNS`, then ``rest``.

    ``rest`` is None when every column of :data:`REST_COLUMNS` has its default, so that a driver can write the short
    form of the statement for the most common row.
    """

    id: str
    queue: str
    name: str
    data: bytes | None
    priority: int
    created_at: int
    run_at: int
    state: str
    rest: tuple[Any, ...] | None = None


class StoredJobLike(Protocol):
    """What reading a row needs: the fields of :class:`JobRow`; ``rest`` None means all defaults."""

    @property
    def id(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def data(self) -> bytes | None: ...
    @property
    def priority(self) -> int: ...
    @property
    def created_at(self) -> int: ...
    @property
    def run_at(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def rest(self) -> tuple[Any, ...] | None: ...


class MoveRow(NamedTuple):
    """A stored job that only moved on: these five columns change, the others stay. By far the most frequent change."""

    id: str
    state: str
    started_at: int | None
    completed_at: int | None
    timeline: bytes | None


class ResultRow(NamedTuple):
    """``result`` is an encoded payload (an encoded null included); ``completed_at`` in epoch ms."""

    job_id: str
    result: bytes
    completed_at: int


class DlqRow(NamedTuple):
    """A dead letter; ``entry`` is the encoded entry with its job. ``id`` orders entries of the whole table and is never reused."""

    id: int
    job_id: str
    queue: str
    entry: bytes
    entered_at: int


class QueueRow(NamedTuple):
    """Controls of a queue that differ from the defaults; the columns of ``queue_state``."""

    name: str
    paused: int = 0
    rate_limit: float | None = None
    concurrency_limit: int | None = None
    rate_limit_duration: int | None = None
    rate_limit_expires_at: int | None = None
    stall_enabled: int | None = None
    stall_interval: int | None = None
    max_stalls: int | None = None
    stall_grace_period: int | None = None
    dlq_config: bytes | None = None


@dataclass(slots=True)
class ChangeSet:
    """Everything that one commit writes. Empty lists are the rule; a driver skips them.

    Attributes:
        obliterated: queues all of whose rows in ``jobs`` and ``job_results`` go, whatever their state; applied first.
        removed: ids whose rows in ``jobs`` and ``job_results`` go. Applied before ``put``, so that a recycled id starts afresh.
        put: rows to insert or to replace whole.
        moved: rows that are stored (or in the same change set's ``put``-before state) and only moved on.
        results: results to store or replace.
        dlq_removed: ids (of :class:`DlqRow`) to delete.
        dlq_put: dead letters to store or replace.
        queues: controls to store or replace.
        queues_removed: queue names whose controls are all default again.
        tables: changes of further tables, each described by its :class:`Table`.
    """

    obliterated: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    put: list[JobRow] = field(default_factory=list)
    moved: list[MoveRow] = field(default_factory=list)
    results: list[ResultRow] = field(default_factory=list)
    dlq_removed: list[int] = field(default_factory=list)
    dlq_put: list[DlqRow] = field(default_factory=list)
    queues: list[QueueRow] = field(default_factory=list)
    queues_removed: list[str] = field(default_factory=list)
    tables: list[TableChange] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """True when there is nothing to write."""
        return not (
            self.put
            or self.moved
            or self.removed
            or self.results
            or self.dlq_put
            or self.dlq_removed
            or self.queues
            or self.queues_removed
            or self.tables
            or self.obliterated
        )

    @property
    def rows(self) -> int:
        """Number of rows that it touches."""
        return (
            len(self.put)
            + len(self.moved)
            + len(self.removed)
            + len(self.results)
            + len(self.dlq_put)
            + len(self.dlq_removed)
            + len(self.queues)
            + len(self.queues_removed)
            + (sum(len(change.put) + len(change.removed) for change in self.tables) if self.tables else 0)
        )

    @property
    def bytes(self) -> int:
        """Bytes of payload in it."""
        return (
            sum(len(row.data) for row in self.put if row.data is not None)
            + sum(len(result.result) for result in self.results)
            + sum(len(entry.entry) for entry in self.dlq_put)
        )


class Table(NamedTuple):
    """A further table of the core, described as data so that a driver needs no code of its own for it.

    ``columns`` are (name, declared type) with the primary key first, ``key`` of them; ``order`` is the column list by which it is
    loaded at start, empty when it is not loaded.
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    key: int = 1
    order: tuple[str, ...] = ()
    indexes: tuple[tuple[str, ...], ...] = ()

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)


@dataclass(slots=True)
class TableChange:
    """Changes of one :class:`Table`: first ``removed`` (key tuples), then ``put`` (whole rows, replacing)."""

    table: Table
    removed: list[tuple[Any, ...]] = field(default_factory=list)
    put: list[tuple[Any, ...]] = field(default_factory=list)


#: Schedules (cron and interval). ``extra`` columns of the reference keep their names.
CRON_TABLE: Final = Table(
    "cron_jobs",
    (
        ("name", "TEXT"),
        ("queue", "TEXT"),
        ("job_name", "TEXT"),
        ("data", "BLOB"),
        ("schedule", "TEXT"),
        ("repeat_every", "INTEGER"),
        ("priority", "INTEGER"),
        ("next_run", "INTEGER"),
        ("executions", "INTEGER"),
        ("max_limit", "INTEGER"),
        ("timezone", "TEXT"),
        ("unique_key", "TEXT"),
        ("dedup", "BLOB"),
        ("skip_missed_on_restart", "INTEGER"),
        ("skip_if_no_worker", "INTEGER"),
        ("prevent_overlap", "INTEGER"),
        ("job_options", "BLOB"),
    ),
    order=("name",),
)

#: Proofs that a job completed whose row is gone (removed on completion), for jobs that depend on it.
PROOF_TABLE: Final = Table(
    "dependency_completions",
    (("job_id", "TEXT"), ("queue", "TEXT"), ("completed_at", "INTEGER")),
    order=("completed_at", "job_id"),
)

#: Failures of children that a parent carries on with (``mode`` continue, ignore).
FLOW_FAILURE_TABLE: Final = Table(
    "flow_failures",
    (
        ("parent_id", "TEXT"),
        ("child_id", "TEXT"),
        ("child_queue", "TEXT"),
        ("mode", "TEXT"),
        ("error", "TEXT"),
        ("created_at", "INTEGER"),
    ),
    key=2,
    order=("created_at", "parent_id", "child_id"),
)

#: Stored policies of groups.
GROUP_TABLE: Final = Table(
    "group_state",
    (
        ("queue", "TEXT"),
        ("group_id", "TEXT"),
        ("rate_limit", "INTEGER"),
        ("rate_duration", "INTEGER"),
        ("concurrency_limit", "INTEGER"),
        ("paused", "INTEGER"),
    ),
    key=2,
    order=("queue", "group_id"),
)

#: What rates have used up: of a queue's bucket (``group_id`` is empty) and of groups' windows, and until when groups are blocked.
#: ``started_at`` is when the bucket was looked at last, or the window opened; ``used`` the tokens or deliveries gone by then.
RATE_TABLE: Final = Table(
    "rate_use",
    (
        ("queue", "TEXT"),
        ("group_id", "TEXT"),
        ("started_at", "INTEGER"),
        ("maximum", "REAL"),
        ("duration", "INTEGER"),
        ("used", "REAL"),
        ("blocked_until", "INTEGER"),
    ),
    key=2,
    order=("queue", "group_id"),
)

#: Deduplication keys that stay taken until a time (epoch ms), whatever becomes of the job that took them.
WINDOW_TABLE: Final = Table(
    "key_windows",
    (("queue", "TEXT"), ("key", "TEXT"), ("job_id", "TEXT"), ("expires_at", "INTEGER")),
    key=2,
    order=("queue", "key"),
)

#: When completed jobs outlive their age (epoch ms): a start does not load all of them.
AGE_TABLE: Final = Table(
    "completed_ages",
    (("job_id", "TEXT"), ("forget_at", "INTEGER")),
    order=("forget_at", "job_id"),
)

#: Log lines of jobs, packed per job.
LOG_TABLE: Final = Table("job_logs", (("job_id", "TEXT"), ("logs", "BLOB")), order=("job_id",))

#: Webhooks; ``entry`` is packed.
WEBHOOK_TABLE: Final = Table("webhooks", (("id", "TEXT"), ("entry", "BLOB")), order=("id",))

#: Completed and failed jobs of a queue by minute (``minute`` = epoch ms // 60000). Minute -1 holds the lifetime total, with the
#: time of the latest count and its minute's count after it.
METRICS_TABLE: Final = Table(
    "queue_metrics",
    (
        ("queue", "TEXT"),
        ("type", "TEXT"),
        ("minute", "INTEGER"),
        ("count", "INTEGER"),
        ("prev_ts", "INTEGER"),
        ("prev_count", "INTEGER"),
    ),
    key=3,
    order=("queue", "type", "minute"),
)

#: Every further table; drivers create them all.
TABLES: Final[tuple[Table, ...]] = (
    CRON_TABLE,
    PROOF_TABLE,
    FLOW_FAILURE_TABLE,
    GROUP_TABLE,
    RATE_TABLE,
    WINDOW_TABLE,
    AGE_TABLE,
    LOG_TABLE,
    WEBHOOK_TABLE,
    METRICS_TABLE,
)
