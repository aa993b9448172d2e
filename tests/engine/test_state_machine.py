"""The engine against the reference model: random calls on a settable clock, restarts and crashes at arbitrary points.

After every step the broker and the model must show the same: who is in which state, what the counts say, in which order jobs are
delivered, which calls are refused. ``pytest -m campaign tests/engine`` runs the longer search.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bunqueue_core.answer import Answer
from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.broker.protocol import Capabilities
from bunqueue_core.model.errors import CommandError, LeaseLost
from bunqueue_core.model.job import DEFAULT_OPTIONS, KEEP, REMOVE, JobOptions, JobSpec
from bunqueue_core.model.requests import (
    Ack,
    Acknowledged,
    Delivery,
    Failure,
    Page,
    PullRequest,
    Renewal,
    StallConfig,
)
from bunqueue_core.model.rules import BACKOFF_STRATEGIES
from bunqueue_core.plugins.drivers import JournalSettings
from bunqueue_core.testing import DictJournal, SettableClock, deterministic_ports
from bunqueue_core.testing.model import ModelBroker, ModelJob, Refused

QUEUES = ("a", "b")
CUSTOM_IDS = ("c0", "c1", "c2", "~z")
SESSIONS = ("s0", "s1")
PAYLOAD = b"\x01"

#: A pull that waits longer than any run of the machine.
FOR_EVER_MS = 10**12

#: Times are whole seconds, durations with an end that somebody notices are not: a deadline is noticed up to 50 ms late, and no time
#: that the machine looks at lies in between.
LEASE_MS = 30_500

queues = st.sampled_from(QUEUES)
indexes = st.integers(0, 10**6)


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """What a job is pushed with; most are plain."""
    if draw(st.booleans()):
        return {"priority": draw(st.sampled_from((0, 0, 5)))}
    return {
        "priority": draw(st.sampled_from((-1, 0, 0, 1, 5))),
        "lifo": draw(st.booleans()),
        "delay": draw(st.sampled_from((0, 0, 0, 500, 5_000))),
        "custom_id": draw(st.sampled_from((None, None, *CUSTOM_IDS))),
        "max_attempts": draw(st.integers(1, 4)),
        "backoff_ms": draw(st.sampled_from((0, 1_000))),
        "fixed": draw(st.booleans()),
        "timeout_ms": draw(st.sampled_from((0, 0, 12_500))),
        "remove_on_complete": draw(st.sampled_from((False, False, True))),
        "remove_on_fail": draw(st.sampled_from((False, False, True))),
        "depends_on": draw(st.lists(indexes, max_size=2)) if draw(st.booleans()) else [],
        "durable": draw(st.booleans()),
    }


class QueueMachine(RuleBasedStateMachine):
    """One broker over a journal in memory, and its model."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = SettableClock()
        self.ports = deterministic_ports(self.clock)
        self.journal = DictJournal()
        self.model = ModelBroker()
        self.undo: list[tuple[str, ModelJob | None]] = []  #: what pushes changed that are not committed
        self.commits = 0
        self.held: list[tuple[str, str | None]] = []  #: every delivery so far: (id, token)
        self.ids: list[str] = []  #: every id so far that may be depended on
        self.parked: dict[str, list[tuple[Answer[list[Delivery]], int, str | None]]] = {name: [] for name in QUEUES}
        self.broker = self.opened()

    def opened(self) -> LocalBroker:
        broker = LocalBroker(
            self.journal,
            ports=self.ports,
            capabilities=Capabilities(driver="dict"),
            settings=JournalSettings(driver="dict"),
            strategies=BACKOFF_STRATEGIES,
            log=lambda *_, **__: None,
            role="manual",
        )
        broker.start().result(5)
        return broker

    @property
    def now(self) -> int:
        return self.clock.now_ms

    def take(self, items: list[Any], index: int) -> Any:
        """Choose from a list, recent ones as likely as all older together."""
        recent = items[-8:]
        return recent[index % len(recent)] if index % 2 else items[index % len(items)]

    def some_id(self, index: int) -> str:
        return str(self.take(self.ids, index)) if self.ids else "never-existed"

    def some_delivery(self, index: int) -> tuple[str, str | None]:
        if not self.held:
            return "never-existed", "t"
        chosen: tuple[str, str | None] = self.take(self.held, index)
        return chosen

    def call(self, verb: str, *arguments: Any) -> Any:
        """Call a verb; its value, or the error that refused it."""
        try:
            return getattr(self.broker, verb)(*arguments).result(5)
        except CommandError as error:
            return error

    def settle(self) -> None:
        """Commit, serve waiting pulls, and take over what the broker chose at random."""
        self.broker.run_due()
        for name in QUEUES:
            while self.parked[name]:
                answer, count, session = self.parked[name][0]
                expected = self.model.pull(name, count, self.now)
                if not expected:
                    assert not answer.ready, "a waiting pull was answered although there is nothing"
                    break
                assert answer.ready, "a waiting pull sleeps although there are jobs"
                self.parked[name].pop(0)
                self.absorb(answer.value, expected, LEASE_MS, session)
        if self.journal.commits != self.commits:
            self.commits = self.journal.commits
            self.undo.clear()
        for id, (least, most) in self.model.undecided.items():
            view = self.broker.job(id).result(5)
            assert view is not None
            assert least <= view.job.run_at <= most, "a back-off outside its bounds"
            self.model.jobs[id].run_at = view.job.run_at
        self.model.undecided.clear()
        if self.model.unordered:
            for name in QUEUES:
                for entry in self.broker.dead_letters(name, None, None).result(5):
                    job = self.model.jobs.get(entry.job.id)
                    if entry.job.id in self.model.unordered and job is not None:
                        self.model.letters += 1
                        job.entered = self.model.letters
            self.model.unordered.clear()

    def absorb(self, deliveries: list[Delivery], expected: list[str], ttl_ms: int, session: str | None) -> None:
        assert [delivery.job.id for delivery in deliveries] == expected
        for job, token in deliveries:
            known = self.model.jobs[job.id]
            assert (job.attempts, job.stall_count, job.queue) == (known.attempts, known.stalls, known.queue)
            self.model.delivered(job.id, token, ttl_ms, session, self.now)
            self.held.append((job.id, token))

    # -- produce and consume ------------------------------------------------------------------------------------------

    @initialize(enabled=st.booleans(), max_stalls=st.integers(0, 3))
    def policies(self, enabled: bool, max_stalls: int) -> None:
        assert self.call("set_stall_config", "a", StallConfig(enabled, 20_000, max_stalls, 1_000)) is None
        policy = self.model.queue("a")
        policy.stall_enabled, policy.stall_interval_ms = enabled, 20_000
        policy.max_stalls, policy.grace_ms = max_stalls, 1_000

    @rule(queue=queues, wanted=st.lists(specs(), min_size=1, max_size=4))
    def push(self, queue: str, wanted: list[dict[str, Any]]) -> None:
        given: list[JobSpec] = []
        models: list[ModelJob] = []
        for settings_ in wanted:
            chosen = dict(settings_)
            custom_id = chosen.pop("custom_id", None)
            chosen.pop("durable", None)
            delay = chosen.pop("delay", 0)
            wished = [self.some_id(index) for index in chosen.pop("depends_on", [])]
            known = [id for id in wished if id in self.model.jobs and not self.model.jobs[id].custom]
            depends_on = tuple(dict.fromkeys(known)) if custom_id is None else ()
            model = ModelJob(
                "", queue, created_at=self.now, run_at=self.now + delay, depends_on=frozenset(depends_on), **chosen
            )
            model.custom = custom_id is not None
            models.append(model)
            given.append(self.spec(model, custom_id, delay, depends_on, bool(settings_.get("durable"))))
        pushed = self.call("push", queue, given)
        before = [(id, self.model.jobs.get(id)) for id in pushed.ids]
        self.undo += [(id, None if job is None else replace(job)) for id, job in before]
        assert pushed.outcomes == self.model.push(models, pushed.ids, self.now)
        self.ids += pushed.ids
        self.settle()

    def spec(
        self, model: ModelJob, custom_id: str | None, delay: int, depends_on: tuple[str, ...], durable: bool
    ) -> JobSpec:
        options = JobOptions(
            max_attempts=model.max_attempts,
            backoff_ms=model.backoff_ms,
            backoff={"type": "fixed", "delay": model.backoff_ms} if model.fixed else None,
            timeout_ms=model.timeout_ms or None,
            lifo=model.lifo,
            remove_on_complete=REMOVE if model.remove_on_complete else KEEP,
            remove_on_fail=REMOVE if model.remove_on_fail else KEEP,
            durable=durable,
        )
        plain = ModelJob("", model.queue, model.priority, False, model.created_at, model.run_at)
        if model == plain:
            # The defaults of the model and of a job differ in the back-off; a plain job takes the short way in.
            model.backoff_ms, model.fixed = DEFAULT_OPTIONS.backoff_ms, False
            options = DEFAULT_OPTIONS
        return JobSpec(
            "n", PAYLOAD, options, priority=model.priority, delay=delay, custom_id=custom_id, depends_on=depends_on
        )

    @rule(
        queue=queues,
        count=st.integers(1, 4),
        ttl_ms=st.sampled_from((5_500, 30_500)),
        session=st.sampled_from((None, *SESSIONS)),
        owned=st.integers(0, 3),
    )
    def pull(self, queue: str, count: int, ttl_ms: int, session: str | None, owned: int) -> None:
        expected = [] if self.parked[queue] else self.model.pull(queue, count, self.now)
        # Time-outs of deliveries without a lease are remembered by start time; the model knows only those with a token.
        owner = "w" if owned or any(self.model.jobs[id].timeout_ms for id in expected) else None
        deliveries = self.call("pull", PullRequest(queue, count, owner, ttl_ms, session=session))
        self.absorb(deliveries, expected, ttl_ms, session)
        self.settle()

    @rule(queue=queues, count=st.integers(1, 3), session=st.sampled_from((None, *SESSIONS)))
    def park(self, queue: str, count: int, session: str | None) -> None:
        if len(self.parked[queue]) >= 3:
            return
        request = PullRequest(queue, count, "w", LEASE_MS, FOR_EVER_MS, session)
        expected = [] if self.parked[queue] else self.model.pull(queue, count, self.now)
        answer: Answer[list[Delivery]] = self.broker.pull(request)
        if expected:
            self.absorb(answer.result(5), expected, LEASE_MS, session)
        else:
            assert not answer.ready
            self.parked[queue].append((answer, count, session))
        self.settle()

    @rule(queue=queues, index=indexes)
    def cancel_a_waiting_pull(self, queue: str, index: int) -> None:
        if self.parked[queue]:
            answer, _, _ = self.parked[queue].pop(index % len(self.parked[queue]))
            answer.cancel()
            self.settle()

    @rule(queue=queues, count=st.integers(1, 2))
    def deliver_to_nobody(self, queue: str, count: int) -> None:
        if self.parked[queue]:
            return
        answer: Answer[list[Delivery]] = self.broker.pull(PullRequest(queue, count, "w", LEASE_MS))
        expected = self.model.pull(queue, count, self.now)
        self.absorb(answer.result(5), expected, LEASE_MS, None)
        tokens = dict(self.held[len(self.held) - len(expected) :])
        answer.cancel()
        for id, token in tokens.items():
            self.model.give_back(id, token)
        self.settle()

    @rule(chosen=st.lists(st.tuples(indexes, st.integers(0, 5), st.booleans(), st.booleans()), min_size=1, max_size=3))
    def ack(self, chosen: list[tuple[int, int, bool, bool]]) -> None:
        acks = []
        for index, kind, with_result, remove in chosen:
            id, token = self.some_delivery(index)
            acks.append(Ack(id, self.token(token, kind), PAYLOAD if with_result else None, remove and kind == 5))
        self.outcomes("ack", acks, lambda: self.model.ack([tuple(ack) for ack in acks], self.now))  # type: ignore[misc]

    @rule(chosen=st.lists(st.tuples(indexes, st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=3))
    def fail(self, chosen: list[tuple[int, int, int]]) -> None:
        failures = []
        for index, kind, end in chosen:
            id, token = self.some_delivery(index)
            failures.append(Failure(id, "boom", self.token(token, kind), None, end == 3, end == 4))
        decided = [(f.id, f.token, f.unrecoverable, f.remove) for f in failures]
        self.outcomes("fail", failures, lambda: self.model.fail(decided, self.now))

    def token(self, token: str | None, kind: int) -> str | None:
        return {0: None, 1: "wrong"}.get(kind, token)

    def outcomes(self, verb: str, items: list[Any], decide: Any) -> None:
        done = self.call(verb, items)
        try:
            verdicts = decide()
        except Refused:
            assert isinstance(done, LeaseLost)
        else:
            assert isinstance(done, Acknowledged)
            shown = ["absent" if at in done.errors else outcome for at, outcome in enumerate(done.outcomes)]
            assert shown == verdicts
        self.settle()

    @rule(index=indexes, kind=st.integers(0, 3), duration=st.sampled_from((None, 1_500, 60_500)), beat=st.booleans())
    def renew(self, index: int, kind: int, duration: int | None, beat: bool) -> None:
        id, token = self.some_delivery(index)
        token = self.token(token, kind)
        if beat:
            assert self.call("heartbeat", [Renewal(id, token)]) == [self.model.beat(id, token, self.now)]
        else:
            assert self.call("extend", [Renewal(id, token, duration)]) == [
                self.model.extend(id, token, duration, self.now)
            ]
        self.settle()

    @rule(session=st.sampled_from(SESSIONS))
    def lose_a_connection(self, session: str) -> None:
        for name in QUEUES:
            self.parked[name] = [waiting for waiting in self.parked[name] if waiting[2] != session]
        assert self.call("release", session) == self.model.release(session, self.now)
        self.settle()

    @rule(queue=queues, times=st.integers(1, 3), wait=st.sampled_from((0, 12_000)))
    def crash_loop(self, queue: str, times: int, wait: int) -> None:
        """A worker that takes a job and vanishes, again and again."""
        for _ in range(times):
            if self.parked[queue]:
                return
            expected = self.model.pull(queue, 1, self.now)
            self.absorb(self.call("pull", PullRequest(queue, 1, "w", LEASE_MS, session="s9")), expected, LEASE_MS, "s9")
            assert self.call("release", "s9") == self.model.release("s9", self.now)
            self.settle()
            if wait:
                self.advance(wait)

    # -- time -----------------------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from((1_000, 4_000, 12_000, 31_000, 120_000)))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.model.advance(self.now)
        self.settle()

    # -- control --------------------------------------------------------------------------------------------------------

    @rule(queue=queues)
    def pause(self, queue: str) -> None:
        assert self.call("pause", queue) is None
        self.model.queue(queue).paused = True
        self.settle()

    @rule(queue=queues)
    def resume(self, queue: str) -> None:
        assert self.call("resume", queue) is None
        self.model.queue(queue).paused = False
        self.settle()

    @rule(index=indexes, verb=st.sampled_from(("cancel", "promote")))
    def by_id(self, index: int, verb: str) -> None:
        id = self.some_id(index)
        decide = {"cancel": lambda: self.model.cancel(id), "promote": lambda: self.model.promote(id, self.now)}[verb]
        self.agree(self.call(verb, id), decide)

    @rule(index=indexes, kind=st.integers(0, 3), verb=st.sampled_from(("discard", "move_to_wait")))
    def by_token(self, index: int, kind: int, verb: str) -> None:
        id, token = self.some_delivery(index) if kind % 2 else (self.some_id(index), None)
        token = self.token(token, kind)
        decide = {
            "discard": lambda: self.model.discard(id, token),
            "move_to_wait": lambda: self.model.move_to_wait(id, token, self.now),
        }[verb]
        self.agree(self.call(verb, id, token), decide)

    @rule(index=indexes, kind=st.integers(0, 3), delay=st.sampled_from((0, 1_000, 10_000)))
    def change_delay(self, index: int, kind: int, delay: int) -> None:
        id, token = self.some_delivery(index) if kind % 2 else (self.some_id(index), None)
        token = self.token(token, kind)
        self.agree(
            self.call("change_delay", id, delay, token), lambda: self.model.change_delay(id, delay, token, self.now)
        )

    @rule(index=indexes, priority=st.integers(-2, 6), lifo=st.sampled_from((None, False, True)))
    def change_priority(self, index: int, priority: int, lifo: bool | None) -> None:
        id = self.some_id(index)
        self.agree(
            self.call("change_priority", id, priority, lifo), lambda: self.model.change_priority(id, priority, lifo)
        )

    def agree(self, done: Any, decide: Any) -> None:
        try:
            value = decide()
        except Refused:
            assert isinstance(done, CommandError)
        else:
            assert done == value
        self.settle()

    @rule(queue=queues, index=indexes, one=st.booleans())
    def retry_dead_letters(self, queue: str, index: int, one: bool) -> None:
        letters = self.model.dead_letters(queue)
        if one:
            id = self.take(letters, index) if letters else self.some_id(index)
            expected = id in letters and self.model.revive(id, self.now)
            assert self.call("retry_dead_letters", queue, id) == expected
        else:
            assert self.call("retry_dead_letters", queue) == sum(self.model.revive(id, self.now) for id in letters)
        self.settle()

    @rule(queue=queues, index=indexes)
    def remove_dead_letter(self, queue: str, index: int) -> None:
        letters = self.model.dead_letters(queue)
        id = self.take(letters, index) if letters else self.some_id(index)
        expected = id in letters and self.model.remove_dead_letter(id)
        assert self.call("remove_dead_letter", queue, id) is expected
        self.settle()

    @rule(queue=queues, index=indexes)
    def retry_completed(self, queue: str, index: int) -> None:
        done = [job.id for job in self.model.of(queue, "completed")]
        if done:
            id = self.take(done, index)
            assert self.call("retry_completed", queue, id) == self.model.retry_completed(id, self.now)
            self.settle()

    @rule(queue=queues, sure=st.integers(0, 4))
    def drain(self, queue: str, sure: int) -> None:
        if sure == 4:
            assert self.call("drain_queue", queue) == self.model.drain(queue)
            self.settle()

    @rule(queue=queues, sure=st.integers(0, 9))
    def obliterate(self, queue: str, sure: int) -> None:
        if sure == 9:
            assert self.call("obliterate", queue) is None
            self.model.obliterate(queue)
            self.settle()

    # -- restarts -------------------------------------------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        self.broker.close().result(5)
        for waiting in self.parked.values():
            assert [answer.result(5) for answer, _, _ in waiting] == [[]] * len(waiting)
            waiting.clear()
        self.model.restart()
        self.broker = self.opened()
        self.undo.clear()
        self.settle()

    @rule()
    def crash(self) -> None:
        for waiting in self.parked.values():
            waiting.clear()
        self.journal = self.journal.image()
        self.commits = 0
        self.broker = self.opened()
        self.model.crash(self.undo, self.now)
        self.undo.clear()
        self.settle()

    # -- what always holds ------------------------------------------------------------------------------------------------

    @invariant()
    def counts_agree(self) -> None:
        for name in QUEUES:
            counts = self.broker.counts(name).result(5)
            shown = {
                state: number
                for state, number in (
                    ("waiting", counts.waiting),
                    ("prioritized", counts.prioritized),
                    ("delayed", counts.delayed),
                    ("active", counts.active),
                    ("completed", counts.completed),
                    ("failed", counts.failed),
                    ("waiting-children", counts.waiting_children),
                    ("paused", counts.paused),
                )
                if number
            }
            assert shown == self.model.counts(name, self.now)

    @invariant()
    def states_agree(self) -> None:
        ids = list(dict.fromkeys([*self.ids[-40:], *self.model.jobs]))
        expected = [self.model.jobs[id].state(self.now) if id in self.model.jobs else "unknown" for id in ids]
        assert self.broker.states(ids).result(5) == expected

    @invariant()
    @precondition(lambda self: self.now // 1000 % 3 == 0)
    def listings_agree(self) -> None:
        for name in QUEUES:
            listed = [view.job.id for view in self.broker.jobs(name, (), Page(0, None)).result(5)]
            jobs = [job for job in self.model.jobs.values() if job.queue == name]
            assert listed == [job.id for job in sorted(jobs, key=lambda job: (job.created_at, job.id))]
            letters = [entry.job.id for entry in self.broker.dead_letters(name, None, None).result(5)]
            assert letters == self.model.dead_letters(name)
        done = [job for job in self.model.jobs.values() if job.place == "completed"]
        assert self.broker.results([job.id for job in done]).result(5) == [job.result for job in done]

    def teardown(self) -> None:
        self.broker.close().result(5)


def search(examples: int, steps: int) -> None:
    """Run the machine; raises with the shortest sequence of calls after which broker and model differ."""
    run_state_machine_as_test(
        QueueMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(300)
def test_the_engine_agrees_with_the_model() -> None:
    search(examples=300, steps=80)


@pytest.mark.campaign
@pytest.mark.timeout(0)
def test_the_engine_agrees_with_the_model_for_long() -> None:
    search(examples=5_000, steps=200)
