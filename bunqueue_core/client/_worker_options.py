"""A worker's options, checked and completed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bunqueue_core.client._worker_limits import MAX_BATCH, group_defaults, positive
from bunqueue_core.model.requests import DEFAULT_LOCK_TTL_MS, GroupDefaults

#: Longest wait of a pull that a worker asks for, ms.
MAX_POLL_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """A worker's options, checked. See :class:`bunqueue_core.client.worker.Worker`."""

    batch_size: int
    poll_timeout_ms: int
    lock_ttl_ms: int
    heartbeat_interval_s: float
    use_locks: bool
    renew_locks: bool
    drain_delay_s: float
    ack_size: int | None
    ack_delay_s: float
    remove_on_complete: bool
    remove_on_fail: bool
    group: GroupDefaults | None

    @property
    def renewal_s(self) -> float:
        """Time between two renewals of a lease, seconds: three in its length at least."""
        return min(self.heartbeat_interval_s, self.lock_ttl_ms / 3000)

    @classmethod
    def checked(
        cls,
        *,
        batch_size: int | None = None,
        poll_timeout_ms: int = 5000,
        lock_ttl_ms: float | None = 30000,
        heartbeat_interval_s: float = 10.0,
        use_locks: bool = True,
        skip_lock_renewal: bool = False,
        drain_delay_ms: float = 50,
        ack_batch: Mapping[str, Any] | None = None,
        remove_on_complete: Any = None,
        remove_on_fail: Any = None,
        group: Mapping[str, Any] | None = None,
    ) -> WorkerOptions:
        """Check and complete the options.

        Raises:
            ValueError: one is out of its bounds.
        """
        if lock_ttl_ms is None:
            ttl = DEFAULT_LOCK_TTL_MS
        elif isinstance(lock_ttl_ms, bool) or not 1 <= lock_ttl_ms < math.inf:
            raise ValueError(f"lock_ttl_ms must be a finite number of at least 1, got {lock_ttl_ms!r}")
        else:
            ttl = int(lock_ttl_ms)
        size = MAX_BATCH if batch_size is None else batch_size
        acks = dict(ack_batch or {})
        enabled = acks.pop("enabled", True) if ack_batch else False
        ack_size = acks.pop("max_size", acks.pop("maxSize", 50))
        ack_delay = acks.pop("max_delay_ms", acks.pop("maxDelay", 5))
        if acks:
            raise ValueError(f"ack_batch has no option {next(iter(acks))!r} (known: enabled, max_size, max_delay_ms)")
        return cls(
            batch_size=min(max(int(size), 1), MAX_BATCH),
            poll_timeout_ms=min(max(int(poll_timeout_ms), 0), MAX_POLL_MS),
            lock_ttl_ms=ttl,
            heartbeat_interval_s=heartbeat_interval_s,
            use_locks=use_locks,
            renew_locks=not skip_lock_renewal and use_locks,
            drain_delay_s=max(0.0, drain_delay_ms / 1000),
            ack_size=positive("ack_batch.max_size", ack_size) if enabled else None,
            ack_delay_s=max(0.0, ack_delay / 1000) if enabled else 0.0,
            remove_on_complete=remove_on_complete is True,
            remove_on_fail=remove_on_fail is True,
            group=group_defaults(group),
        )
