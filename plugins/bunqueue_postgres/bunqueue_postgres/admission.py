"""Pushes as columns: what the admitting statements take for each job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bunqueue_core.model.errors import CapabilityError
from bunqueue_core.model.job import DEFAULT_OPTIONS, JobSpec
from bunqueue_postgres import arrays
from bunqueue_postgres.keys import escape, to_key
from bunqueue_postgres.records import CUSTOM, REMOVE, OptionsCodec, pack_extra


class Columns:
    """Jobs of one or several pushes, column by column, in the order of ``push.sql``'s parameters."""

    __slots__ = (
        "created_at",
        "data",
        "delay",
        "extra",
        "flags",
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

    def add(self, spec: JobSpec, id: str, key: str, codec: OptionsCodec) -> None:
        """Append a job; its queue's number is the caller's to set."""
        options = spec.options
        self.keys.append(key)
        self.names.append(None if spec.name == "default" else escape(spec.name))
        self.data.append(spec.data)
        self.priorities.append(spec.priority)
        self.created_at.append(spec.timestamp)
        self.delay.append(spec.delay)
        self.unique_keys.append(None if spec.unique_key is None else to_key(spec.unique_key))
        self.parent_ids.append(None if spec.parent_id is None else to_key(spec.parent_id))
        self.extra.append(pack_extra(spec, id, key))
        flags = CUSTOM if spec.custom_id else 0
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
            if options.remove_on_complete.remove:
                flags |= REMOVE
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
        )


class Push:
    """One call of ``push``: its columns, ids and what happened to each."""

    __slots__ = ("columns", "delayed_ms", "ids", "named", "queue", "ready")

    def __init__(self, queue: str, specs: Sequence[JobSpec], codec: OptionsCodec, new_id: Callable[[], str]) -> None:
        self.queue = queue
        self.columns = Columns()
        self.ids: list[str] = []
        self.named = False  #: some job has a custom id
        self.ready = 0  #: jobs that may be claimable at once
        self.delayed_ms: int | None = None  #: the shortest delay of the others
        add = self.columns.add
        for spec in specs:
            refuse_unoffered(spec)
            custom_id = spec.custom_id
            if custom_id:
                self.named = True
                add(spec, custom_id, to_key(custom_id), codec)
                self.ids.append(custom_id)
            else:
                id = new_id()
                add(spec, id, id, codec)
                self.ids.append(id)
            if spec.delay <= 0 or spec.timestamp is not None:
                self.ready += 1
            elif self.delayed_ms is None or spec.delay < self.delayed_ms:
                self.delayed_ms = spec.delay

    @property
    def backdated(self) -> bool:
        """Whether a job may go ahead of jobs that have been there for long."""
        return any(created_at is not None for created_at in self.columns.created_at)


def refuse_unoffered(spec: JobSpec) -> None:
    """Refuse input that this driver does not serve.

    Raises:
        CapabilityError: naming the option.
    """
    if spec.group_id is not None:
        raise CapabilityError("group", "postgres")
    if spec.depends_on:
        raise CapabilityError("dependsOn", "postgres")
    if spec.parent_queue is not None:
        raise CapabilityError("parent", "postgres")
    if spec.unique_key is not None:
        raise CapabilityError("uniqueKey", "postgres")
    if spec.options.repeat is not None:
        raise CapabilityError("repeat", "postgres")
