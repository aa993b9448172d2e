"""What those who watch are told besides job events: by the broker itself, by commands, by workers, by the monitor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from fixtures.scripted_broker import ScriptedBroker, Sink, services_of

from bunqueue_core.answer import Answer
from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.broker.protocol import Capabilities
from bunqueue_core.broker.workers import WorkerRegistry
from bunqueue_core.commands import COMMANDS
from bunqueue_core.commands.announcing import TELLINGS
from bunqueue_core.commands.session import Session
from bunqueue_core.config.settings import MonitoringSettings
from bunqueue_core.model.errors import NotFound, StorageUnavailable
from bunqueue_core.model.job import DEFAULT_OPTIONS, Job
from bunqueue_core.model.requests import Counts, QueueSummary
from bunqueue_core.model.rules import BACKOFF_STRATEGIES
from bunqueue_core.server.http.catalogue import FAMILIES
from bunqueue_core.server.http.monitor import Monitor
from bunqueue_core.storage.memory import MemoryStorage
from bunqueue_core.testing import DictJournal, SettableClock, deterministic_ports

Told = list[tuple[str, Mapping[str, Any]]]


class House:
    """Commands on a local broker under a settable clock, watched."""

    def __init__(self, journal: DictJournal | None = None) -> None:
        self.clock = SettableClock()
        self.broker = LocalBroker(
            journal,
            ports=deterministic_ports(self.clock),
            capabilities=Capabilities("test"),
            settings=MemoryStorage(),
            strategies=BACKOFF_STRATEGIES,
            log=lambda *_, **__: None,
            role="manual",
        )
        self.broker.start().result(5)
        self.told: Told = []
        self.events: list[str] = []
        services = services_of(self.broker, clock=self.clock, sink=Sink())
        services.announce = services.workers.tell = lambda name, fields: self.told.append((name, fields))
        self.broker.has_worker = services.workers.has_active
        self.stop_watching = self.broker.subscribe_dashboard(services.announce)
        self.session = Session(services, "s1")

    def run(self, cmd: str, **request: Any) -> Any:
        reply = COMMANDS[cmd].run(self.session, {"cmd": cmd, **request})
        return reply.result(5) if isinstance(reply, Answer) else reply

    def push(self, **options: Any) -> str:
        return str(self.run("PUSH", queue="q", data=1, **options)["id"])

    def later(self, ms: int) -> None:
        self.clock.advance(ms)
        self.broker.run_due()

    def of(self, *families: str) -> Told:
        """What has been told of these families since the last look."""
        told = [(name, dict(fields)) for name, fields in self.told if name.partition(":")[0] in families]
        self.told.clear()
        return told


@pytest.fixture(params=["memory", "journal"])
def house(request: pytest.FixtureRequest) -> House:
    return House(DictJournal() if request.param == "journal" else None)


class TestTheBroker:
    def test_a_new_queue(self, house: House) -> None:
        house.push()
        house.push()
        assert house.of("queue") == [("queue:created", {"queue": "q"})]

    def test_a_job_that_outlives_its_time(self, house: House) -> None:
        id = house.push(ttl=1000)
        house.of("queue")
        house.later(1500)
        assert house.run("PULL", queue="q")["job"] is None
        assert house.of("job") == [("job:expired", {"queue": "q", "jobId": id, "ttl": 1000, "age": 1500})]

    def test_a_job_that_runs_too_long(self, house: House) -> None:
        id = house.push(timeout=1000, maxAttempts=1)
        house.run("PULL", queue="q")
        house.of("queue")
        house.later(1500)
        assert house.of("job", "dlq") == [
            ("job:timeout", {"jobId": id, "queue": "q", "timeout": 1000}),
            ("dlq:added", {"queue": "q", "jobId": id, "reason": "timeout"}),
        ]

    def test_a_lock_that_ends(self, house: House) -> None:
        id = house.push()
        token = house.run("PULL", queue="q", owner="w", lockTtl=1000)["token"]
        house.run("ExtendLock", id=id, token=token)
        house.of("queue")
        house.later(1500)
        assert house.of("job") == [("job:lock-expired", {"jobId": id, "queue": "q", "renewalCount": 1})]

    def test_a_flow(self, house: House) -> None:
        child = house.push()
        parent = house.push(childrenIds=[child], dependsOn=[child])
        waits = ("job:waiting-children", {"jobId": parent, "queue": "q", "dependsOn": [child]})
        assert house.of("job") == [waits]
        house.run("PULL", queue="q")
        house.run("ACK", id=child)
        assert house.of("job", "flow") == [
            ("job:dependencies-resolved", {"jobId": parent, "queue": "q"}),
            ("flow:completed", {"parentJobId": parent, "queue": "q", "childrenCount": 1}),
        ]

    def test_a_child_that_fails_for_good(self, house: House) -> None:
        parent = house.push(delay=1000)
        child = house.push(parentId=parent, maxAttempts=1)
        house.run("PULL", queue="q")
        house.of("queue")
        house.run("FAIL", id=child, error="no")
        failed = {"parentJobId": parent, "failedChildId": child, "queue": "q", "error": "no"}
        assert house.of("flow") == [("flow:failed", failed)]

    def test_a_window_that_is_extended(self, house: House) -> None:
        id = house.push(uniqueKey="k", dedup={"ttl": 1000, "extend": True})
        house.of("queue")
        assert house.push(uniqueKey="k", dedup={"ttl": 1000, "extend": True}) == id
        assert house.of("job") == [("job:deduplicated", {"queue": "q", "jobId": id, "strategy": "extend"})]

    def test_limits_that_are_reached(self, house: House) -> None:
        for _ in range(3):
            house.push()
        house.run("SetConcurrency", queue="q", limit=1)
        house.run("PULLB", queue="q", count=2)
        assert ("concurrency:rejected", {"queue": "q"}) in house.of("concurrency")
        house.run("ClearConcurrency", queue="q")
        house.run("RateLimit", queue="q", limit=1, duration=60_000)
        house.run("PULL", queue="q")
        house.of("ratelimit")
        waiting = COMMANDS["PULL"].run(house.session, {"queue": "q", "timeout": 1000})
        assert house.of("ratelimit") == [("ratelimit:rejected", {"queue": "q"})]
        assert isinstance(waiting, Answer)
        waiting.cancel()

    def test_dead_letters_by_themselves(self, house: House) -> None:
        house.run("SetDlqConfig", queue="q", config={"autoRetry": True, "autoRetryInterval": 1000, "maxAge": 5000})
        id = house.push(maxAttempts=1)
        house.run("PULL", queue="q")
        house.run("FAIL", id=id, error="no")
        house.of("dlq")
        house.later(1000)
        assert house.of("dlq") == [("dlq:auto-retried", {"queue": "q", "count": 1})]
        house.run("Discard", id=id)
        house.of("dlq")
        house.later(5000)
        assert house.of("dlq") == [("dlq:expired", {"queue": "q", "count": 1})]

    def test_schedules(self, house: House) -> None:
        definition = {"name": "c", "queue": "q", "data": 1, "repeatEvery": 60_000}
        cron = house.run("Cron", **definition)["cron"]
        made = {"name": "c", "queue": "q", "every": 60_000, "nextRun": cron["nextRun"]}
        house.run("Cron", **definition)
        assert house.of("cron") == [("cron:created", made)]
        house.later(60_000)
        assert house.of("cron") == [("cron:fired", {"name": "c", "queue": "q"})]
        cron = house.run("Cron", **{**definition, "skipIfNoWorker": True})["cron"]
        assert house.of("cron") == [("cron:updated", {**made, "nextRun": cron["nextRun"]})]
        house.later(60_000)
        assert house.of("cron") == [("cron:skipped", {"name": "c", "queue": "q", "reason": "no-worker"})]
        house.run("CronDelete", name="c")
        assert house.of("cron") == [("cron:deleted", {"name": "c"})]

    def test_a_run_that_is_missed(self, house: House) -> None:
        key = {"uniqueKey": "k", "dedup": {"ttl": 600_000, "extend": True}}
        house.run("Cron", name="c", queue="q", data=1, repeatEvery=10_000, **key)
        house.later(10_000)
        house.run("PULL", queue="q")
        house.of("cron")
        house.later(10_000)
        error = "Duplicate unique_key (extended TTL)"
        assert house.of("cron") == [("cron:missed", {"name": "c", "queue": "q", "error": error})]

    def test_it_leaves_with_the_commit_that_makes_it_true(self) -> None:
        house = House(DictJournal())
        order: list[str] = []
        house.broker.subscribe(lambda event: order.append(event.type))
        house.session.services.announce = None
        house.broker.subscribe_dashboard(lambda name, fields: order.append(name))
        pushed = COMMANDS["PUSH"].run(house.session, {"queue": "q", "data": 1, "durable": True, "dependsOn": []})
        assert isinstance(pushed, Answer)
        assert order == []
        pushed.result(5)
        assert order == ["queue:created", "pushed"]

    def test_nobody_is_told_after_the_end(self, house: House) -> None:
        house.stop_watching()
        house.push()
        assert house.told == []

    def test_one_watcher_cannot_disturb_another(self, house: House) -> None:
        def disturb(name: str, fields: Mapping[str, Any]) -> None:
            raise RuntimeError

        house.stop_watching()
        house.broker.subscribe_dashboard(disturb)
        house.broker.subscribe_dashboard(lambda name, fields: house.told.append((name, fields)))
        house.push()
        assert house.of("queue") == [("queue:created", {"queue": "q"})]


class Desk:
    """Commands on a scripted broker, watched."""

    def __init__(self) -> None:
        self.broker = ScriptedBroker()
        self.sink = Sink()
        self.services = services_of(self.broker, sink=self.sink)
        self.told: Told = []
        self.services.announce = lambda name, fields: self.told.append((name, dict(fields)))
        self.session = Session(self.services, "s1")

    def tells(self, cmd: str, answer: Any, verb: str, **request: Any) -> Told:
        """What ``cmd`` tells when the broker's verb gives ``answer``."""
        self.broker.on(verb, answer)
        COMMANDS[cmd].run(self.session, {"cmd": cmd, **request})
        told, self.told = self.told, []
        return told


@pytest.fixture
def desk() -> Desk:
    return Desk()


class TestCommands:
    @pytest.mark.parametrize(
        ("cmd", "verb", "answer", "request_", "told"),
        [
            ("Pause", "pause", None, {}, ("queue:paused", {})),
            ("Resume", "resume", None, {}, ("queue:resumed", {})),
            ("Drain", "drain_queue", 2, {}, ("queue:drained", {"count": 2})),
            ("Drain", "drain_queue", 0, {}, None),
            ("Clean", "clean", ["a"], {"grace": 0}, ("queue:cleaned", {"state": "waiting", "count": 1})),
            ("Clean", "clean", ["a"], {"state": "failed"}, ("queue:cleaned", {"state": "failed", "count": 1})),
            ("Clean", "clean", [], {}, None),
            ("RetryDlq", "retry_dead_letters", 3, {}, ("dlq:retry-all", {"count": 3})),
            ("RetryDlq", "retry_dead_letters", 0, {}, None),
            ("PurgeDlq", "purge_dead_letters", 3, {}, ("dlq:purged", {"count": 3})),
            ("RateLimitClear", "clear_rate_limit", None, {}, ("ratelimit:cleared", {})),
            ("SetConcurrency", "set_concurrency", None, {"limit": "4"}, ("concurrency:set", {"concurrency": 4})),
            ("ClearConcurrency", "clear_concurrency", None, {}, ("concurrency:cleared", {})),
            ("RateLimit", "set_rate_limit", None, {"limit": "5"}, ("ratelimit:set", {"max": 5})),
            (
                "RateLimit",
                "set_rate_limit",
                None,
                {"limit": 5, "duration": 7, "ttl": 9},
                ("ratelimit:set", {"max": 5, "duration": 7, "ttl": 9}),
            ),
        ],
    )
    def test_of_a_queue(
        self, desk: Desk, cmd: str, verb: str, answer: Any, request_: dict[str, Any], told: Any
    ) -> None:
        expected = [] if told is None else [(told[0], {"queue": "q", **told[1]})]
        assert desk.tells(cmd, answer, verb, queue="q", **request_) == expected

    @pytest.mark.parametrize(
        ("cmd", "verb", "request_", "told"),
        [
            ("Promote", "promote", {}, ("job:promoted", {})),
            ("Discard", "discard", {}, ("job:discarded", {})),
            ("Update", "update_data", {"data": 1}, ("job:data-updated", {})),
            ("ChangePriority", "change_priority", {"priority": 3}, ("job:priority-changed", {"newPriority": 3})),
            ("ChangeDelay", "change_delay", {"delay": 5}, ("job:delay-changed", {"newDelay": 5})),
            ("MoveToDelayed", "change_delay", {"delay": 5}, ("job:moved-to-delayed", {"delay": 5})),
        ],
    )
    def test_of_a_job(self, desk: Desk, cmd: str, verb: str, request_: dict[str, Any], told: Any) -> None:
        answer = True if verb == "change_delay" else None
        assert desk.tells(cmd, answer, verb, id="j", **request_) == [(told[0], {"jobId": "j", **told[1]})]

    def test_of_everything_in_a_queue(self, desk: Desk) -> None:
        told = desk.tells("Obliterate", None, "obliterate", queue="q")
        assert told == [("queue:obliterated", {"queue": "q"}), ("queue:removed", {"queue": "q"})]

    def test_of_a_flow(self, desk: Desk) -> None:
        jobs = [Job(id, queue, "n", None, DEFAULT_OPTIONS, 0, 1, 1, "waiting", 1) for id, queue in ("aq", "bq", "cr")]
        flow = [{"id": id, "queue": "q", "input": {"name": "n", "data": {}}} for id in "abc"]
        desk.broker.on("push_flow", jobs)
        COMMANDS["PUSHF"].run(desk.session, {"jobs": flow})
        assert desk.told == [("flow:pushed", {"jobs": 3, "queues": 2})]

    def test_nothing_before_the_answer(self, desk: Desk) -> None:
        answer: Answer[None] = Answer()
        assert desk.tells("Pause", answer, "pause", queue="q") == []
        answer.settle(None)
        assert desk.told == [("queue:paused", {"queue": "q"})]

    @pytest.mark.parametrize("late", [False, True])
    def test_nothing_of_what_was_refused(self, desk: Desk, late: bool) -> None:
        if late:
            answer: Answer[None] = Answer()
            desk.tells("Pause", answer, "pause", queue="q")
            answer.fail(StorageUnavailable("x"))
        else:
            desk.broker.on("promote", NotFound("Job not found or not delayed"))
            with pytest.raises(NotFound):
                COMMANDS["Promote"].run(desk.session, {"id": "j"})
        assert desk.told == []

    def test_nothing_while_nobody_watches(self, desk: Desk) -> None:
        desk.services.announce = None
        assert desk.tells("Pause", None, "pause", queue="q") == []

    def test_a_command_is_answered_whatever_becomes_of_its_announcement(self, desk: Desk) -> None:
        def fail(name: str, fields: Mapping[str, Any]) -> None:
            raise RuntimeError("no")

        desk.services.announce = fail
        answer: Answer[None] = Answer()
        desk.broker.on("pause", answer)
        reply = COMMANDS["Pause"].run(desk.session, {"queue": "q"})
        answer.settle(None)
        assert isinstance(reply, Answer)
        assert reply.value is None
        assert "Announcement failed" in desk.sink.text

    def test_every_telling_belongs_to_a_command(self) -> None:
        assert TELLINGS.keys() <= COMMANDS.keys()


class TestWorkers:
    def registry(self) -> tuple[WorkerRegistry, Told, SettableClock]:
        clock = SettableClock()
        told: Told = []
        registry = WorkerRegistry(now=clock, tell=lambda name, fields: told.append((name, dict(fields))))
        return registry, told, clock

    def test_their_life(self) -> None:
        registry, told, _ = self.registry()
        registry.register("n", ["q"], id="w", hostname="h", pid=3)
        registry.register("n", ["r"], id="w")
        registry.heartbeat("w", active_jobs=2, processed=1)
        registry.heartbeat("w", active_jobs=0, processed=3)
        registry.unregister("w")
        worker = {"workerId": "w", "name": "n", "hostname": "h", "pid": 3}
        assert told == [
            ("worker:connected", {**worker, "queues": ["q"]}),
            ("worker:connected", {**worker, "queues": ["r"]}),
            ("worker:heartbeat", {"workerId": "w"}),
            ("worker:heartbeat", {"workerId": "w"}),
            ("worker:idle", {"workerId": "w", "processedJobs": 3}),
            ("worker:disconnected", {"workerId": "w"}),
        ]

    def test_failures_are_told_at_some_numbers(self) -> None:
        registry, told, _ = self.registry()
        registry.register("n", ["q"], id="w")
        for failed in (4, 5, 6, 30, 31):
            registry.heartbeat("w", processed=10, failed=failed)
        errors = [fields for name, fields in told if name == "worker:error"]
        assert [(each["failedJobs"], each["failureRate"]) for each in errors] == [(5, 0.33), (30, 0.75)]

    def test_silence(self) -> None:
        registry, told, clock = self.registry()
        registry.register("n", ["q"], id="w")
        clock.advance(100_000)
        registry.sweep()
        assert told[-1] == ("worker:removed-stale", {"workerId": "w", "name": "n"})


class TestMonitor:
    def monitor(self, **thresholds: int) -> tuple[Monitor, ScriptedBroker, Any, list[float], Told]:
        broker = ScriptedBroker()
        services = services_of(broker)
        told: Told = []
        time = [0.0]
        settings = MonitoringSettings(**{"queue_idle_threshold_ms": 0, "worker_overload_threshold_ms": 0, **thresholds})
        monitor = Monitor(services, settings, lambda name, fields: told.append((name, dict(fields))), lambda: time[0])
        return monitor, broker, services, time, told

    async def test_idle_queues(self) -> None:
        monitor, broker, _, time, told = self.monitor(queue_idle_threshold_ms=30_000)
        idle, busy = QueueSummary("q", Counts(completed=5), False), QueueSummary("q", Counts(active=1), False)
        for at, summary in (
            (0, idle),
            (20, idle),
            (30, idle),
            (50, idle),
            (60, idle),
            (70, busy),
            (80, idle),
            (100, idle),
        ):
            time[0] = at
            broker.on("queues", ["q"])
            broker.on("summaries", [summary])
            await monitor.check()
        assert told == [("queue:idle", {"queue": "q", "idleSeconds": 30})] * 2

    async def test_long_queues(self) -> None:
        monitor, broker, _, _, told = self.monitor(queue_size_threshold=3)
        for size in (2, 3, 4, 2, 5):
            broker.on("queues", ["q"])
            broker.on("summaries", [QueueSummary("q", Counts(paused=size, paused_prioritized=1), True)])
            await monitor.check()
        assert told == [
            ("queue:threshold", {"queue": "q", "size": 3, "threshold": 3}),
            ("queue:threshold", {"queue": "q", "size": 5, "threshold": 3}),
        ]

    async def test_overloaded_workers(self) -> None:
        monitor, _, services, time, told = self.monitor(worker_overload_threshold_ms=10_000)
        services.workers.register("n", ["q"], id="w", concurrency=2)
        services.workers.register("none", ["q"], id="x", concurrency=0)
        for at, active in ((0, 2), (10, 2), (15, 1), (20, 3), (30, 3)):
            time[0] = at
            services.workers.heartbeat("w", active_jobs=active)
            await monitor.check()
        worker = {"workerId": "w", "name": "n", "concurrency": 2, "overloadedSeconds": 10}
        assert told == [
            ("worker:overloaded", {**worker, "activeJobs": 2}),
            ("worker:overloaded", {**worker, "activeJobs": 3}),
        ]

    async def test_memory_and_storage_are_told_once_until_they_shrink(self) -> None:
        monitor, broker, _, _, told = self.monitor(memory_warning_mb=1, storage_warning_mb=10)
        for mib in (9, 10, 12, 9.5, 10, 8, 11):
            broker.numbers = {"storageBytes": mib * 2**20}
            await monitor.check()
        assert [name for name, _ in told] == [
            "server:memory-warning",
            "storage:size-warning",
            "storage:size-warning",
        ]
        assert told[1][1] == {"sizeMB": 10, "thresholdMB": 10}


def test_what_is_told_can_be_subscribed_to_or_belongs_to_a_known_family() -> None:
    names = {"queue:created", "dlq:added", "cron:fired", "job:lock-expired", "flow:pushed", "cleanup:completed-removed"}
    assert {name.partition(":")[0] for name in names} <= FAMILIES.keys()
