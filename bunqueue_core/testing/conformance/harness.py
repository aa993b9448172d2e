"""What every case stands on: a broker, its clock, and one way to call verbs, whether answers are awaited or waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, NoReturn, Protocol

import pytest

from bunqueue_core.answer import Answer
from bunqueue_core.broker.protocol import Broker, Capabilities
from bunqueue_core.model.errors import CommandError
from bunqueue_core.model.job import DEFAULT_OPTIONS, JobOptions, JobSpec, JobState
from bunqueue_core.model.payload import Packer, decode
from bunqueue_core.model.requests import (
    Ack,
    Acknowledged,
    Counts,
    Delivery,
    DlqEntry,
    Failure,
    JobView,
    Outcome,
    PullRequest,
    Pushed,
    Renewal,
)
from bunqueue_core.testing.clock import SettableClock

#: Verbs that only brokers with a capability offer; all others every broker offers.
CAPABILITY_OF: Final[dict[str, str]] = {
    **dict.fromkeys(
        (
            "pause",
            "resume",
            "is_paused",
            "count",
            "drain_queue",
            "clean",
            "obliterate",
            "cancel",
            "discard",
            "promote",
            "promote_jobs",
            "change_delay",
            "move_to_wait",
            "move_to_waiting_children",
            "change_priority",
            "update_data",
            "retry_completed",
            "key_owner",
            "remove_key",
            "remove_job_key",
        ),
        "control",
    ),
    **dict.fromkeys(
        (
            "dead_letters",
            "retry_dead_letters",
            "remove_dead_letter",
            "purge_dead_letters",
            "dlq_stats",
            "dlq_config",
            "set_dlq_config",
            "stall_config",
            "set_stall_config",
        ),
        "dead_letters",
    ),
    "subscribe": "events",
}

#: Seconds that the kit waits for an answer before the case fails.
PATIENCE_S: Final = 20.0

#: Seconds that the kit waits for what a broker on a clock of its own does by itself (expired leases, retries).
REAL_PATIENCE_S: Final = 15.0

#: How brokers are used: from an event loop that awaits answers, or from a thread that waits for them.
WorldName = Literal["asyncio", "thread"]


@dataclass(frozen=True, slots=True)
class BrokerSetup:
    """What a driver's author tells the kit: how to make a broker, and what a test can do to its time and its storage.

    Attributes:
        open: makes a broker on this test's own storage, not started. Called again after the first was closed it must find what
            that one left (persistent drivers); called while one is open, it must join it (multi-broker drivers).
        clock: the clock that brokers made by ``open`` read. None: they live on a clock of their own, and the kit waits for real.
        run_due: does what is due on ``clock``, and commits what waits for it; needed with a clock.
        crash: given a running broker, makes one (not started) on the storage as it would be found had the process of the first
            died at this moment. None: crashes are not offered, and those cases are skipped.
        unit_ms: length of :attr:`Harness.unit`; None chooses 10 s on a settable clock and 400 ms on a real one.
        missing: verbs that every broker should offer and this driver does not yet. They must answer ``CapabilityError``.
        missing_rules: numbers of rules that this driver does not keep yet. Their cases are skipped, and reported as not offered.
    """

    open: Callable[[], Broker]
    clock: SettableClock | None = None
    run_due: Callable[[Broker], object] = lambda _: None
    crash: Callable[[Broker], Broker] | None = None
    unit_ms: int | None = None
    missing: frozenset[str] = frozenset()
    missing_rules: frozenset[str] = frozenset()


class World(Protocol):
    """A way to call verbs and to wait for answers."""

    def call(self, function: Callable[[], Any]) -> Any:
        """Call ``function`` where verbs may be called, and return what it returns, waiting for nothing."""

    def wait(self, answer: Answer[Any], timeout_s: float) -> None:
        """Wait until ``answer`` is ready, at most ``timeout_s`` seconds."""

    def pass_time(self, seconds: float) -> None:
        """Let ``seconds`` go by for real, while the broker's own work goes on."""

    def close(self) -> None:
        """End it, after the brokers were closed."""


class AsyncioWorld:
    """Verbs are called on an event loop and answers are awaited."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._awaited: dict[int, tuple[Answer[Any], asyncio.Task[None]]] = {}  #: by identity of the answer

    def call(self, function: Callable[[], Any]) -> Any:
        async def inside() -> Any:
            return function()

        return self._loop.run_until_complete(inside())

    def wait(self, answer: Answer[Any], timeout_s: float) -> None:
        async def settled() -> None:
            try:
                await answer
            except Exception:
                return

        async def inside() -> None:
            if id(answer) not in self._awaited:
                self._awaited[id(answer)] = (answer, asyncio.ensure_future(settled()))
            task = self._awaited[id(answer)][1]
            # Not ``wait_for``: that would cancel the task when time is up, and a cancelled pull gives its jobs back.
            await asyncio.wait([task], timeout=timeout_s)
            if task.done():
                del self._awaited[id(answer)]

        self._loop.run_until_complete(inside())

    def pass_time(self, seconds: float) -> None:
        self._loop.run_until_complete(asyncio.sleep(seconds))

    def close(self) -> None:
        async def inside() -> None:
            tasks = [task for _, task in self._awaited.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._loop.shutdown_default_executor()

        try:
            self._loop.run_until_complete(inside())
        finally:
            self._loop.close()


class ThreadWorld:
    """Verbs are called in the test's own thread, which waits for answers."""

    def call(self, function: Callable[[], Any]) -> Any:
        return function()

    def wait(self, answer: Answer[Any], timeout_s: float) -> None:
        try:
            answer.result(timeout_s)
        except Exception:
            return

    def pass_time(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        return


WORLDS: Final[dict[WorldName, Callable[[], World]]] = {"asyncio": AsyncioWorld, "thread": ThreadWorld}

_OPTION_NAMES: Final = frozenset(field.name for field in fields(JobOptions))


def pack(value: Any) -> bytes:
    """Encode a payload."""
    return Packer().pack(value)


def job(data: Any = None, *, name: str = "n", **settings: Any) -> JobSpec:
    """Make a job's input; ``settings`` are attributes of :class:`JobOptions` and arguments of :class:`JobSpec`, by name."""
    chosen = {key: settings.pop(key) for key in list(settings) if key in _OPTION_NAMES}
    options = JobOptions(**chosen) if chosen else DEFAULT_OPTIONS
    return JobSpec(name, pack(data), options, **settings)


def unpack(payload: bytes | None) -> Any:
    """Decode a payload; None stays None."""
    return None if payload is None else decode(payload)


class Harness:
    """A broker under test. Verbs that it does not offer skip the case; see the module's head.

    Attributes:
        broker: the broker that verbs go to; :meth:`reopen` and :meth:`crash` replace it.
        unit: a duration in ms that is long compared with what a case does, and short to wait for on a real clock.
    """

    def __init__(self, setup: BrokerSetup, world: World) -> None:
        self.setup = setup
        self.world = world
        self.unit = setup.unit_ms or (10_000 if setup.clock is not None else 400)
        self._opened: list[Broker] = []
        self._dead: list[Broker] = []
        try:
            self.broker = self.start(setup.open())
        except BaseException:
            world.close()
            raise

    # -- life cycle ---------------------------------------------------------------------------------------------------

    def start(self, broker: Broker) -> Broker:
        """Start ``broker`` and close it when the case ends."""
        self._opened.append(broker)
        self.value(self.world.call(broker.start))
        return broker

    def another(self) -> Broker:
        """Start a second broker on the same storage, beside the first."""
        self.require("multi_broker")
        return self.start(self.setup.open())

    def stop(self, broker: Broker) -> None:
        """Close ``broker`` in an orderly way."""
        self.value(self.world.call(broker.close))

    def reopen(self) -> None:
        """Stop the broker in an orderly way and start another on what it left."""
        self.require("persistent")
        self.stop(self.broker)
        self.broker = self.start(self.setup.open())

    def crash(self) -> None:
        """Go on with a broker on what would be found had the process of this one died now."""
        self.require("persistent")
        if self.setup.crash is None:
            self.not_offered("crash")
        crash, dead = self.setup.crash, self.broker
        self.broker = self.start(self.world.call(lambda: crash(dead)))
        self._dead.append(dead)

    def close(self) -> None:
        """Close every broker and the world."""
        try:
            for broker in reversed(self._opened):
                self.value(self.world.call(broker.close))
        finally:
            self.world.close()

    # -- what is offered ----------------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        return self.broker.capabilities

    def offers(self, verb: str) -> bool:
        """Whether the broker announces ``verb``."""
        capability = CAPABILITY_OF.get(verb)
        return verb not in self.setup.missing and (capability is None or getattr(self.capabilities, capability))

    def require(self, *capabilities: str) -> None:
        """Skip the case unless the broker has ``capabilities`` (``clock``: the kit can set its time)."""
        for name in capabilities:
            if not (self.setup.clock is not None if name == "clock" else getattr(self.capabilities, name)):
                self.not_offered(name)

    def not_offered(self, what: str) -> NoReturn:
        """End the case: the driver does not offer ``what``."""
        pytest.skip(f"not offered: {what}")

    # -- verbs --------------------------------------------------------------------------------------------------------

    def begin(self, verb: str, *arguments: Any, broker: Broker | None = None) -> Answer[Any]:
        """Call ``verb`` and return its answer without waiting for it."""
        if not self.offers(verb):
            self.not_offered(verb)
        method = getattr(broker or self.broker, verb)
        answer: Answer[Any] = self.world.call(lambda: method(*arguments))
        return answer

    def call(self, verb: str, *arguments: Any, broker: Broker | None = None) -> Any:
        """Call ``verb``, wait, and return its value or raise its error."""
        return self.value(self.begin(verb, *arguments, broker=broker))

    def value(self, answer: Answer[Any], timeout_s: float = PATIENCE_S) -> Any:
        """Wait for ``answer`` and return its value or raise its error."""
        if not answer.ready and self.setup.clock is not None:
            self.run_due()
        if not answer.ready:
            self.world.wait(answer, timeout_s)
            assert answer.ready, f"no answer within {timeout_s:g} s"
        return answer.value

    def is_waiting(self, answer: Answer[Any]) -> bool:
        """Whether ``answer`` is still not ready once the broker had the time to do what it could."""
        if self.setup.clock is not None:
            self.run_due()
        self.world.wait(answer, 0.02)
        return not answer.ready

    def push(self, queue: str, *specs: JobSpec, broker: Broker | None = None) -> list[str]:
        """Push jobs; their ids."""
        pushed: Pushed = self.call("push", queue, specs, broker=broker)
        return pushed.ids

    def push_one(self, queue: str = "q", data: Any = None, **settings: Any) -> str:
        """Push one job; its id."""
        return self.push(queue, job(data, **settings))[0]

    def pull(
        self,
        queue: str = "q",
        count: int = 1,
        owner: str | None = "w",
        *,
        broker: Broker | None = None,
        **settings: Any,
    ) -> list[Delivery]:
        """Pull; the deliveries."""
        deliveries: list[Delivery] = self.call("pull", PullRequest(queue, count, owner, **settings), broker=broker)
        return deliveries

    def park(
        self,
        queue: str = "q",
        count: int = 1,
        owner: str | None = "w",
        *,
        broker: Broker | None = None,
        **settings: Any,
    ) -> Answer[list[Delivery]]:
        """Begin a pull that finds nothing and waits, ``wait_ms`` long (100 units unless given)."""
        settings.setdefault("wait_ms", 100 * self.unit)
        answer = self.begin("pull", PullRequest(queue, count, owner, **settings), broker=broker)
        assert self.is_waiting(answer)
        return answer

    def take(self, queue: str = "q", owner: str | None = "w", **settings: Any) -> Delivery:
        """Pull the one job that must be there, waiting for it if it is not due yet."""
        found: list[Delivery] = []

        def claimed() -> bool:
            found.extend(self.pull(queue, 1, owner, **settings))
            return bool(found)

        self.until(claimed, f"a job to pull from {queue}")
        assert len(found) == 1
        return found[0]

    def taken(self, queue: str = "q", data: Any = None, **settings: Any) -> Delivery:
        """Push a job and pull it with an owner."""
        self.push_one(queue, data, **settings)
        return self.take(queue)

    def ack(self, *acks: Ack, broker: Broker | None = None) -> list[Outcome]:
        """Acknowledge; the outcomes. Raises the first error of a position."""
        done: Acknowledged = self.call("ack", acks, broker=broker)
        done.raise_first()
        return done.outcomes

    def complete(self, delivery: Delivery, result: Any = None, **settings: Any) -> None:
        """Acknowledge a delivery with a result."""
        assert self.ack(Ack(delivery.job.id, delivery.token, pack(result), **settings)) == ["applied"]

    def fail(self, *failures: Failure, broker: Broker | None = None) -> list[Outcome]:
        """Record failures; the outcomes. Raises the first error of a position."""
        done: Acknowledged = self.call("fail", failures, broker=broker)
        done.raise_first()
        return done.outcomes

    def lose(self, delivery: Delivery, error: str | None = "boom", **settings: Any) -> None:
        """Record a failed attempt of a delivery."""
        assert self.fail(Failure(delivery.job.id, error, delivery.token, **settings)) == ["applied"]

    def extend(self, id: str, token: str | None = None, duration_ms: int | None = None) -> bool:
        """Renew one lease."""
        renewed: list[bool] = self.call("extend", [Renewal(id, token, duration_ms)])
        return renewed[0]

    def states(self, *ids: str) -> list[JobState]:
        """States of jobs."""
        states: list[JobState] = self.call("states", ids)
        return states

    def state(self, id: str) -> JobState:
        """State of one job."""
        return self.states(id)[0]

    def job(self, id: str) -> JobView:
        """View of a job that must be known."""
        view: JobView | None = self.call("job", id)
        assert view is not None, f"job {id} is not known"
        return view

    def results(self, *ids: str) -> list[bytes | None]:
        """Encoded results of jobs."""
        results: list[bytes | None] = self.call("results", ids)
        return results

    def counts(self, queue: str = "q") -> dict[str, int]:
        """Counts of a queue, those that are not zero."""
        counts: Counts = self.call("counts", queue)
        return {field.name: getattr(counts, field.name) for field in fields(counts) if getattr(counts, field.name)}

    def dead_letters(self, queue: str = "q") -> list[DlqEntry]:
        """All dead letters of a queue."""
        entries: list[DlqEntry] = self.call("dead_letters", queue, None, None)
        return entries

    def drain_order(self, queue: str = "q") -> list[Any]:
        """Data of every job that can be pulled now, in order of delivery."""
        return [unpack(delivery.job.data) for delivery in self.pull(queue, 1000, None)]

    def refused(
        self, verb: str, *arguments: Any, error: type[CommandError] = CommandError, text: str | None = None
    ) -> None:
        """Call ``verb``, which must be refused with ``error`` and, where given, exactly ``text``."""
        with pytest.raises(error) as caught:
            self.call(verb, *arguments)
        if text is not None:
            assert str(caught.value) == text

    # -- time ---------------------------------------------------------------------------------------------------------

    def elapse(self, ms: float) -> None:
        """Let ``ms`` pass and whatever became due happen."""
        if self.setup.clock is None:
            self.world.pass_time(ms / 1000)
            return
        self.setup.clock.advance(round(ms))
        self.run_due()

    def run_due(self) -> None:
        """Fire what is due on the settable clock."""
        for broker in self._opened:
            if broker in self._dead:
                continue
            self.world.call(lambda broker=broker: self.setup.run_due(broker))  # type: ignore[misc]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Let time pass until ``condition`` holds: at most an hour on a settable clock, :data:`REAL_PATIENCE_S` on a real one."""
        if self.setup.clock is not None:
            for _ in range(360):
                if condition():
                    return
                self.elapse(10_000)
        else:
            deadline = time.monotonic() + REAL_PATIENCE_S
            while time.monotonic() < deadline:
                if condition():
                    return
                self.world.pass_time(0.025)
        assert condition(), f"it did not come to {what}"

    def until_state(self, id: str, *states: JobState) -> None:
        """Let time pass until job ``id`` is in one of ``states``."""
        self.until(lambda: self.state(id) in states, f"{' or '.join(states)} for job {id}")


def ids_of(deliveries: Iterable[Delivery]) -> list[str]:
    """Ids of deliveries, in order."""
    return [delivery.job.id for delivery in deliveries]
