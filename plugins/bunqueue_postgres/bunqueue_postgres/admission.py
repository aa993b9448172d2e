"""Pushes as columns: what the admitting statements take for each job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bunqueue_core.model.job import DEFAULT_OPTIONS, JobSpec
from bunqueue_postgres import arrays
from bunqueue_postgres.keys import escape, to_key
from bunqueue_postgres.records import CUSTOM, REMOVE, RETAINED, OptionsCodec, pack_extra


class Columns:
    """Jobs of one or several pushes, column by column, in the order of ``push.sql``'s parameters."""

    __slots__ = (
        "created_at",
        "data",
        "delay",
        "extra",
        "flags",
        "gated",
        "group_ids",
        "keys",
        "lifo",
        "names",
        "options",
        "parent_ids",
        "priorities",
        "queue_ids",
        "stall_timeouts",
        "timeouts",
        "ttls",
        "unique_keys",
    )

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.queue_ids: list[int] = []
        self.names: list[str | None] = []
        self.data: list[bytes | None] = []
        self.options: list[bytes | None] = []
        self.extra: list[bytes | None] = []
        self.priorities: list[int] = []
        self.created_at: list[int | None] = []
        self.delay: list[int] = []
        self.flags: list[int] = []
        self.lifo: list[bool] = []
        self.ttls: list[int | None] = []
        self.timeouts: list[int | None] = []
        self.stall_timeouts: list[int | None] = []
        self.unique_keys: list[str | None] = []
        self.parent_ids: list[str | None] = []
        self.group_ids: list[str | None] = []
        self.gated: list[bool] = []

    def add(
        self,
        spec: JobSpec,
        id: str,
        key: str,
        codec: OptionsCodec,
        *,
        flags: int = 0,
        gated: bool = False,
        delay: int | None = None,
    ) -> None:
        """Append a job; its queue's number is the caller's to set. ``delay`` (ms) takes the place of the job's own."""
        options = spec.options
        self.keys.append(key)
        self.names.append(None if spec.name == "default" else escape(spec.name))
        self.data.append(spec.data)
        self.priorities.append(spec.priority)
        self.created_at.append(spec.timestamp)
        self.delay.append(spec.delay if delay is None else delay)
        self.unique_keys.append(None if spec.unique_key is None else to_key(spec.unique_key))
        self.parent_ids.append(None if spec.parent_id is None else to_key(spec.parent_id))
        self.extra.append(pack_extra(spec, id, key))
        self.group_ids.append(spec.group_id)
        self.gated.append(gated)
        if spec.custom_id:
            flags |= CUSTOM
        if options is DEFAULT_OPTIONS:
            self.options.append(None)
            self.lifo.append(False)
            self.ttls.append(None)
            self.timeouts.append(None)
            self.stall_timeouts.append(None)
        else:
            self.options.append(codec.pack(options))
            self.lifo.append(options.lifo)
            self.ttls.append(options.ttl_ms)
            self.timeouts.append(options.timeout_ms or None)
            self.stall_timeouts.append(options.stall_timeout_ms)
            retention = options.remove_on_complete
            if retention.remove:
                flags |= REMOVE
            elif retention.age_ms is not None or retention.count is not None:
                flags |= RETAINED
        self.flags.append(flags)

    def take(self, other: Columns, position: int) -> None:
        """Append the job at ``position`` of ``other``."""
        for name in self.__slots__:
            getattr(self, name).append(getattr(other, name)[position])

    def extend(self, other: Columns) -> None:
        """Append all jobs of ``other``."""
        for name in self.__slots__:
            getattr(self, name).extend(getattr(other, name))

    def parameters(self, ns: Any) -> tuple[Any, ...]:
        """Parameters of ``push.sql`` and ``push_named.sql``."""
        return (
            ns,
            arrays.texts(self.keys),
            arrays.int4s(self.queue_ids),
            arrays.texts(self.names),
            arrays.blobs(self.data),
            arrays.blobs(self.options),
            arrays.blobs(self.extra),
            arrays.int4s(self.priorities),
            arrays.int8s(self.created_at),
            arrays.int8s(self.delay),
            arrays.int2s(self.flags),
            arrays.bools(self.lifo),
            arrays.int8s(self.ttls),
            arrays.int8s(self.timeouts),
            arrays.int8s(self.stall_timeouts),
            arrays.texts(self.unique_keys),
            arrays.texts(self.parent_ids),
            arrays.texts(self.group_ids),
            arrays.bools(self.gated),
        )


class Push:
    """One call of ``push``. One that needs decisions on what is there is ``special``; its columns are made when it is planned."""

    __slots__ = ("columns", "delayed_ms", "ids", "named", "queue", "ready", "special", "specs")

    def __init__(self, queue: str, specs: Sequence[JobSpec], codec: OptionsCodec, new_id: Callable[[], str]) -> None:
        self.queue = queue
        self.specs = specs
        self.columns = Columns()
        self.ids: list[str] = []
        self.named = False  #: some job has a custom id
        self.special = any(map(needs_decision, specs))
        self.ready = 0  #: jobs that may be claimable at once
        self.delayed_ms: int | None = None  #: the shortest delay of the others
        add = self.columns.add
        for spec in specs:
            custom_id = spec.custom_id
            if custom_id:
                self.named = True
                id = custom_id
                key = to_key(custom_id)
            else:
                id = key = new_id()
            self.ids.append(id)
            if not self.special:
                add(spec, id, key, codec)
            delay = spec.delay
            if spec.options.debounce_id is not None:
                delay = max(delay, spec.options.debounce_ttl_ms or 0)
            if delay <= 0 or spec.timestamp is not None:
                self.ready += 1
            elif self.delayed_ms is None or delay < self.delayed_ms:
                self.delayed_ms = delay

    @property
    def backdated(self) -> bool:
        """Whether a job may go ahead of jobs that have been there for long."""
        return any(spec.timestamp is not None for spec in self.specs)


def needs_decision(spec: JobSpec) -> bool:
    """Whether the admission of a job depends on other jobs than an earlier one of its own id."""
    return bool(
        spec.unique_key is not None
        or spec.depends_on
        or spec.parent_queue is not None
        or spec.group_max_size is not None
        or spec.options.repeat is not None
        or spec.options.debounce_id is not None
    )
