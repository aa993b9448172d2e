"""Limits of queues and groups, and the claims that have to look after them."""

from __future__ import annotations

import math
from typing import Any, Final

from psycopg.types.numeric import Float8, Int4, Int8

from bunqueue_core.answer import Answer
from bunqueue_core.model.options import SAFE_INTEGER
from bunqueue_core.model.requests import GroupDefaults, QueueLimits
from bunqueue_postgres import arrays
from bunqueue_postgres.database import Connection
from bunqueue_postgres.verbs.produce import Producing

#: Bits of a queue's ``features``: some job of it expires; some belongs to a group.
FEATURE_EXPIRING: Final = 1
FEATURE_GROUPS: Final = 2

#: Period of a rate limit that names none, ms.
DEFAULT_RATE_DURATION_MS: Final = 1_000


#: Token, owner and lease duration (ms) of the delivery that a slot may get; no token and owner for a pull without an owner.
Slot = tuple[str | None, str | None, int]


class CarefulPull:
    """What a careful claim needs of a pull: its slots, its group defaults, and whether ungrouped jobs are for it too."""

    __slots__ = ("group", "slots", "ungrouped")

    def __init__(self, slots: list[Slot], group: GroupDefaults | None, ungrouped: bool) -> None:
        self.slots = slots
        self.group = group
        self.ungrouped = ungrouped


class Bucket:
    """A queue's token bucket: ``limit`` tokens at most, refilled evenly over ``duration_ms``. One delivery takes one token."""

    __slots__ = ("at", "duration_ms", "expires_at", "limit", "tokens")

    def __init__(
        self,
        limit: float,
        duration_ms: int | None,
        expires_at: int | None,
        tokens: float | None,
        at: int | None,
        now: int,
    ) -> None:
        self.limit = limit
        self.duration_ms = duration_ms or DEFAULT_RATE_DURATION_MS
        self.expires_at = expires_at
        self.tokens = limit if tokens is None else tokens
        self.at = now if at is None else at
        if now > self.at:
            self.tokens = min(limit, self.tokens + (now - self.at) * limit / self.duration_ms)
            self.at = now

    def expired(self, now: int) -> bool:
        return self.expires_at is not None and now >= self.expires_at

    def wait_ms(self, max_jobs: int | None = None) -> int:
        """ms until a token is there: 0 if one is, or if fewer than ``max_jobs`` were used."""
        if max_jobs is not None and self.limit - self.tokens < max_jobs:
            return 0
        if self.tokens >= 1 or self.limit <= 0:
            return 0
        wait = (1 - self.tokens) * self.duration_ms / self.limit
        return math.ceil(wait) if wait < SAFE_INTEGER else SAFE_INTEGER

    def retry_ms(self, now: int) -> int | None:
        """ms until the next token; None if there is never one."""
        if self.limit < 1:
            return None if self.expires_at is None else self.expires_at - now
        return self.wait_ms()


class Lane:
    """A group that may be served: its policy, its window, and what this claim takes of it."""

    __slots__ = (
        "active",
        "blocked_until",
        "concurrency",
        "id",
        "paused",
        "placed",
        "rate",
        "taken",
        "window",
        "window_count",
    )

    def __init__(self, row: tuple[Any, ...]) -> None:
        self.id: str = row[0]
        self.paused: bool = row[1]
        self.concurrency: int | None = row[2]
        self.rate: tuple[int, int] | None = None if row[3] is None or row[4] is None else (row[3], row[4])
        self.blocked_until: int = row[5] or 0
        self.window: tuple[int, int, int] | None = None if row[6] is None else (row[6], row[7], row[8])
        self.window_count: int = row[9] or 0
        self.placed: bool = row[10] is not None
        self.active: int = row[11]
        self.taken = 0

    def room(self, now: int, defaults: GroupDefaults | None) -> tuple[float, int | None]:
        """How many jobs may be delivered now, and if none, when that changes by itself (epoch ms; None: not by time)."""
        if self.paused:
            return 0, None
        if self.blocked_until > now:
            return 0, self.blocked_until
        room = math.inf
        if defaults is not None and defaults.concurrency is not None:
            room = (self.concurrency if self.concurrency is not None else defaults.concurrency) - self.active
            if room <= 0:
                return 0, None
        limit = self.limit(defaults)
        if limit is None:
            return room, None
        used = self.window_count if self._open(now) == limit else 0
        if used >= limit[0]:
            assert self.window is not None
            return 0, self.window[0] + self.window[2]
        return min(room, limit[0] - used), None

    def _open(self, now: int) -> tuple[int, int] | None:
        """(max, duration) of the window that is open now."""
        window = self.window
        return None if window is None or now >= window[0] + window[2] else (window[1], window[2])

    def limit(self, defaults: GroupDefaults | None) -> tuple[int, int] | None:
        """(max, duration) in force for a pull with ``defaults``; overrides count only where the worker gives a default."""
        if defaults is None or defaults.limit_max is None or defaults.limit_duration_ms is None:
            return None
        return self.rate if self.rate is not None else (defaults.limit_max, defaults.limit_duration_ms)

    def serve(self, now: int, defaults: GroupDefaults | None, count: int) -> None:
        """Account for deliveries."""
        self.active += count
        self.taken += count
        self.placed = True
        limit = self.limit(defaults)
        if limit is not None:
            if self._open(now) != limit:
                self.window, self.window_count = (now, *limit), 0
            self.window_count += count


class Limiting(Producing):
    """Careful claims, and the verbs of limits and groups."""

    async def claim_carefully(
        self, queue_id: int, pulls: list[CarefulPull]
    ) -> tuple[list[list[tuple[Any, ...]]], int | None, bool, bool, str | None]:
        """Claim with the queue's row locked, for each pull in turn.

        Returns:
            The rows (as of ``claim.sql``) of each pull, numbered by its slots; in how many ms a look is worth while again
            (None: not by time); whether the queue has a limit; whether it has a limit or groups; the notice that a limit left a
            pull without (None: none did).
        """

        async def body(
            connection: Connection,
        ) -> tuple[list[list[tuple[Any, ...]]], int | None, bool, bool, str | None]:
            cursor = connection.cursor(binary=True)
            await cursor.execute(self.queries.hold_queue, (Int4(queue_id),))
            held = await cursor.fetchone()
            if held is None or held[1]:
                return [[] for _ in pulls], None, False, False, None
            now, _, features, limit, duration, expires_at, tokens, at, concurrency = held
            capacity = math.inf
            if concurrency is not None:
                await cursor.execute(self.queries.active, (Int4(queue_id),))
                active = await cursor.fetchone()
                assert active is not None
                capacity = math.ceil(concurrency) - active[0]
            bucket = None if limit is None else Bucket(limit, duration, expires_at, tokens, at, now)
            if bucket is not None and bucket.expired(now):
                await cursor.execute(self.queries.spend_rate, (Int4(queue_id), None, None))
                bucket = None
            retry_ms: int | None = None
            refused: str | None = None
            claim = _Claim(self, cursor, queue_id, now)
            dealt: list[list[tuple[Any, ...]]] = []
            for pull in pulls:
                room = min(len(pull.slots), capacity, math.inf if bucket is None else math.floor(bucket.tokens))
                rows: list[tuple[Any, ...]] = []
                if room >= 1:
                    rows = await claim.rows(pull, int(room), bool(features & FEATURE_GROUPS))
                elif bucket is not None and bucket.tokens < 1:
                    retry_ms = bucket.retry_ms(now)
                if room < 1:
                    refused = "concurrency:rejected" if capacity < 1 else "ratelimit:rejected"
                capacity -= len(rows)
                if bucket is not None:
                    bucket.tokens -= len(rows)
                dealt.append(rows)
            if bucket is not None:
                await cursor.execute(self.queries.spend_rate, (Int4(queue_id), Float8(bucket.tokens), Int8(bucket.at)))
            if claim.retry_at is not None and (retry_ms is None or claim.retry_at - now < retry_ms):
                retry_ms = max(1, claim.retry_at - now)
            limited = bucket is not None or concurrency is not None
            return dealt, retry_ms, limited, limited or bool(features & FEATURE_GROUPS), refused

        return await self.commit(body)

    # -- limits of queues ---------------------------------------------------------------------------------------------

    def set_rate_limit(
        self, queue: str, limit: float, duration_ms: int | None = None, ttl_ms: int | None = None
    ) -> Answer[None]:
        return self.command(self._set_limits, queue, True, limit, duration_ms, ttl_ms)

    def clear_rate_limit(self, queue: str) -> Answer[None]:
        return self.command(self._set_limits, queue, True, None, None, None)

    def set_concurrency(self, queue: str, limit: float) -> Answer[None]:
        return self.command(self._set_limits, queue, False, limit, None, None)

    def clear_concurrency(self, queue: str) -> Answer[None]:
        return self.command(self._set_limits, queue, False, None, None, None)

    async def _set_limits(
        self, queue: str, rate: bool, limit: float | None, duration_ms: int | None, ttl_ms: int | None
    ) -> None:
        await self.run(
            self.queries.set_limits,
            (
                Int4(self.ns),
                queue,
                rate,
                None if limit is None else Float8(limit),
                Int8(duration_ms or DEFAULT_RATE_DURATION_MS) if rate and limit is not None else None,
                Int8(ttl_ms) if ttl_ms else None,
            ),
        )
        self.wake(queue, 1_000_000)
        self.coordinator.announce()

    def queue_limits(self, queue: str, max_jobs: int | None = None) -> Answer[QueueLimits]:
        return self.command(self._queue_limits, queue, max_jobs)

    async def _queue_limits(self, queue: str, max_jobs: int | None) -> QueueLimits:
        rows = await self.run(self.queries.limits, (Int4(self.ns), queue))
        if not rows:
            return QueueLimits()
        now, limit, duration, expires_at, tokens, at, concurrency, active = rows[0]
        bucket = None if limit is None else Bucket(limit, duration, expires_at, tokens, at, now)
        if bucket is not None and bucket.expired(now):
            bucket = None
        ttl = -2
        if bucket is not None:
            ttl = bucket.wait_ms(max_jobs) if bucket.expires_at is None else max(0, bucket.expires_at - now)
        return QueueLimits(
            rate_max=None if bucket is None else _number(bucket.limit),
            rate_duration_ms=None if bucket is None else bucket.duration_ms,
            rate_ttl_ms=ttl,
            concurrency=None if concurrency is None else _number(concurrency),
            maxed=concurrency is not None and active >= concurrency,
        )

    # -- groups -------------------------------------------------------------------------------------------------------

    def group_jobs_count(self, queue: str, group_id: str | None) -> Answer[int]:
        if group_id is None:
            return self.read_queue(self.queries.grouped, queue).map(lambda rows: rows[0][0] if rows else 0)
        return self.command(self._group, queue, group_id).map(lambda row: 0 if row is None else row[9])

    def group_active_count(self, queue: str, group_id: str) -> Answer[int]:
        return self.command(self._group, queue, group_id).map(lambda row: 0 if row is None else row[10])

    async def _group(self, queue: str, group_id: str) -> tuple[Any, ...] | None:
        rows = await self.run(self.queries.group, (Int4(self.ns), queue, group_id))
        return rows[0] if rows else None

    async def _set_group(self, queue: str, group_id: str, what: str, one: int | None, two: int | None) -> bool:
        rows = await self.run(
            self.queries.set_group,
            (
                Int4(self.ns),
                queue,
                group_id,
                what,
                None if one is None else Int8(one),
                None if two is None else Int8(two),
            ),
        )
        self.wake(queue, 1_000_000)
        self.coordinator.announce()
        return bool(rows[0][0])

    def set_group_rate_limit(self, queue: str, group_id: str, maximum: int, duration_ms: int) -> Answer[None]:
        return self.command(self._set_group, queue, group_id, "rate", maximum, duration_ms).map(_nothing)

    def group_rate_limit(self, queue: str, group_id: str) -> Answer[tuple[int, int] | None]:
        return self.command(self._group, queue, group_id).map(
            lambda row: None if row is None or row[3] is None else (row[3], row[4])
        )

    def remove_group_rate_limit(self, queue: str, group_id: str) -> Answer[bool]:
        return self.command(self._set_group, queue, group_id, "rate", None, None)

    def group_rate_limit_ttl(self, queue: str, group_id: str, max_jobs: int | None = None) -> Answer[int]:
        def ttl(row: tuple[Any, ...] | None) -> int:
            if row is None:
                return -2
            now, blocked_until, window_at, duration, count = row[0], row[5], row[6], row[7], row[8]
            if blocked_until is not None and blocked_until > now:
                return int(blocked_until - now)
            if window_at is None or now >= window_at + duration:
                return -2
            return 0 if max_jobs is not None and count < max_jobs else int(window_at + duration - now)

        return self.command(self._group, queue, group_id).map(ttl)

    def set_group_concurrency(self, queue: str, group_id: str, concurrency: int) -> Answer[None]:
        return self.command(self._set_group, queue, group_id, "concurrency", concurrency, None).map(_nothing)

    def group_concurrency(self, queue: str, group_id: str) -> Answer[int | None]:
        return self.command(self._group, queue, group_id).map(lambda row: None if row is None else row[2])

    def remove_group_concurrency(self, queue: str, group_id: str) -> Answer[bool]:
        return self.command(self._set_group, queue, group_id, "concurrency", None, None)

    def pause_group(self, queue: str, group_id: str) -> Answer[bool]:
        return self.command(self._set_group, queue, group_id, "pause", 1, None)

    def resume_group(self, queue: str, group_id: str) -> Answer[bool]:
        return self.command(self._set_group, queue, group_id, "pause", None, None)

    def is_group_paused(self, queue: str, group_id: str) -> Answer[bool]:
        return self.command(self._group, queue, group_id).map(lambda row: row is not None and bool(row[1]))

    def rate_limit_group(self, queue: str, group_id: str, duration_ms: int) -> Answer[None]:
        return self.command(self._set_group, queue, group_id, "block", duration_ms, None).map(_nothing)


class _Claim:
    """The statements of one careful claim, in its transaction."""

    def __init__(self, broker: Limiting, cursor: Any, queue_id: int, now: int) -> None:
        self._broker = broker
        self._cursor = cursor
        self._queue_id = queue_id
        self._now = now
        self.retry_at: int | None = None  #: when a group that was passed by may be served (epoch ms)

    async def rows(self, pull: CarefulPull, room: int, grouped: bool) -> list[tuple[Any, ...]]:
        """Claim up to ``room`` jobs for one pull: ungrouped ones first, then groups in rotation, as its affinity allows."""
        slots = pull.slots[:room]
        group = pull.group
        affine = group is not None and group.affine
        affinity = group.affinity if group is not None and affine else None
        rows: list[tuple[Any, ...]] = []
        if pull.ungrouped and affinity is None:
            rows = await self.ungrouped(slots)
        if grouped and len(rows) < len(slots) and (not affine or affinity is not None):
            rows += await self.grouped(slots[len(rows) :], group, len(rows))
        return rows

    async def ungrouped(self, slots: list[Slot]) -> list[tuple[Any, ...]]:
        broker = self._broker
        await self._cursor.execute(
            broker.queries.claim,
            (
                Int4(broker.ns),
                Int4(self._queue_id),
                broker.broker_id,
                broker.coordinator.session,
                *(arrays.int4s([]), arrays.int8s([]), arrays.texts([])),
                Int4(len(slots)),
                *_slot_arrays(slots),
                True,
            ),
        )
        return [row for row in await self._cursor.fetchall() if row[4] is not None]

    async def grouped(self, slots: list[Slot], defaults: GroupDefaults | None, before: int) -> list[tuple[Any, ...]]:
        """Serve groups in rotation, one job each a round."""
        broker = self._broker
        only = defaults.affinity if defaults is not None and defaults.affine else None
        await self._cursor.execute(broker.queries.lanes, (Int4(self._queue_id), only))
        lanes = [Lane(row) for row in await self._cursor.fetchall()]
        chosen: list[Lane] = []
        rooms: list[float] = []
        for lane in lanes:
            room, at = lane.room(self._now, defaults)
            if room >= 1:
                chosen.append(lane)
                rooms.append(room)
            elif at is not None and (self.retry_at is None or at < self.retry_at):
                self.retry_at = at
        if not chosen:
            return []
        # With a job of each that is enough, since every lane has one; with fewer lanes than slots, some lane may have fewer jobs
        # than rounds, so each is asked for as much as it could get if the others had none.
        count = len(slots)
        if len(chosen) >= count:
            chosen, rooms = chosen[:count], [1.0] * count
        await self._cursor.execute(
            broker.queries.claim_groups,
            (
                Int4(broker.ns),
                Int4(self._queue_id),
                broker.broker_id,
                broker.coordinator.session,
                arrays.texts([lane.id for lane in chosen]),
                arrays.int4s([int(min(room, count)) for room in rooms]),
                *_slot_arrays(slots),
                True,
            ),
        )
        rows = [row for row in await self._cursor.fetchall() if row[4] is not None]
        by_id = {lane.id: lane for lane in chosen}
        served: dict[str, None] = {}
        for row in rows:
            group_id = row[23]
            by_id[group_id].serve(self._now, defaults, 1)
            served.pop(group_id, None)
            served[group_id] = None
        # Groups without a position get one now, before those that were served go to the end of the rotation.
        unplaced = [lane for lane in lanes if not lane.placed and lane.id not in served]
        moved = [*unplaced, *(by_id[id] for id in served)]
        if moved:
            windows = [lane.window or (None, None, None) for lane in moved]
            await self._cursor.execute(
                broker.queries.serve_groups,
                (
                    Int4(self._queue_id),
                    arrays.texts([lane.id for lane in moved]),
                    arrays.int8s([window[0] for window in windows]),
                    arrays.int8s([window[1] for window in windows]),
                    arrays.int8s([window[2] for window in windows]),
                    arrays.int8s([lane.window_count for lane in moved]),
                ),
            )
        return [(*row[:4], row[4] + before, *row[5:]) for row in rows]


def _slot_arrays(slots: list[Slot]) -> tuple[Any, ...]:
    return (
        arrays.texts([token for token, _, _ in slots]),
        arrays.texts([owner for _, owner, _ in slots]),
        arrays.int8s([duration for _, _, duration in slots]),
    )


def _number(value: float) -> float:
    return int(value) if value.is_integer() else value


def _nothing(_: object) -> None:
    return None
