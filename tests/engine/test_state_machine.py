"""The engine against the reference model: random calls of every verb on a settable clock, restarts and crashes at arbitrary points.

After every step broker and model must show the same: which calls are refused, who is delivered and in which order, whose deadline
has fired, who sleeps; every few steps also every state, count, listing, key and dead letter, and the engine's own counters and
indexes are recomputed. That is how these are held: no job is lost, is in two states or is claimed twice under a live lease; limits
and the rotation of groups are respected; counts equal listings; every deadline fires once; dependents are released when due.

The bulk of the steps is made by a plain seeded driver, whose failures are shortened and printed with the command that repeats them;
hypothesis drives the same steps as a state machine. The long search::

    python -m pytest tests/engine/test_state_machine.py -m campaign
"""

from __future__ import annotations

import os
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from bunqueue_core.answer import Answer
from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.broker.protocol import Capabilities
from bunqueue_core.model.errors import CommandError, Conflict, LeaseLost, NotFound
from bunqueue_core.model.job import DEFAULT_OPTIONS, DURABLE_OPTIONS, JobOptions, JobSpec, Retention
from bunqueue_core.model.requests import (
    Ack,
    Acknowledged,
    Delivery,
    DlqConfig,
    Event,
    Failure,
    FlowJob,
    GroupDefaults,
    Page,
    PullRequest,
    Renewal,
    StallConfig,
)
from bunqueue_core.model.rules import BACKOFF_STRATEGIES
from bunqueue_core.model.webhook import Webhook, WebhookTally
from bunqueue_core.plugins.drivers import JournalSettings
from bunqueue_core.storage.changes import GROUP_TABLE, LOG_TABLE, RATE_TABLE, WINDOW_TABLE, ChangeSet
from bunqueue_core.testing import DictJournal, SettableClock, deterministic_ports
from bunqueue_core.testing.invariants import check_broker
from bunqueue_core.testing.model import Defaults, ModelBroker, ModelJob, ModelRate, ModelSchedule, Plan, Policy, Refused

QUEUES = ("a", "b")
GROUPS = ("g0", "g1", "g2", "g3")
KEYS = ("k0", "k1", "k2")
CUSTOM_IDS = ("c0", "c1", "c2", "~z")
DEBOUNCE_IDS = ("d0", "d1")
SESSIONS = ("s0", "s1")
SCHEDULES = {"every-a": "a", "every-b": "b"}
HOOKS = ("h0", "h1", "h2")
PAYLOAD = b"\x80"

#: A pull or wait that is longer than any run.
FOR_EVER_MS = 10**12

#: Times are whole seconds, durations with an end that a timer of an active job notices are not: such a deadline is noticed up to
#: 50 ms late, and no time that is looked at lies in between.
LEASE_MS = 30_500

#: What workers propose for groups; the last two also take only one group, or only jobs without one.
DEFAULTS = (
    None,
    None,
    Defaults(concurrency=1),
    Defaults(concurrency=2, rate=(2, 7_000)),
    Defaults(rate=(1, 20_000)),
    Defaults(concurrency=1, only="g1"),
    Defaults(only=""),
)

#: Steps of one run of the plain driver, each on a new broker.
RUN_STEPS = 500

#: Every state, count and listing is compared after this many steps.
LOOK_EVERY = 40

#: Completed jobs that every second run keeps in memory; the others are read from the journal.
FEW_COMPLETED = 3

#: More jobs than this, and the next step removes some.
MANY_JOBS = 50

_POLICY_OPTIONS: dict[Policy | None, dict[str, Any]] = {
    "fail": {"fail_parent_on_failure": True},
    "continue": {"continue_parent_on_failure": True},
    "ignore": {"ignore_dependency_on_failure": True},
    "remove": {"remove_dependency_on_failure": True},
    None: {},
}


def decided(decide: Callable[[], Any]) -> Any:
    """What the model decides; a refusal as a value."""
    try:
        return decide()
    except Refused as refusal:
        return refusal


def _again(value: Any) -> Any:
    """What was decided before."""
    if isinstance(value, Refused):
        raise value
    return value


Parked = tuple[Answer[list[Delivery]], int, str | None, Defaults | None]


class CrashingJournal(DictJournal):
    """A journal that keeps what a crash after its first commit would leave."""

    def __init__(self) -> None:
        super().__init__()
        self.after_first: DictJournal | None = None

    def commit(self, changes: ChangeSet) -> None:
        super().commit(changes)
        if self.after_first is None:
            self.after_first = self.image()


class Driver:
    """One broker over a journal in memory, its model, and the steps that are made on both.

    Args:
        most_completed: completed jobs that the broker keeps in memory; the others are in its journal only.
    """

    def __init__(self, most_completed: int = 50_000) -> None:
        self.clock = SettableClock()
        self.ports = deterministic_ports(self.clock)
        self.journal = DictJournal()
        self.model = ModelBroker()
        self.held: list[tuple[str, str | None]] = []  #: deliveries of late: (id, token)
        self.ids: list[str] = []  #: ids of late
        self.parked: dict[str, list[Parked]] = {name: [] for name in QUEUES}
        self.waits: dict[str, list[Answer[tuple[bool, bytes | None]]]] = {}
        self.flows = 0
        self.lines = 0
        self.steps = 0
        self.most_completed = most_completed
        self.random = random.Random(0)
        self.broker = self.opened()

    def opened(self) -> LocalBroker:
        broker = LocalBroker(
            self.journal,
            ports=self.ports,
            capabilities=Capabilities(driver="dict"),
            settings=JournalSettings(driver="dict", max_completed_jobs=self.most_completed),
            strategies=BACKOFF_STRATEGIES,
            log=lambda *_, **__: None,
            role="manual",
        )
        broker.start().result(5)
        return broker

    @property
    def now(self) -> int:
        return self.clock.now_ms

    # -- choosing ---------------------------------------------------------------------------------------------------------

    def choose(self, *items: Any) -> Any:
        return items[int(self.random.random() * len(items))]

    def one_in(self, number: int) -> bool:
        return self.random.random() * number < 1

    def take(self, items: Sequence[Any]) -> Any:
        """Choose from a list, recent ones as likely as all older together."""
        if self.one_in(2):
            items = items[-8:]
        return items[int(self.random.random() * len(items))]

    def some_queue(self) -> str:
        return QUEUES[self.random.random() < 0.4]

    def some_id(self) -> str:
        return str(self.take(self.ids)) if self.ids else "never-existed"

    def some_delivery(self) -> tuple[str, str | None]:
        if not self.held:
            return "never-existed", "t"
        active = [(job.id, job.token) for job in self.model.jobs.values() if job.place == "active"]
        if active and not self.one_in(4):
            return self.choose(*active)  # type: ignore[no-any-return]
        return self.take(self.held)  # type: ignore[no-any-return]

    def some_token(self, token: str | None) -> str | None:
        number = self.random.random()
        return token if number > 0.15 else "wrong" if number > 0.08 else None

    def in_place(self, queue: str | None, *places: str) -> str:
        """A job in one of these places, or any id if there is none."""
        found = [
            job.id for job in self.model.jobs.values() if job.place in places and (queue is None or job.queue == queue)
        ]
        return str(self.choose(*found)) if found and not self.one_in(8) else self.some_id()

    # -- calling ----------------------------------------------------------------------------------------------------------

    def call(self, verb: str, *arguments: Any) -> Any:
        """Call a verb; its value, or the error that refused it."""
        try:
            return getattr(self.broker, verb)(*arguments).result(5)
        except CommandError as error:
            return error

    def agree(self, done: Any, decide: Callable[[], Any]) -> None:
        """What the broker did is what the model decides."""
        value = decided(decide)
        if isinstance(value, Refused):
            assert isinstance(done, (NotFound, Conflict, LeaseLost)), f"{done!r}, but the model refuses {value}"
        else:
            assert done == value, f"{done!r} instead of {value!r}"
        self.settle()

    def settle(self) -> None:
        """Commit, serve waiting pulls, and take over what the broker chose at random."""
        self.broker.run_due()
        self.absorb_choices()
        for name in QUEUES:
            self.serve(name)
        self.model.maintain(self.now)
        for name in QUEUES:
            self.serve(name)
            self.nobody_sleeps(name)
        self.absorb_choices()
        if self.model.ended:
            for id, completed in self.model.ended.items():
                for answer in self.waits.pop(id, ()):
                    assert answer.ready, "who waits for a job is not told of its end"
                    assert answer.value[0] == completed
            self.model.ended.clear()

    def absorb_choices(self) -> None:
        for id, (least, most) in self.model.undecided.items():
            job = self.model.jobs[id]
            view = self.broker.job(id).result(5)
            if view is None and job.time_to_live_ms is not None and job.created_at + job.time_to_live_ms < self.now:
                continue  # expired before anybody looked
            assert view is not None, f"{id} is lost"
            assert least <= view.job.run_at <= most, "a back-off outside its bounds"
            job.run_at = view.job.run_at
        self.model.undecided.clear()

    def serve(self, name: str) -> None:
        """Those who wait for jobs got them, in an order that the rules allow."""
        waiting = self.parked[name]
        found = True
        while found:
            found = False
            for parked in waiting:
                answer, count, session, defaults = parked
                if answer.ready:
                    plan = self.model.pull(name, count, self.now, defaults)
                    if plan.ids and plan.ids == [delivery.job.id for delivery in answer.value]:
                        waiting.remove(parked)
                        self.absorb(name, answer.value, plan, LEASE_MS, session)
                        found = True
                        break

    def nobody_sleeps(self, name: str) -> None:
        for answer, count, _, defaults in self.parked[name]:
            plan = self.model.pull(name, count, self.now, defaults)
            shown = [delivery.job.id for delivery in answer.value] if answer.ready else None
            assert shown is None, f"a waiting pull was given {shown} instead of {plan.ids}"
            assert not plan.ids, f"a waiting pull sleeps although there are {plan.ids}"

    def absorb(self, name: str, deliveries: list[Delivery], plan: Plan, ttl_ms: int, session: str | None) -> None:
        """A pull was answered: the jobs are those of the plan, in its order."""
        delivered = [delivery.job.id for delivery in deliveries]
        assert delivered == plan.ids, f"delivered {delivered} instead of {plan.ids}"
        if not delivered:
            return
        self.model.take(name, plan, self.now)
        for job, token in deliveries:
            known = self.model.jobs[job.id]
            assert (job.attempts, job.stall_count, job.queue) == (known.attempts, known.stalls, known.queue)
            self.model.delivered(job.id, token, ttl_ms, session, self.now)
            self.held.append((job.id, token))
        del self.held[:-60]

    # -- produce ------------------------------------------------------------------------------------------------------------

    def push(self) -> None:
        """Plain jobs, or jobs with options of all kinds, in bulk."""
        queue = self.some_queue()
        specs, models = [], []
        for _ in range(self.choose(1, 1, 2, 3)):
            spec, model = self.some_job(queue)
            specs.append(spec)
            models.append(model)
        self.admit(queue, specs, models)

    def push_grouped(self) -> None:
        """Jobs of groups, some with an admission limit."""
        queue = self.some_queue()
        specs, models = [], []
        for _ in range(self.choose(1, 2, 4)):
            spec, model = self.some_job(queue, plain=self.one_in(2))
            if model.depends_on:
                continue
            model.group = spec.group_id = self.choose(*GROUPS)
            specs.append(spec)
            models.append(model)
        if len(specs) == 1 and self.one_in(3):
            specs[0].group_max_size = models[0].group_size = self.choose(1, 2, 4)
        if specs:
            self.admit(queue, specs, models)

    def push_unique(self) -> None:
        """A job with a deduplication key."""
        queue = self.some_queue()
        kind = self.choose("plain", "plain", "extend", "replace", "replace")
        model = ModelJob("", queue, created_at=self.now, run_at=self.now + self.choose(0, 0, 4_000))
        model.key = self.choose(*KEYS)
        model.key_scope = self.choose(None, None, "waiting", "unfinished", "window")
        model.key_ttl_ms = self.choose(None, 3_000, 15_000)
        model.key_extends, model.key_replaces = kind == "extend", kind == "replace"
        model.fixed, model.max_attempts = True, self.choose(1, 2)
        options = JobOptions(
            max_attempts=model.max_attempts,
            backoff={"type": "fixed", "delay": 1_000},
            dedup_ttl_ms=model.key_ttl_ms,
            dedup_extend=model.key_extends,
            dedup_replace=model.key_replaces,
            dedup_scope=model.key_scope,
        )
        spec = JobSpec("n", PAYLOAD, options, delay=model.run_at - self.now, unique_key=model.key)
        self.admit(queue, [spec], [model])

    def push_child(self) -> None:
        """A job that a parent, which is there already, waits for."""
        parent = self.model.jobs.get(self.in_place(None, "ready", "gated", "parked"))
        if parent is None or parent.group is not None or parent.key is not None:
            return
        queue = self.some_queue()
        model = ModelJob("", queue, created_at=self.now, run_at=self.now, parent=parent.id)
        model.max_attempts, model.policy = 1, self.choose(None, "fail", "continue", "ignore", "remove")
        options = JobOptions(max_attempts=1, **_POLICY_OPTIONS[model.policy])
        spec = JobSpec("n", PAYLOAD, options, parent_id=parent.id, parent_queue=parent.queue)
        self.admit(queue, [spec], [model])

    def push_debounced(self) -> None:
        """A job that waits for more of its kind."""
        queue = self.some_queue()
        model = ModelJob("", queue, self.choose(0, 5), created_at=self.now, run_at=self.now)
        model.debounce, model.debounce_ms = self.choose(*DEBOUNCE_IDS), self.choose(1_000, 8_000)
        model.debounce_longest_ms = self.choose(None, 10_000)
        model.data = bytes([0xA1, 0x61 + self.choose(*range(20))])
        model.max_attempts, model.fixed, model.backoff_ms = self.choose(1, 2), True, 0
        options = JobOptions(
            max_attempts=model.max_attempts,
            backoff={"type": "fixed", "delay": 0},
            debounce_id=model.debounce,
            debounce_ttl_ms=model.debounce_ms,
            debounce_max_wait_ms=model.debounce_longest_ms,
        )
        self.admit(queue, [JobSpec("n", model.data, options, priority=model.priority)], [model])

    def push_repeated(self) -> None:
        """A job that runs again and again."""
        queue = self.some_queue()
        model = ModelJob("", queue, self.choose(0, 5), created_at=self.now, run_at=self.now)
        model.max_attempts, model.fixed, model.backoff_ms = self.choose(1, 2), True, 0
        model.repeat_ms, model.repeat_limit = self.choose(1_000, 7_000), self.choose(1, 3)
        options = JobOptions(
            max_attempts=model.max_attempts,
            backoff={"type": "fixed", "delay": 0},
            repeat={"every": model.repeat_ms, "limit": model.repeat_limit},
        )
        self.admit(queue, [JobSpec("n", PAYLOAD, options, priority=model.priority)], [model])

    def some_job(self, queue: str, *, plain: bool = False) -> tuple[JobSpec, ModelJob]:
        model = ModelJob("", queue, self.choose(0, 0, 5), created_at=self.now, run_at=self.now)
        if plain or self.one_in(3):
            durable = self.one_in(4)
            return JobSpec(
                "n", PAYLOAD, DURABLE_OPTIONS if durable else DEFAULT_OPTIONS, priority=model.priority
            ), model
        choose = self.choose
        delay = choose(0, 0, 0, 500, 5_000)
        model.priority = choose(-1, 0, 0, 1, 5)
        model.lifo = self.one_in(4)
        model.run_at = self.now + delay
        model.max_attempts = choose(1, 1, 2, 3)
        model.backoff_ms = choose(0, 1_000)
        model.fixed = self.one_in(2)
        model.timeout_ms = choose(0, 0, 12_500)
        model.stall_timeout_ms = choose(None, None, None, 6_600)
        model.time_to_live_ms = choose(None, None, None, 2_500, 20_500)
        custom_id = choose(None, None, None, *CUSTOM_IDS)
        if self.one_in(3):
            model.remove_on_complete = self.one_in(3)
            if not model.remove_on_complete:
                model.complete_age_ms, model.complete_count = choose(None, 6_000, 40_000), choose(None, None, 2)
                if self.most_completed < MANY_JOBS:
                    # Which of several that completed in one moment is the oldest, memory and journal say each for themselves.
                    model.complete_count = None
        if self.one_in(3):
            model.remove_on_fail = self.one_in(3)
            if not model.remove_on_fail:
                model.fail_age_ms, model.fail_count = choose(None, 6_000, 40_000), choose(None, None, 2)
        if custom_id is not None:
            model.custom, model.id = True, custom_id
        elif self.one_in(3):
            known = [id for id in (self.some_id() for _ in range(choose(1, 2))) if id in self.model.jobs]
            model.depends_on = tuple(id for id in dict.fromkeys(known) if not self.model.jobs[id].custom)
        options = JobOptions(
            max_attempts=model.max_attempts,
            backoff_ms=model.backoff_ms,
            backoff={"type": "fixed", "delay": model.backoff_ms} if model.fixed else None,
            ttl_ms=model.time_to_live_ms,
            timeout_ms=model.timeout_ms or None,
            stall_timeout_ms=model.stall_timeout_ms,
            lifo=model.lifo,
            remove_on_complete=Retention(model.remove_on_complete, model.complete_age_ms, model.complete_count),
            remove_on_fail=Retention(model.remove_on_fail, model.fail_age_ms, model.fail_count),
            durable=self.one_in(3),
        )
        spec = JobSpec(
            "n",
            PAYLOAD,
            options,
            priority=model.priority,
            delay=delay,
            custom_id=custom_id,
            depends_on=model.depends_on,
        )
        return spec, model

    def admit(self, queue: str, specs: list[JobSpec], models: list[ModelJob]) -> None:
        later = self.one_in(4)
        pushed = self.call("push", queue, specs)
        refused = isinstance(pushed, CommandError)
        ids = [""] * len(models) if refused else pushed.ids
        expected = decided(lambda: self.model.push(models, ids, self.now))
        if isinstance(expected, Refused):
            assert refused, f"admitted although {expected}"
            return
        assert not refused, f"{pushed!r}"
        assert (pushed.ids, pushed.outcomes) == expected
        self.ids += pushed.ids
        del self.ids[:-60]
        if later and not any(self.parked.values()) and not self.model.ended:
            return  # whatever comes next commits it
        self.settle()

    def push_flow(self) -> None:
        """A parent and its children, admitted at once."""
        queue = self.some_queue()
        self.flows += 1
        top = f"f{self.flows}"
        children = [f"{top}-{number}" for number in range(self.choose(1, 2, 3))]
        models, members = [], []
        for id in children:
            model = ModelJob(id, queue, created_at=self.now, run_at=self.now, parent=top)
            model.max_attempts, model.policy = (
                self.choose(1, 2),
                self.choose(None, "fail", "continue", "ignore", "remove"),
            )
            options = JobOptions(max_attempts=model.max_attempts, **_POLICY_OPTIONS[model.policy])
            models.append(model)
            members.append(FlowJob(id, queue, JobSpec("n", PAYLOAD, options, parent_id=top)))
        parent = ModelJob(top, queue, created_at=self.now, run_at=self.now)
        parent.depends_on = parent.children = tuple(children)
        spec = JobSpec("n", PAYLOAD, depends_on=tuple(children), children_ids=tuple(children))
        models.append(parent)
        members.append(FlowJob(top, queue, spec))
        admitted = self.call("push_flow", members)
        assert [job.id for job in admitted] == [*children, top]
        self.model.push_flow(models, self.now)
        self.ids += [*children, top]
        self.settle()

    def link(self) -> None:
        """Give a job a parent, detach one from it, or cancel a parent's children."""
        kind = self.choose("update", "detach", "cancel")
        if kind == "detach":
            id = self.in_place(None, "ready", "active", "gated")
            self.agree(
                self.call("remove_child_dependency", id), lambda: self.model.remove_child_dependency(id, self.now)
            )
            return
        parent = self.model.jobs.get(self.in_place(None, "ready", "gated", "parked"))
        if parent is None or parent.group is not None or parent.key is not None:
            return
        if kind == "cancel":
            self.agree(
                self.call("remove_unprocessed_children", parent.id),
                lambda: self.model.remove_unprocessed_children(parent.id, self.now),
            )
            return
        child = self.some_id()
        if child in self.model.jobs and self._waits_for(child, parent.id):
            return  # a circle: nothing refuses it, and nothing would come of it
        self.agree(
            self.call("update_parent", child, parent.id),
            lambda: self.model.update_parent(child, parent.id, self.now),
        )

    def _waits_for(self, id: str, other: str) -> bool:
        job = self.model.jobs.get(id)
        return id == other or (job is not None and any(self._waits_for(up, other) for up in job.depends_on))

    # -- consume ------------------------------------------------------------------------------------------------------------

    def request(
        self, queue: str, count: int, owner: str | None, ttl_ms: int, session: str | None, defaults: Defaults | None
    ) -> PullRequest:
        group = None
        if defaults is not None:
            maximum, duration = defaults.rate or (None, None)
            affine = defaults.only is not None
            group = GroupDefaults(defaults.concurrency, maximum, duration, affine, defaults.only or None)
        return PullRequest(queue, count, owner, ttl_ms, session=session, group=group)

    def pull(self) -> None:
        queue, defaults = self.some_queue(), self.choose(*DEFAULTS)
        count, ttl_ms = self.choose(1, 2, 4), self.choose(5_500, LEASE_MS)
        session = self.choose(None, *SESSIONS)
        plan = self.model.pull(queue, count, self.now, defaults)
        # Deliveries without a lease that end by themselves are remembered by start time; the model knows only those with a token.
        leased = any(self.model.jobs[id].timeout_ms or self.model.jobs[id].of_schedule for id in plan.ids)
        owner = "w" if leased or not self.one_in(4) else None
        deliveries = self.call("pull", self.request(queue, count, owner, ttl_ms, session, defaults))
        self.absorb(queue, deliveries, plan, ttl_ms, session)
        self.settle()

    def park(self) -> None:
        """A pull that waits."""
        queue, defaults = self.some_queue(), self.choose(*DEFAULTS)
        if len(self.parked[queue]) >= 2:
            return
        count, session = self.choose(1, 2), self.choose(None, *SESSIONS)
        plan = self.model.pull(queue, count, self.now, defaults)
        request = self.request(queue, count, "w", LEASE_MS, session, defaults)
        answer: Answer[list[Delivery]] = self.broker.pull(
            PullRequest(queue, count, "w", LEASE_MS, FOR_EVER_MS, session, request.group)
        )
        if plan.ids:
            self.absorb(queue, answer.result(5), plan, LEASE_MS, session)
        else:
            assert not answer.ready
            self.parked[queue].append((answer, count, session, defaults))
        self.settle()

    def unpark(self) -> None:
        """A waiting pull is given up."""
        queue = self.some_queue()
        if self.parked[queue]:
            self.parked[queue].pop(0)[0].cancel()
            self.settle()

    def deliver_to_nobody(self) -> None:
        queue, count = self.some_queue(), self.choose(1, 2)
        if self.parked[queue]:
            return
        answer: Answer[list[Delivery]] = self.broker.pull(PullRequest(queue, count, "w", LEASE_MS))
        plan = self.model.pull(queue, count, self.now)
        self.absorb(queue, answer.result(5), plan, LEASE_MS, None)
        tokens = [(id, self.model.jobs[id].token) for id in plan.ids]
        answer.cancel()
        for id, token in tokens:
            self.model.give_back(id, token, self.now)
        self.settle()

    def ack(self) -> None:
        acks = []
        for _ in range(self.choose(1, 1, 2, 3)):
            id, token = self.some_delivery()
            result = PAYLOAD if self.one_in(2) else None
            acks.append(Ack(id, self.some_token(token), result, self.one_in(6)))
        events: list[Event] = []
        stop = self.broker.subscribe(events.append)
        done = self.call("ack", acks)
        stop()
        verdicts = decided(lambda: self.model.ack([tuple(ack) for ack in acks], self.now))  # type: ignore[misc]
        made = [event.job_id for event in events if event.type == "pushed"]
        self.model.succeed(made, self.now)
        self.ids += made
        self.outcomes(done, lambda: _again(verdicts))

    def fail(self) -> None:
        failures = []
        for _ in range(self.choose(1, 1, 2, 3)):
            id, token = self.some_delivery()
            end = self.choose(0, 0, 0, 1, 2)
            failures.append(Failure(id, "boom", self.some_token(token), None, end == 1, end == 2))
        decided = [(f.id, f.token, f.unrecoverable, f.remove) for f in failures]
        self.outcomes(self.call("fail", failures), lambda: self.model.fail(decided, self.now))

    def outcomes(self, done: Any, decide: Callable[[], list[Any]]) -> None:
        verdicts = decided(decide)
        if isinstance(verdicts, Refused):
            assert isinstance(done, LeaseLost), f"{done!r}, but the model refuses the {verdicts}"
        else:
            assert isinstance(done, Acknowledged), f"{done!r} instead of {verdicts}"
            shown = ["absent" if at in done.errors else outcome for at, outcome in enumerate(done.outcomes)]
            assert shown == verdicts
        self.settle()

    def renew(self) -> None:
        id, token = self.some_delivery()
        token, duration = self.some_token(token), self.choose(None, 1_500, 60_500)
        if self.one_in(2):
            done, expected = self.call("heartbeat", [Renewal(id, token)]), self.model.beat(id, token, self.now)
        else:
            done = self.call("extend", [Renewal(id, token, duration)])
            expected = self.model.extend(id, token, duration, self.now)
        assert done == [expected]

    def lose_a_connection(self) -> None:
        session = self.choose(*SESSIONS)
        for name in QUEUES:
            self.parked[name] = [waiting for waiting in self.parked[name] if waiting[2] != session]
        assert self.call("release", session) == self.model.release(session, self.now)
        self.settle()

    def crash_loop(self) -> None:
        """A worker that takes a job and vanishes, again and again."""
        queue, wait = self.some_queue(), self.one_in(2)
        for _ in range(self.choose(1, 2, 3)):
            if self.parked[queue]:
                return
            plan = self.model.pull(queue, 1, self.now)
            deliveries = self.call("pull", PullRequest(queue, 1, "w", LEASE_MS, session="s9"))
            self.absorb(queue, deliveries, plan, LEASE_MS, "s9")
            assert self.call("release", "s9") == self.model.release("s9", self.now)
            self.settle()
            if wait:
                self.pass_time(12_000)

    def wait(self) -> None:
        """Wait for a job's end."""
        id = self.some_id()
        job = self.model.jobs.get(id)
        answer = self.broker.wait(id, FOR_EVER_MS)
        if job is None:
            with pytest.raises(NotFound):
                answer.result(5)
        elif job.place in ("completed", "dead"):
            assert answer.result(5)[0] == (job.place == "completed")
        else:
            assert not answer.ready
            self.waits.setdefault(id, []).append(answer)

    def log(self) -> None:
        """Write to a job's log, or cut it."""
        id = self.some_id()
        self.lines += 1
        line = f"line {self.lines}"
        if self.one_in(5):
            keep = self.choose(0, 2)
            self.agree(self.call("clear_logs", id, keep), lambda: self.model.clear_logs(id, keep))
        else:
            self.agree(self.call("add_log", id, line, "info"), lambda: self.model.add_log(id, line))

    def webhooks(self) -> None:
        """Register, switch, count or forget a webhook."""
        id, hooks = self.choose(*HOOKS), self.model.webhooks
        verb = self.choose("add", "switch", "count", "count", "forget")
        known = hooks.get(id)
        if verb == "add":
            if known is None:
                hook = Webhook(id, "https://example.com/", ("job.completed",), None, "secret", self.now)
                assert self.call("add_webhook", hook) is None
                hooks[id] = (True, 0, 0)
        elif verb == "switch":
            enabled = self.one_in(2)
            assert isinstance(self.call("set_webhook_enabled", id, enabled), NotFound) is (known is None)
            if known is not None:
                hooks[id] = (enabled, *known[1:])
        elif verb == "count":
            assert self.call("tally_webhooks", [WebhookTally(id, 2, 1, self.now)]) is None
            if known is not None:
                hooks[id] = (known[0], known[1] + 2, known[2] + 1)
        else:
            assert isinstance(self.call("remove_webhook", id), NotFound) is (known is None)
            hooks.pop(id, None)
        self.settle()

    # -- time -----------------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        self.pass_time(self.choose(1_000, 1_000, 2_000, 4_000, 12_000, 31_000, 120_000))

    def pass_time(self, ms: int) -> None:
        """Move the clock: what becomes due fires, once each, and nothing else."""
        self.clock.advance(ms)
        self.fire()

    def fire(self) -> None:
        events: list[Event] = []
        stop = self.broker.subscribe(events.append)
        self.broker.run_due()
        stop()
        for name in QUEUES:
            # A pull for nothing looks for what has expired or become due, so that it happens at a known time.
            self.broker.pull(PullRequest(name, 0)).result(5)
            self.broker.counts(name).result(5)
        due = self.model.due(self.now)
        made: dict[str, list[str]] = {}
        fired: dict[str, str] = {}
        pending = dict(due)
        for event in events:
            id = event.job_id
            if event.type == "pushed":
                made.setdefault("every-" + event.queue, []).append(id)
                self.ids.append(id)
            elif event.type in ("failed", "stalled") and id in pending:
                fired[id] = pending.pop(id)
        for id, kind in pending.items():
            silent = self.model.jobs[id].of_schedule and kind != "timeout"
            assert silent, f"the {kind} of {id} has not fired"
        for id, kind in [*fired.items(), *pending.items()]:
            self.model.fire(id, kind, self.now)
        for event in events:
            if event.type == "stalled":
                assert event.job_id in due, f"{event.job_id} stalled before its time"
        told = Counter((event.type, event.job_id) for event in events)
        for id, kind in fired.items():
            assert told["failed" if kind == "timeout" else "stalled", id] == 1, f"the {kind} of {id} fired twice"
        self.absorb_choices()

        self.model.pass_time(self.now, made)
        assert not any(made.values()), f"jobs came from nowhere: {made}"
        self.settle()

    # -- control --------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        queue = self.some_queue()
        assert self.call("pause", queue) is None
        self.model.queue(queue).paused = True
        self.settle()

    def resume(self) -> None:
        for queue in QUEUES:
            assert self.call("resume", queue) is None
            self.model.queue(queue).paused = False
            self.settle()
            self.broker.pull(PullRequest(queue, 0)).result(5)
            self.model.expire(queue, self.now)
        self.settle()

    def by_id(self) -> None:
        model, now = self.model, self.now
        verb = self.choose("cancel", "promote", "discard", "move_to_wait", "change_delay", "change_priority", "park")
        if verb == "cancel":
            id = self.in_place(None, "ready", "gated", "parked")
            self.agree(self.call("cancel", id), lambda: model.cancel(id))
        elif verb == "promote":
            id = self.in_place(None, "ready")
            self.agree(self.call("promote", id), lambda: model.promote(id, now))
        elif verb == "change_priority":
            id, priority, lifo = self.in_place(None, "ready"), self.choose(-2, 0, 1, 6), self.choose(None, False, True)
            self.agree(
                self.call("change_priority", id, priority, lifo),
                lambda: model.change_priority(id, priority, lifo, now),
            )
        else:
            id, token = self.some_delivery() if self.one_in(2) else (self.in_place(None, "ready", "dead"), None)
            token = self.some_token(token)
            if verb == "discard":
                self.agree(self.call("discard", id, token), lambda: model.discard(id, token, now))
            elif verb == "move_to_wait":
                self.agree(self.call("move_to_wait", id, token), lambda: model.move_to_wait(id, token, now))
            elif verb == "change_delay":
                delay = self.choose(0, 1_000, 10_000)
                self.agree(
                    self.call("change_delay", id, delay, token), lambda: model.change_delay(id, delay, token, now)
                )
            elif id in model.jobs and model.jobs[id].group is None:
                self.agree(
                    self.call("move_to_waiting_children", id, token),
                    lambda: model.move_to_waiting_children(id, token),
                )

    def promote_jobs(self) -> None:
        queue, count = self.some_queue(), self.choose(None, 1, 2)
        self.agree(self.call("promote_jobs", queue, count), lambda: self.model.promote_jobs(queue, count, self.now))

    def dead_letters(self) -> None:
        """Retry or remove dead letters."""
        queue, model = self.some_queue(), self.model
        letters = model.dead_letters(queue)
        id = self.in_place(queue, "dead")
        verb = self.choose("one", "one", "all", "remove", "purge")
        if verb == "one":
            self.agree(
                self.call("retry_dead_letters", queue, id), lambda: int(id in letters and model.revive(id, self.now))
            )
        elif verb == "all":
            self.agree(
                self.call("retry_dead_letters", queue), lambda: sum(model.revive(id, self.now) for id in letters)
            )
        elif verb == "remove":
            self.agree(
                self.call("remove_dead_letter", queue, id), lambda: id in letters and model.remove_dead_letter(id)
            )
        elif self.one_in(3):
            self.agree(
                self.call("purge_dead_letters", queue), lambda: sum(model.remove_dead_letter(id) for id in letters)
            )

    def retry_completed(self) -> None:
        queue = self.some_queue()
        id = self.in_place(queue, "completed")
        job = self.model.jobs.get(id)
        if job is not None and job.queue == queue:
            self.agree(self.call("retry_completed", queue, id), lambda: int(self.model.retry_completed(id, self.now)))

    def keys(self) -> None:
        """Look a deduplication key up, or free it."""
        queue, key = self.some_queue(), self.choose(*KEYS)
        assert self.call("key_owner", queue, key) == self.model.key_owner(queue, key, self.now)
        if self.one_in(4):
            known = self.model.queues[queue].keys if queue in self.model.queues else {}
            if key in known and self.model.key_owner(queue, key, self.now) is None:
                del known[key]
            self.agree(self.call("remove_key", queue, key), lambda: int(known.pop(key, None) is not None))

    def limits(self) -> None:
        """Set or lift a queue's rate or concurrency limit."""
        queue = self.some_queue()
        state = self.model.queue(queue)
        verb = self.choose("rate", "no rate", "concurrency", "no concurrency")
        if verb == "rate":
            limit, ttl = self.choose(2, 4), self.choose(None, 10_000, 60_000)
            assert self.call("set_rate_limit", queue, limit, 8_000, ttl) is None
            state.rate = ModelRate(limit, 8_000, self.now + ttl if ttl else None, float(limit), self.now)
        elif verb == "no rate":
            self.call("clear_rate_limit", queue)
            state.rate = None
        elif verb == "concurrency":
            limit = self.choose(1, 2, 4)
            assert self.call("set_concurrency", queue, limit) is None
            if state.concurrency is None:
                state.slots = 0
            state.concurrency = limit
        else:
            self.call("clear_concurrency", queue)
            state.concurrency = None
        self.settle()

    def groups(self) -> None:
        """Set or lift what holds for one group."""
        queue, id = self.some_queue(), self.choose(*GROUPS)
        group = self.model.queue(queue).group(id)
        verb = self.choose("pause", "resume", "resume", "concurrency", "rate", "block", "lift")
        if verb == "pause":
            assert self.call("pause_group", queue, id) is not group.paused
            group.paused = True
        elif verb == "resume":
            assert self.call("resume_group", queue, id) is group.paused
            group.paused = False
        elif verb == "concurrency":
            group.concurrency = self.choose(1, 3)
            self.call("set_group_concurrency", queue, id, group.concurrency)
        elif verb == "rate":
            group.rate, group.window = (self.choose(1, 3), self.choose(5_000, 15_000)), None
            self.call("set_group_rate_limit", queue, id, *group.rate)
        elif verb == "block":
            duration = self.choose(2_000, 9_000)
            self.call("rate_limit_group", queue, id, duration)
            group.blocked_until = self.now + duration
        else:
            assert self.call("remove_group_rate_limit", queue, id) is (group.rate is not None)
            assert self.call("remove_group_concurrency", queue, id) is (group.concurrency is not None)
            if group.rate is not None:
                group.rate = group.window = None
            group.concurrency = None
        self.settle()

    def policies(self) -> None:
        """Set a queue's policy on stalls or dead letters."""
        queue = self.some_queue()
        if self.one_in(2):
            policy = self.model.queue(queue)
            policy.stall_enabled, policy.max_stalls = not self.one_in(4), self.choose(0, 1, 2, 3)
            policy.stall_interval_ms, policy.grace_ms = 20_000, self.choose(1_000, 5_000)
            config = StallConfig(policy.stall_enabled, 20_000, policy.max_stalls, policy.grace_ms)
            assert self.call("set_stall_config", queue, config) is None
        else:
            auto, age, most = not self.one_in(3), self.choose(None, 30_000), self.choose(3, 10_000)
            assert self.call("set_dlq_config", queue, DlqConfig(auto, 6_000, 3, age, most)) is None
            self.model.set_letters(queue, auto, 6_000, age, most)
        self.fire()

    def schedule(self) -> None:
        """Set or remove a schedule."""
        name = self.choose(*SCHEDULES)
        if self.one_in(3):
            done = self.call("remove_schedule", name)
            assert isinstance(done, NotFound) is (self.model.schedules.pop(name, None) is None)
            return
        if name in self.model.schedules:
            return
        every, limit, aligned = self.choose(5_000, 30_000), self.choose(None, 2), self.one_in(2)
        overlap, skip, immediately = self.one_in(2), self.one_in(2), self.one_in(2)
        request = {
            "name": name,
            "queue": SCHEDULES[name],
            **({"schedule": f"*/{every // 1_000} * * * * *"} if aligned else {"repeatEvery": every}),
            "maxLimit": limit,
            "preventOverlap": overlap,
            "skipMissedOnRestart": skip,
            "immediately": immediately,
        }
        entry = self.call("upsert_schedule", request)
        assert not isinstance(entry, CommandError), f"{entry!r}"
        schedule = self.model.schedules[name] = ModelSchedule(
            SCHEDULES[name], every, self.now, limit, overlap, skip, immediately, aligned=aligned
        )
        if not immediately:
            schedule.next_run = schedule.after(self.now, self.now)
        if overlap:
            owner = self.model.queue(SCHEDULES[name]).keys.get("cron:" + name)
            job = self.model.jobs.get(owner[0]) if owner is not None else None
            if job is not None and job.place in ("ready", "gated"):
                self.model.cancel(job.id)
        self.fire()

    def clear(self) -> None:
        """Remove many jobs."""
        queue, model = self.some_queue(), self.model
        verb = self.choose("drain", "clean", "clean", "clean", "obliterate")
        if verb == "drain":
            self.agree(self.call("drain_queue", queue), lambda: model.drain(queue))
        elif verb == "clean":
            grace, limit = self.choose(0, 5_000, 60_000), self.choose(1, 10, 100)
            state = self.choose("waiting", "completed", "failed")
            self.agree(
                self.call("clean", queue, grace, state, limit),
                lambda: model.clean(queue, grace, state, limit, self.now),
            )
        elif self.one_in(2):
            self.agree(self.call("obliterate", queue), lambda: model.obliterate(queue))

    # -- restarts -------------------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """An orderly stop and start."""
        self.broker.close().result(5)
        for waiting in self.parked.values():
            assert [parked[0].result(5) for parked in waiting] == [[]] * len(waiting)
            waiting.clear()
        self.waits.clear()
        self.model.restart(self.now)
        self.started()

    def crash(self) -> None:
        """The process dies, sometimes again while the next one starts, and another goes on with what was committed."""
        for waiting in self.parked.values():
            for parked in waiting:
                parked[0].cancel()
            waiting.clear()
        self.settle()
        self.waits.clear()
        committed, commits = self.model.copy(), self.journal.commits
        for _ in range(self.choose(0, 0, 1, 2)):
            self.choose(self.push, self.push_grouped, self.push_unique, self.renew)()
            if self.journal.commits != commits:
                committed, commits = self.model.copy(), self.journal.commits
        self.model = committed
        self.journal = self.journal.image()
        self.clock.advance(self.choose(0, 0, 3_000, 60_000))
        self.model.crash(self.now)
        # Which letter is the oldest beyond a bound may depend on which of two starts looks first.
        unbounded = all(queue.max_letters > MANY_JOBS for queue in self.model.queues.values())
        if self.one_in(4) and unbounded:
            journal = CrashingJournal()
            journal.__dict__.update({**self.journal.__dict__, "after_first": None})
            self.journal = journal
            self.opened()
            if journal.after_first is not None:
                # The second start finds the interrupted jobs among those that wait.
                undecided = dict(self.model.undecided)
                self.model.restart(self.now)
                self.model.undecided = undecided
            self.journal = (journal.after_first or journal).image()
        self.started()

    def refused_commits(self) -> None:
        """The storage refuses commits for a while: nobody is told what is not written, and nothing is lost but by a crash."""
        if any(self.parked.values()) or self.waits or self.model.due(self.now + 400):
            return
        self.settle()
        committed = self.model.copy()
        self.journal.fail_commits = self.choose(1, 2)
        queue = self.some_queue()
        model = ModelJob("", queue, created_at=self.now, run_at=self.now)
        pushed: Answer[Any] = self.broker.push(queue, [JobSpec("n", PAYLOAD, DURABLE_OPTIONS)])
        id, token = self.some_delivery()
        held = self.model.jobs.get(id)
        if held is None or held.place != "active" or held.token != token or held.repeat_ms is not None:
            id, token = "never-existed", None
        acked: Answer[Any] = self.broker.ack([Ack(id, token, PAYLOAD)])
        self.broker.run_due()
        assert not pushed.ready, "an add is answered that is not written"
        assert self.broker.health().degraded
        if self.one_in(2):
            self.model = committed
            self.journal = self.journal.image()
            self.clock.advance(1_000)
            self.model.crash(self.now)
            self.started()
            return
        for wait_ms in (200, 200, 600):
            self.clock.advance(wait_ms)
            if wait_ms < 600:
                self.broker.run_due()
        assert not self.broker.health().degraded
        now = self.now - 1_000
        self.model.push([model], pushed.result(5).ids, now)
        self.ids += pushed.result(5).ids
        verdicts = self.model.ack([(id, token, PAYLOAD, False)], now)
        done = acked.result(5)
        assert ["absent" if at in done.errors else outcome for at, outcome in enumerate(done.outcomes)] == verdicts
        self.fire()

    def started(self) -> None:
        self.broker = self.opened()
        self.model.ended.clear()
        self.absorb_choices()
        self.fire()

    # -- what always holds ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Compare everything that queries show."""
        model, broker, now = self.model, self.broker, self.now
        ids = list(dict.fromkeys([*self.ids, *model.jobs]))
        expected = [model.jobs[id].state(now) if id in model.jobs else "unknown" for id in ids]
        states = broker.states(ids).result(5)
        assert states == expected, [row for row in zip(ids, states, expected, strict=True) if row[1] != row[2]]
        for name in QUEUES:
            counts = broker.counts(name).result(5)
            shown = {
                "waiting": counts.waiting,
                "prioritized": counts.prioritized,
                "delayed": counts.delayed,
                "active": counts.active,
                "completed": counts.completed,
                "failed": counts.failed,
                "waiting-children": counts.waiting_children,
                "paused": counts.paused,
            }
            assert {state: number for state, number in shown.items() if number} == model.counts(name, now)
            views = broker.jobs(name, (), Page(0, None)).result(5)
            jobs = sorted((job for job in model.jobs.values() if job.queue == name), key=lambda j: (j.created_at, j.id))
            assert [view.job.id for view in views] == [job.id for job in jobs]
            for view, job in zip(views, jobs, strict=True):
                shown_job = (view.job.run_at, view.job.priority, view.job.attempts)
                known = (job.run_at, job.priority, job.attempts)
                assert shown_job == known, f"{job.id} is {shown_job} instead of {known}: {job}"
            entries = broker.dead_letters(name, None, None).result(5)
            assert [entry.job.id for entry in entries] == model.dead_letters(name)
            for entry in entries:
                letter = (entry.entered_at, entry.expires_at, entry.retry_count, entry.next_retry_at)
                assert letter == model.jobs[entry.job.id].letter
            for view, job in zip(views, jobs, strict=True):
                # A job that was given parents or children has them in its payload, too.
                if job.data is not None and view.job.data is not None and len(view.job.data) == len(job.data):
                    assert view.job.data == job.data, f"{job.id} has {view.job.data!r} instead of {job.data!r}"
            for key in KEYS:
                assert broker.key_owner(name, key).result(5) == model.key_owner(name, key, now)
            for group in GROUPS:
                assert broker.group_jobs_count(name, group).result(5) == model.queued_of(name, group)
                assert broker.group_active_count(name, group).result(5) == model.active_of(name, group)
        done = [job for job in model.jobs.values() if job.place == "completed"]
        assert broker.results([job.id for job in done]).result(5) == [job.result for job in done]
        runs = {entry.definition.name: (entry.next_run, entry.executions) for entry in broker.schedules().result(5)}
        for job in model.jobs.values():
            lines = tuple(entry.message for entry in broker.logs(job.id).result(5))
            assert lines == job.logs, f"the log of {job.id} is {lines} instead of {job.logs}"
        hooks = {
            hook.id: (hook.enabled, hook.success_count, hook.failure_count) for hook in broker.webhooks().result(5)
        }
        assert hooks == model.webhooks
        check_broker(broker)
        self.look_at_rows()
        assert runs == {name: (schedule.next_run, schedule.runs) for name, schedule in model.schedules.items()}

    def look_at_rows(self) -> None:
        """What is stored beside jobs is what the engine knows, no row too many."""
        engine = self.broker._engine
        if engine.marks.pending:
            return
        windows, rates, policies = set(), set(), set()
        for name, queue in engine.queues.items():
            windows |= {
                (name, key, owner.job_id, owner.expires_at) for key, owner in queue.unique.items() if owner.window
            }
            groups = queue.groups.by_id.values() if queue.groups is not None else ()
            rates |= {(name, group.id) for group in groups if group.noted}
            policies |= {(name, group.id) for group in groups if group.has_policy}
            if queue.rate is not None:
                rates |= {(name, "")} & {
                    row[:2] for row in self.journal.load_table(RATE_TABLE)
                }  # one from its first delivery on
        assert set(self.journal.load_table(WINDOW_TABLE)) == windows
        assert {row[:2] for row in self.journal.load_table(RATE_TABLE)} == rates
        assert {row[:2] for row in self.journal.load_table(GROUP_TABLE)} == policies
        assert {row[0] for row in self.journal.load_table(LOG_TABLE)} == engine.logged

    # -- steps --------------------------------------------------------------------------------------------------------------

    def step(self, verb: str, seed: int) -> None:
        """Make one step of the kind ``verb``, its details chosen by ``seed``."""
        self.random.seed(seed)
        self._step(verb)

    def _step(self, verb: str) -> None:
        getattr(self, verb)()
        self.steps += 1
        if self.steps % LOOK_EVERY == 0:
            self.look()

    def next_step(self, seed: int) -> None:
        """Make one step of a kind that ``seed`` chooses."""
        self.random.seed(seed)
        self._step("clear" if len(self.model.jobs) > MANY_JOBS else self.choose(*STEPS))


#: Kinds of steps with how often each comes.
VERBS = {
    "push": 10,
    "push_grouped": 7,
    "push_unique": 5,
    "push_debounced": 4,
    "push_repeated": 2,
    "push_child": 2,
    "push_flow": 2,
    "link": 2,
    "pull": 14,
    "park": 4,
    "unpark": 1,
    "deliver_to_nobody": 1,
    "ack": 10,
    "fail": 7,
    "renew": 4,
    "lose_a_connection": 2,
    "crash_loop": 1,
    "wait": 1,
    "log": 2,
    "webhooks": 1,
    "advance": 9,
    "pause": 1,
    "resume": 2,
    "by_id": 7,
    "promote_jobs": 1,
    "dead_letters": 3,
    "retry_completed": 1,
    "keys": 2,
    "limits": 2,
    "groups": 4,
    "policies": 1,
    "schedule": 1,
    "clear": 2,
    "restart": 1,
    "crash": 1,
    "refused_commits": 1,
}
STEPS = tuple(verb for verb, weight in VERBS.items() for _ in range(weight))


# -- the plain driver -----------------------------------------------------------------------------------------------------------


def make(seed: int, steps: Iterable[int]) -> tuple[int, str] | None:
    """Make the steps of these numbers of run ``seed`` on a new broker. The number of the one that failed and how, or None."""
    number = -1
    try:
        driver = Driver(FEW_COMPLETED if seed % 2 else 50_000)
        for number in steps:
            driver.next_step(seed * 1_000_000 + number)
        driver.look()
    except Exception:
        return number, traceback.format_exc()
    return None


def shortened(seed: int, steps: list[int], seconds: float) -> list[int]:
    """Leave out steps as long as what remains still fails, for so many seconds of computing."""
    end = time.process_time() + seconds
    size = len(steps) // 2
    while size and time.process_time() < end:
        at = 0
        while at < len(steps) and time.process_time() < end:
            without = steps[:at] + steps[at + size :]
            failure = make(seed, without)
            if failure is None:
                at += size
            else:
                steps = without[: without.index(failure[0]) + 1] if failure[0] in without else without
        size //= 2
    return steps


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as text: ``0-3,7``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _numbers(ranges: str) -> list[int]:
    """The numbers that :func:`_ranges` stands for."""
    parts = [part.partition("-") for part in ranges.split(",")]
    return [number for first, _, last in parts for number in range(int(first), int(last or first) + 1)]


def search(seeds: Iterable[int], steps: int) -> None:
    """Make ``steps`` steps on a new broker for each seed. Fails with the command that repeats the shortest failure found."""
    for seed in seeds:
        failure = make(seed, range(steps))
        if failure is not None:
            short = shortened(seed, list(range(failure[0] + 1)), 20)
            again = make(seed, short)
            wanted = f"{seed}:{_ranges(short)}"
            pytest.fail(
                f"{(again or failure)[1]}\nRepeat with\n"
                f"    BUNQUEUE_TEST_STEPS={wanted} python -m pytest {__file__} -k repeated\n",
                pytrace=False,
            )


@pytest.mark.timeout(600)
def test_the_engine_agrees_with_the_model() -> None:
    """100,000 steps."""
    search(range(200), RUN_STEPS)


def test_a_failure_is_repeated() -> None:
    """Makes the steps that a failure has printed, and some others while there is none."""
    seed, _, steps = os.environ.get("BUNQUEUE_TEST_STEPS", "0:0-24,30,40-42").partition(":")
    numbers = _numbers(steps)
    assert _ranges(numbers) == steps
    failure = make(int(seed), numbers)
    assert failure is None, failure[1]


@pytest.mark.campaign
@pytest.mark.timeout(0)
def test_the_engine_agrees_with_the_model_for_long() -> None:
    """Ten minutes of runs that no other campaign has made; ``BUNQUEUE_TEST_SEED`` begins at another."""
    end = time.monotonic() + float(os.environ.get("BUNQUEUE_TEST_SECONDS", "600"))
    seed = int(os.environ.get("BUNQUEUE_TEST_SEED", str(time.time_ns() % 10**9 + 1_000)))
    while time.monotonic() < end:
        search([seed], 4 * RUN_STEPS)
        seed += 1


# -- hypothesis -------------------------------------------------------------------------------------------------------------------


class QueueMachine(RuleBasedStateMachine):
    """The same steps, chosen and shortened by hypothesis."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()

    def teardown(self) -> None:
        self.driver.look()


def _rule(verb: str) -> Any:
    def step(self: QueueMachine, seed: int) -> None:
        self.driver.step(verb, seed)

    step.__name__ = verb
    return rule(seed=st.integers(0, 2**20))(step)


class EveryVerb(QueueMachine):
    """A rule for each verb."""

    for _verb in VERBS:
        locals()[_verb] = _rule(_verb)
    del _verb


def explore(examples: int, steps: int) -> None:
    """Run the machine; raises with the shortest sequence of steps after which broker and model differ."""
    run_state_machine_as_test(
        EveryVerb,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(300)
def test_hypothesis_finds_no_difference() -> None:
    explore(examples=80, steps=50)


@pytest.mark.campaign
@pytest.mark.timeout(0)
def test_hypothesis_finds_no_difference_for_long() -> None:
    explore(examples=3_000, steps=200)
