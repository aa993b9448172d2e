"""Every counter and index of the engine, recomputed after each of thousands of random calls of every verb, with crashes in between.

The state machine beside this file knows what *should* happen for a part of the verbs; this one knows nothing of results, but calls
everything, on groups, flows, limits, deduplication and debounce too, with bounds so small that they are reached.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from bunqueue_core.answer import Answer
from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.broker.protocol import Capabilities
from bunqueue_core.model.errors import CommandError
from bunqueue_core.model.job import KEEP, REMOVE, JobOptions, JobSpec, Retention
from bunqueue_core.model.requests import (
    Ack,
    Delivery,
    DlqConfig,
    Failure,
    FlowJob,
    GroupDefaults,
    Page,
    PullRequest,
    Renewal,
    StallConfig,
)
from bunqueue_core.model.rules import BACKOFF_STRATEGIES
from bunqueue_core.plugins.drivers import JournalSettings
from bunqueue_core.testing import DictJournal, SettableClock, deterministic_ports
from bunqueue_core.testing.conformance.harness import pack
from bunqueue_core.testing.invariants import check_broker

QUEUES = ("a", "b", "c")
GROUPS = ("g1", "g2", "g3")
KEYS = ("k1", "k2", "cron:x")
CUSTOM = tuple(f"id{number}" for number in range(8))
HOUR = 3_600_000


class Attack:
    """A broker under random calls."""

    def __init__(self, seed: int, *, persistent: bool, max_completed: int) -> None:
        self.dice = random.Random(seed)
        self.clock = SettableClock()
        self.ports = deterministic_ports(self.clock, seed)
        self.journal = DictJournal() if persistent else None
        self.max_completed = max_completed
        self.ids: list[str] = list(CUSTOM)
        self.held: list[tuple[str, str | None]] = []
        self.parked: list[Answer[list[Delivery]]] = []
        self.pending: list[Answer[Any]] = []
        self.calls = 0
        self.broker = self.opened()

    def opened(self) -> LocalBroker:
        broker = LocalBroker(
            self.journal,
            ports=self.ports,
            capabilities=Capabilities(driver="dict", persistent=self.journal is not None),
            settings=JournalSettings(
                driver="dict", max_completed_jobs=self.max_completed, completed_retention_ms=10 * HOUR
            ),
            strategies=BACKOFF_STRATEGIES,
            log=lambda *_, **__: None,
            role="manual",
        )
        broker.start().result(5)
        broker.subscribe(lambda event: None)
        return broker

    # -- choosing -----------------------------------------------------------------------------------------------------

    def maybe(self, value: Any, part: float = 0.3, otherwise: Any = None) -> Any:
        return value if self.dice.random() < part else otherwise

    @property
    def queue(self) -> str:
        return self.dice.choice(QUEUES)

    @property
    def id(self) -> str:
        recent = self.ids[-20:] if self.dice.random() < 0.7 else self.ids
        return self.dice.choice(recent)

    @property
    def delivery(self) -> tuple[str, str | None]:
        if not self.held or self.dice.random() < 0.05:
            return self.id, self.maybe("wrong")
        id, token = self.dice.choice(self.held[-12:])
        return id, self.dice.choice((token, token, token, token, None, "wrong"))

    @property
    def token(self) -> str | None:
        return self.maybe(self.delivery[1], 0.5)

    def retention(self) -> Retention:
        return self.dice.choice(
            (KEEP, KEEP, KEEP, REMOVE, Retention(count=3), Retention(age_ms=5_000), Retention(age_ms=60_000, count=5))
        )

    def options(self) -> JobOptions:
        dice = self.dice
        policy = dice.choice((None, None, "fail", "continue", "ignore", "remove"))
        return JobOptions(
            max_attempts=dice.randint(1, 3),
            backoff_ms=dice.choice((0, 500, 5_000)),
            ttl_ms=self.maybe(dice.choice((1_000, 30_000)), 0.1),
            timeout_ms=self.maybe(dice.choice((3_000, 20_000)), 0.15),
            stall_timeout_ms=self.maybe(4_000, 0.1),
            lifo=dice.random() < 0.15,
            remove_on_complete=self.retention(),
            remove_on_fail=self.retention(),
            keep_logs=self.maybe(2, 0.1),
            fail_parent_on_failure=policy == "fail",
            continue_parent_on_failure=policy == "continue",
            ignore_dependency_on_failure=policy == "ignore",
            remove_dependency_on_failure=policy == "remove",
            dedup_ttl_ms=self.maybe(dice.choice((0, 2_000, 30_000)), 0.4),
            dedup_extend=dice.random() < 0.2,
            dedup_replace=dice.random() < 0.2,
            dedup_scope=self.maybe(dice.choice(("waiting", "unfinished", "window")), 0.4),
            debounce_id=self.maybe(dice.choice(("d1", "d2")), 0.1),
            debounce_ttl_ms=self.maybe(3_000, 0.7),
            debounce_max_wait_ms=self.maybe(8_000, 0.5),
            durable=dice.random() < 0.3,
        )

    def spec(self, queue: str, members: list[str]) -> JobSpec:
        dice = self.dice
        if dice.random() < 0.25:
            return JobSpec("n", pack({"n": self.calls}), priority=dice.choice((0, 0, 3)), delay=dice.choice((0, 2_000)))
        custom = self.maybe(dice.choice(CUSTOM), 0.25)
        parent = self.maybe(self.id, 0.15)
        linked = parent is not None and dice.random() < 0.8
        # Only ids that are there, or the push is refused nearly always.
        known = self.broker._engine.jobs
        wanted = [id for id in (self.id, self.id) if id in known and id != custom]
        depends_on = tuple(dict.fromkeys(wanted)) if dice.random() < 0.2 else ()
        if members and dice.random() < 0.3 and members[0] != custom:
            depends_on = (*depends_on, members[0])
        job = known.get(parent) if parent is not None else None
        return JobSpec(
            "n",
            pack({"__parentId": parent, "__parentQueue": job.queue} if linked and job is not None else {"x": 1}),
            self.options(),
            priority=dice.choice((-2, 0, 0, 0, 1, 7)),
            delay=dice.choice((0, 0, 0, 1_000, 15_000)),
            timestamp=self.maybe(self.clock.now_ms - dice.randrange(HOUR), 0.1),
            custom_id=custom,
            unique_key=self.maybe(dice.choice(KEYS), 0.3),
            group_id=self.maybe(dice.choice(GROUPS), 0.35),
            group_max_size=self.maybe(dice.randint(1, 5), 0.2),
            depends_on=depends_on,
            parent_id=parent,
            parent_queue=job.queue if linked and job is not None else None,
            children_ids=(self.id,) if dice.random() < 0.05 else (),
        )

    # -- calls --------------------------------------------------------------------------------------------------------

    def push(self) -> Answer[Any]:
        queue = self.queue
        count = self.dice.choice((1, 1, 1, 2, 5))
        members = [self.dice.choice(CUSTOM)] if count > 1 else []
        specs = [self.spec(queue, members) for _ in range(count)]
        if members:
            specs.insert(self.dice.randrange(count), JobSpec("m", pack(1), self.options(), custom_id=members[0]))
        answer = self.broker.push(queue, specs)
        if answer.ready and answer.error is None:
            self.ids += answer.value.ids
        else:
            answer.add_callback(lambda done: self.ids.extend(done.value.ids) if done.error is None else None)
        return answer

    def push_flow(self) -> Answer[Any]:
        dice = self.dice
        base = f"f{self.calls}-"
        children = [f"{base}{number}" for number in range(dice.randint(1, 4))]
        parent, queue = f"{base}p", self.queue
        top = JobSpec("p", pack({"__childrenIds": children}), self.options())
        top.depends_on, top.children_ids = tuple(children), tuple(children)
        members = [FlowJob(parent, queue, top)]
        for id in children:
            child = JobSpec("c", pack({"__parentId": parent, "__parentQueue": queue}), self.options(), parent_id=parent)
            child.group_id = self.maybe(dice.choice(GROUPS))
            members.append(FlowJob(id, self.queue, child))
        self.ids += [parent, *children]
        return self.broker.push_flow(members)

    def defaults(self) -> GroupDefaults | None:
        dice = self.dice
        if dice.random() < 0.5:
            return None
        limit = self.maybe(dice.randint(1, 2), 0.5)
        return GroupDefaults(
            concurrency=self.maybe(dice.randint(1, 2), 0.5),
            limit_max=limit,
            limit_duration_ms=None if limit is None else 4_000,
            affine=dice.random() < 0.2,
            affinity=self.maybe(dice.choice(GROUPS), 0.7),
        )

    def pull(self) -> Answer[Any]:
        dice = self.dice
        wait = self.maybe(dice.choice((5_000, 60_000)), 0.3, 0)
        request = PullRequest(
            self.queue,
            dice.randint(1, 4),
            self.maybe("w", 0.8),
            dice.choice((0, 5_000, 30_000)),
            wait,
            self.maybe(dice.choice(("s1", "s2")), 0.5),
            self.defaults(),
        )
        answer = self.broker.pull(request)
        if not answer.ready:
            self.parked.append(answer)
        answer.add_callback(self.took)
        return answer

    def took(self, answer: Answer[list[Delivery]]) -> None:
        if answer.error is None:
            self.held += [(delivery.job.id, delivery.token) for delivery in answer.value]

    def cancel_pull(self) -> None:
        if self.parked:
            self.parked.pop(self.dice.randrange(len(self.parked))).cancel()

    def ack(self) -> Answer[Any]:
        acks = []
        for _ in range(self.dice.choice((1, 1, 3))):
            id, token = self.delivery
            acks.append(Ack(id, token, self.maybe(pack(1), 0.6), self.dice.random() < 0.1))
        return self.broker.ack(acks)

    def fail(self) -> Answer[Any]:
        failures = []
        for _ in range(self.dice.choice((1, 1, 3))):
            id, token = self.delivery
            unrecoverable, remove = self.dice.random() < 0.2, self.dice.random() < 0.1
            failures.append(Failure(id, self.maybe("e", 0.8), token, self.maybe(["at x"]), unrecoverable, remove))
        return self.broker.fail(failures)

    def renew(self) -> Answer[Any]:
        id, token = self.delivery
        if self.dice.random() < 0.5:
            return self.broker.heartbeat([Renewal(id, token)])
        return self.broker.extend([Renewal(id, token, self.maybe(self.dice.choice((0, 2_000, HOUR))))])

    def configure(self) -> Answer[Any]:
        dice, broker, queue, group = self.dice, self.broker, self.queue, self.dice.choice(GROUPS)
        return dice.choice(
            (
                lambda: broker.pause(queue),
                lambda: broker.resume(queue),
                lambda: broker.resume(queue),
                lambda: broker.set_rate_limit(queue, dice.choice((1, 3, 0)), 2_000, self.maybe(5_000)),
                lambda: broker.clear_rate_limit(queue),
                lambda: broker.set_concurrency(queue, dice.choice((1, 2, 5))),
                lambda: broker.clear_concurrency(queue),
                lambda: broker.set_group_rate_limit(queue, group, dice.randint(1, 3), 3_000),
                lambda: broker.remove_group_rate_limit(queue, group),
                lambda: broker.set_group_concurrency(queue, group, dice.randint(1, 2)),
                lambda: broker.remove_group_concurrency(queue, group),
                lambda: broker.pause_group(queue, group),
                lambda: broker.resume_group(queue, group),
                lambda: broker.rate_limit_group(queue, group, dice.choice((1, 3_000, 60_000))),
                lambda: broker.set_stall_config(
                    queue, StallConfig(dice.random() < 0.8, 3_000, dice.randint(0, 3), 500)
                ),
                lambda: broker.set_dlq_config(
                    queue,
                    DlqConfig(
                        dice.random() < 0.5,
                        dice.choice((0, 2_000)),
                        dice.randint(0, 3),
                        self.maybe(20_000, 0.5),
                        dice.choice((2, 50)),
                    ),
                ),
            )
        )()

    def steer(self) -> Answer[Any]:
        dice, broker, queue, id, token = self.dice, self.broker, self.queue, self.id, self.token
        if dice.random() < 0.4:
            id, token = self.delivery
        return dice.choice(
            (
                lambda: broker.cancel(id),
                lambda: broker.discard(id, token),
                lambda: broker.promote(id),
                lambda: broker.promote_jobs(queue, self.maybe(2, 0.5)),
                lambda: broker.change_delay(id, dice.choice((0, 1_000, 30_000)), token),
                lambda: broker.move_to_wait(id, token),
                lambda: broker.move_to_waiting_children(id, token),
                lambda: broker.change_priority(id, dice.choice((-1, 0, 4)), self.maybe(dice.random() < 0.5)),
                lambda: broker.update_data(id, pack({"u": 1})),
                lambda: broker.retry_completed(queue, self.maybe(id, 0.5), self.maybe(2)),
                lambda: broker.remove_key(queue, dice.choice(KEYS)),
                lambda: broker.remove_job_key(id),
                lambda: broker.progress(id, dice.randrange(100), self.maybe("m"), dice.random() < 0.5),
                lambda: broker.add_log(id, "line", "info"),
                lambda: broker.clear_logs(id, dice.choice((0, 1))),
                lambda: broker.update_parent(id, self.id),
                lambda: broker.remove_child_dependency(id),
                lambda: broker.remove_unprocessed_children(id),
                lambda: broker.retry_dead_letters(queue, self.maybe(id, 0.5), self.maybe(2)),
                lambda: broker.remove_dead_letter(queue, id),
                lambda: broker.clean(
                    queue,
                    self.maybe(dice.choice((0, 10_000)), 0.9),
                    dice.choice((None, "completed", "failed", "delayed")),
                    dice.choice((1, 3)),
                ),
            )
        )()

    def wreck(self) -> Answer[Any]:
        broker, queue = self.broker, self.queue
        return self.dice.choice(
            (
                lambda: broker.release(self.dice.choice(("s1", "s2"))),
                lambda: broker.release(self.dice.choice(("s1", "s2"))),
                lambda: broker.drain_queue(queue),
                lambda: broker.obliterate(queue),
                lambda: broker.purge_dead_letters(queue),
            )
        )()

    def break_storage(self) -> None:
        if self.journal is not None:
            self.journal.fail_commits = self.dice.randint(1, 3)

    def look(self) -> Answer[Any]:
        broker, queue, id = self.broker, self.queue, self.id
        page = Page(self.dice.choice((0, 2)), self.maybe(3, 0.7), self.dice.random() < 0.5)
        return self.dice.choice(
            (
                lambda: broker.counts(queue),
                lambda: broker.counts_per_priority(queue),
                lambda: broker.jobs(queue, self.dice.choice(((), ("completed",), ("waiting", "delayed"))), page),
                lambda: broker.job(id),
                lambda: broker.states([id, self.id]),
                lambda: broker.results([id]),
                lambda: broker.wait(id, self.dice.choice((0, 3_000))),
                lambda: broker.children_values(id),
                lambda: broker.children_failures(id, "ignore"),
                lambda: broker.queue_limits(queue),
                lambda: broker.dlq_stats(queue),
                lambda: broker.logs(id),
                lambda: broker.group_rate_limit_ttl(queue, self.dice.choice(GROUPS)),
            )
        )()

    def advance(self) -> None:
        self.clock.advance(self.dice.choice((1, 60, 700, 2_000, 6_000, 31_000)))
        if self.dice.random() < 0.01:
            self.clock.advance(self.dice.choice((HOUR, -HOUR, -2_000)))
        self.broker.run_due()

    def crash(self) -> None:
        if self.journal is None:
            return
        if self.dice.random() < 0.5:
            self.journal.fail_commits = 0
            self.broker.close().result(5)
        else:
            self.journal = self.journal.image()
        self.parked.clear()
        self.pending.clear()
        self.broker = self.opened()
        # Once more, and then nothing is different: a start that dies half-way costs nothing.
        check_broker(self.broker)

    def step(self) -> None:
        self.calls += 1
        weighted = [
            (self.push, 20),
            (self.push_flow, 3),
            (self.pull, 18),
            (self.cancel_pull, 2),
            (self.ack, 12),
            (self.fail, 9),
            (self.renew, 4),
            (self.configure, 5),
            (self.steer, 18),
            (self.wreck, 2),
            (self.look, 6),
            (self.advance, 12),
            (self.crash, 1),
            (self.break_storage, 1),
        ]
        calls, weights = zip(*weighted, strict=True)
        call = self.dice.choices(calls, weights)[0]
        done = call()
        if done is not None:
            if done.ready and done.error is not None:
                assert isinstance(done.error, CommandError), done.error
            elif not done.ready:
                self.pending.append(done)
        if self.dice.random() < 0.7:
            self.broker.run_due()
        check_broker(self.broker)

    def finish(self) -> None:
        """In the end every answer that is not a waiting pull has come."""
        if self.journal is not None:
            self.journal.fail_commits = 0
        self.broker.run_due()
        self.clock.advance(120_000)
        self.broker.run_due()
        assert all(answer.ready for answer in self.pending)
        self.broker.close().result(5)


def attack(seed: int, steps: int) -> None:
    fight = Attack(seed, persistent=seed % 3 > 0, max_completed=(5, 40)[seed % 2])
    for _ in range(steps):
        fight.step()
    fight.finish()


@pytest.mark.parametrize("seed", range(18))
def test_counters_and_indexes_never_drift(seed: int) -> None:
    attack(seed, 400)


@pytest.mark.campaign
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("seed", range(100, 160))
def test_counters_and_indexes_never_drift_in_the_long_run(seed: int) -> None:
    attack(seed, 3_000)
