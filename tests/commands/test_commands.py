"""What each command asks of the broker, and what it makes of the answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from fixtures.scripted_broker import ScriptedBroker, services_of

from bunqueue_core.answer import Answer
from bunqueue_core.commands import COMMANDS
from bunqueue_core.commands.replies import Refusal
from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import ABSENT
from bunqueue_core.model.errors import CommandError, Conflict, LeaseLost, NotFound, ValidationError
from bunqueue_core.model.job import DEFAULT_OPTIONS, Job
from bunqueue_core.model.options import JobReader
from bunqueue_core.model.payload import NULL, Packed
from bunqueue_core.model.requests import (
    Ack,
    Acknowledged,
    Counts,
    Delivery,
    DlqConfig,
    DlqEntry,
    DlqFilter,
    Failure,
    GroupDefaults,
    Health,
    JobView,
    LogEntry,
    Page,
    Progress,
    PullRequest,
    Pushed,
    QueueLimits,
    QueueMetrics,
    Renewal,
    StallConfig,
)
from bunqueue_core.model.wire import ViewWithoutState
from bunqueue_core.scheduling.definition import DefinitionReader, Entry
from bunqueue_core.testing import SettableClock

JOB = Job("id", "q", "n", None, DEFAULT_OPTIONS, 0, 1, 1, "waiting", 1)


class Desk:
    """Runs commands on a scripted broker."""

    def __init__(self, **services: Any) -> None:
        self.clock = SettableClock()
        self.broker = ScriptedBroker()
        self.services = services_of(self.broker, clock=self.clock, **services)
        self.session = Session(self.services, "conn-1")

    def run(self, cmd: str, **request: Any) -> Any:
        reply = COMMANDS[cmd].run(self.session, {"cmd": cmd, **request})
        if isinstance(reply, Answer):
            reply = reply.value
        return dict(reply) if isinstance(reply, Mapping) else reply

    def refused(self, cmd: str, **request: Any) -> str:
        with pytest.raises(CommandError) as caught:
            self.run(cmd, **request)
        return str(caught.value)


@pytest.fixture
def desk() -> Desk:
    return Desk()


class TestCore:
    def test_hello(self, desk: Desk) -> None:
        assert desk.run("Hello", protocolVersion=99, capabilities=5) == {
            "protocolVersion": 3,
            "capabilities": ["pipelining", "separate-job-name"],
            "server": "bunqueue",
            "version": "9.9.9",
        }

    def test_ping(self, desk: Desk) -> None:
        assert desk.run("Ping") == {"data": {"pong": True, "time": desk.clock()}}


class TestPush:
    def test_a_job(self, desk: Desk) -> None:
        desk.broker.on("push", Pushed(["new"], ["created"]))
        assert desk.run("PUSH", queue="q", name="n", data={"a": 1}, jobId="c", priority=3) == {"id": "new"}
        queue, (spec,) = desk.broker.last
        assert (queue, spec.name, spec.custom_id, spec.priority) == ("q", "n", "c", 3)

    def test_a_named_scope_tells_what_happened(self, desk: Desk) -> None:
        desk.broker.on("push", Pushed(["old"], ["found"]))
        dedup = {"scope": "unfinished"}
        assert desk.run("PUSH", queue="q", uniqueKey="k", dedup=dedup) == {"id": "old", "outcome": "found"}
        desk.broker.on("push", Pushed(["a", "b"], ["created", "replaced"]))
        jobs = [{}, {"uniqueKey": "k", "dedup": dedup}]
        assert desk.run("PUSHB", queue="q", jobs=jobs) == {"ids": ["a", "b"], "outcomes": ["created", "replaced"]}

    def test_checks_come_before_the_broker(self, desk: Desk) -> None:
        assert desk.refused("PUSH", data=1) == "Queue name is required"
        assert desk.refused("PUSH", queue="q", delay=-1) == "delay must be at least 0"
        assert desk.broker.calls == []

    def test_a_missing_dependency_comes_before_a_bad_name(self, desk: Desk) -> None:
        request = {"queue": "q", "name": "", "dependsOn": ["a", "b"]}
        desk.broker.on("states", ["waiting", "unknown"], ["waiting", "completed"])
        assert desk.refused("PUSH", **request) == "Dependency job not found: b"
        assert desk.refused("PUSH", **request).startswith("Job name must be")

    def test_a_refusal_of_the_broker(self, desk: Desk) -> None:
        desk.broker.on("push", Conflict("Group g has reached its maximum size of 1"))
        assert desk.refused("PUSH", queue="q") == "Group g has reached its maximum size of 1"

    def test_a_batch(self, desk: Desk) -> None:
        desk.broker.on("push", Pushed(["a", "b"], ["created", "created"]))
        assert desk.run("PUSHB", queue="q", jobs=[{"data": 1}, {"customId": "b"}]) == {"ids": ["a", "b"]}
        assert [spec.custom_id for spec in desk.broker.last[1]] == [None, "b"]

    def test_an_empty_batch_asks_nobody(self, desk: Desk) -> None:
        assert desk.run("PUSHB", queue="q", jobs=[]) == {"ids": []}

    def test_a_batch_names_the_element_at_fault(self, desk: Desk) -> None:
        assert desk.refused("PUSHB", queue="q", jobs=[{}, {"ttl": -1}]) == "jobs[1]: ttl must be at least 0"
        error = NotFound("Dependency job not found: x")
        error.position = 1
        desk.broker.on("push", error, NotFound("Parent job not found: p"))
        assert desk.refused("PUSHB", queue="q", jobs=[{}, {}]) == "jobs[1]: Dependency job not found: x"
        assert str(error) == "Dependency job not found: x"
        assert desk.refused("PUSHB", queue="q", jobs=[{}, {}]) == "Parent job not found: p"

    def test_a_later_refusal_names_the_element_too(self, desk: Desk) -> None:
        later: Answer[Pushed] = Answer()
        desk.broker.on("push", later)
        reply = COMMANDS["PUSHB"].run(desk.session, {"queue": "q", "jobs": [{}]})
        assert isinstance(reply, Answer)
        error = NotFound("gone")
        error.position = 0
        later.fail(error)
        assert str(reply.error) == "jobs[0]: gone"

    @pytest.mark.parametrize("jobs", [None, 5, "x", {}])
    def test_a_batch_is_a_list(self, desk: Desk, jobs: Any) -> None:
        assert desk.refused("PUSHB", queue="q", jobs=jobs) in ("jobs is required", "jobs must be an array")


class TestFlow:
    def test_a_flow(self, desk: Desk) -> None:
        desk.broker.on("push_flow", [JOB])
        jobs = [{"id": "id", "queue": "q", "input": {"data": {}}}]
        assert desk.run("PUSHF", jobs=jobs) == {"data": {"jobs": [JOB]}}
        ((member,),) = desk.broker.last
        assert (member.id, member.queue, member.spec.name) == ("id", "q", "default")

    def test_an_empty_flow_asks_nobody(self, desk: Desk) -> None:
        assert desk.run("PUSHF", jobs=[]) == {"data": {"jobs": []}}
        assert desk.refused("PUSHF") == "flow jobs must be an array"


class TestPull:
    def test_without_owner(self, desk: Desk) -> None:
        desk.broker.on("pull", [Delivery(JOB, None)], [])
        assert desk.run("PULL", queue="q") == {"job": JOB}
        assert desk.broker.last == (PullRequest("q", 1, None, 30_000, 0, "conn-1", None),)
        assert desk.run("PULL", queue="q") == {"job": None}

    def test_with_owner(self, desk: Desk) -> None:
        desk.broker.on("pull", [Delivery(JOB, "t")], [])
        assert desk.run("PULL", queue="q", owner="w", lockTtl=5000.5, timeout=10, detach=True) == {
            "job": JOB,
            "token": "t",
        }
        assert desk.broker.last == (PullRequest("q", 1, "w", 5000, 10, "conn-1", None),)
        assert desk.run("PULL", queue="q", owner="w") == {"job": None, "token": None}

    def test_only_a_detached_pull_without_owner_outlives_its_connection(self, desk: Desk) -> None:
        desk.broker.on("pull", [], [])
        desk.run("PULL", queue="q", detach=True)
        assert desk.broker.last[0].session is None
        desk.run("PULLB", queue="q", count=1, detach=True)
        assert desk.broker.last[0].session == "conn-1"

    def test_batches(self, desk: Desk) -> None:
        desk.broker.on("pull", [Delivery(JOB, "t"), Delivery(JOB, None)], [Delivery(JOB, None)], [], [])
        assert desk.run("PULLB", queue="q", count=1.5, owner="w") == {"jobs": [JOB, JOB], "tokens": ["t", ""]}
        assert desk.broker.last[0].count == 2
        assert desk.run("PULLB", queue="q", count=5) == {"jobs": [JOB]}
        assert desk.run("PULLB", queue="q", count=5) == {"jobs": []}
        assert desk.run("PULLB", queue="q", count=5, owner="w") == {"jobs": [], "tokens": []}

    def test_without_count_there_is_nothing(self, desk: Desk) -> None:
        assert desk.run("PULLB", queue="q") == {"jobs": []}
        assert desk.run("PULLB", queue="q", owner="w", timeout=60000) == {"jobs": [], "tokens": []}

    @pytest.mark.parametrize(
        ("request_", "text"),
        [
            ({"queue": "a b"}, "Queue name contains invalid characters"),
            ({"timeout": "5"}, "timeout must be a number"),
            ({"timeout": True}, "timeout must be a number"),
            ({"timeout": math.inf}, "timeout must be a finite number"),
            ({"timeout": -1}, "timeout must be at least 0"),
            ({"timeout": 60001}, "timeout must be at most 60000"),
            ({"count": 0}, "count must be at least 1"),
            ({"count": 0.5}, "count must be at least 1"),
            ({"count": 1001}, "count must be at most 1000"),
            ({"group": None}, "group must be an object"),
            ({"group": 5}, "group must be an object"),
            ({"group": {"concurrency": 0}}, "group.concurrency must be a positive safe integer"),
            ({"group": {"limit": 5}}, "group.limit must be an object"),
            ({"group": {"limit": {"max": 1.5, "duration": 1}}}, "group.limit.max must be a positive safe integer"),
            ({"group": {"limit": {"max": 1}}}, "group.limit.duration must be a positive safe integer"),
            ({"group": {"affinity": 5}}, "group.affinity must be a string or null"),
        ],
    )
    def test_bounds(self, desk: Desk, request_: dict[str, Any], text: str) -> None:
        assert desk.refused("PULLB", **{"queue": "q", "count": 1, **request_}) == text

    def test_group_defaults(self, desk: Desk) -> None:
        desk.broker.on("pull", [], [], [])
        desk.run("PULL", queue="q", group={"concurrency": 2, "limit": {"max": 3, "duration": 1000}})
        assert desk.broker.last[0].group == GroupDefaults(2, 3, 1000, False, None)
        desk.run("PULL", queue="q", group={"affinity": None})
        assert desk.broker.last[0].group == GroupDefaults(affine=True, affinity=None)
        desk.run("PULL", queue="q", group={"affinity": "g"})
        assert desk.broker.last[0].group == GroupDefaults(affine=True, affinity="g")


APPLIED = Acknowledged(["applied"], {})
FINAL = {"data": {"applied": False, "reason": "already-finalized"}}


class TestAcknowledge:
    @pytest.mark.parametrize(
        ("request_", "result"),
        [({}, None), ({"result": None}, NULL), ({"result": 0}, b"\x00"), ({"result": {"a": 2**40}}, None)],
    )
    def test_results(self, desk: Desk, request_: dict[str, Any], result: bytes | None) -> None:
        desk.broker.on("ack", APPLIED)
        assert desk.run("ACK", id="x", token="t", **request_) is None
        ((sent,),) = desk.broker.last
        assert sent[:2] == ("x", "t")
        assert sent.result == result or b"\xcb" in sent.result

    def test_flags_and_tokens(self, desk: Desk) -> None:
        desk.broker.on("ack", APPLIED, APPLIED)
        desk.run("ACK", id="x", token="", removeOnComplete=True)
        assert desk.broker.last == ((Ack("x", None, None, True),),)
        desk.run("ACK", id="x", removeOnComplete=1)
        assert desk.broker.last == ((Ack("x"),),)

    def test_outcomes(self, desk: Desk) -> None:
        desk.broker.on("ack", Acknowledged(["already-finalized"], {}), Acknowledged(["applied"], {0: NotFound("gone")}))
        desk.broker.on("ack", LeaseLost("Lock token required for job x"))
        assert desk.run("ACK", id="x") == FINAL
        assert desk.refused("ACK", id="x") == "gone"
        assert desk.refused("ACK", id="x") == "Lock token required for job x"
        assert desk.refused("ACK") == "Job id is required"
        assert desk.refused("ACK", id="x", result={"a": "\ud800"}).startswith("result cannot be stored: string at $.a")

    def test_a_batch(self, desk: Desk) -> None:
        desk.broker.on("ack", Acknowledged(["applied"] * 3, {}))
        reply = desk.run(
            "ACKB",
            ids=["a", "b", "c"],
            tokens=["t", None, ""],
            results=[1, None, ABSENT],
            removeOnCompletes=[True, 1, None],
        )
        assert reply is None
        assert desk.broker.last == (
            [Ack("a", "t", b"\x01", True), Ack("b", None, NULL, False), Ack("c", None, None, False)],
        )

    def test_remove_flags_count_only_with_results(self, desk: Desk) -> None:
        desk.broker.on("ack", APPLIED)
        desk.run("ACKB", ids=["a"], removeOnCompletes=[True])
        assert desk.broker.last == ([Ack("a")],)

    def test_a_batch_says_what_was_ignored(self, desk: Desk) -> None:
        desk.broker.on("ack", Acknowledged(["applied", "already-finalized"], {}))
        assert desk.run("ACKB", ids=["a", "b"]) == {"data": {"ignoredIndices": [1], "ignoredIds": ["b"]}}

    def test_a_batch_says_what_failed_and_why(self, desk: Desk) -> None:
        errors: dict[int, Exception] = {2: NotFound("no c"), 0: RuntimeError("at 10.0.0.1:5432")}
        desk.broker.on("ack", Acknowledged(["applied"] * 3, errors))
        with pytest.raises(Refusal, match=r"^Internal server error$") as caught:
            desk.run("ACKB", ids=["a", "b", "c"])
        assert caught.value.members == {
            "data": {"failedIndices": [0, 2], "failedIds": ["a", "c"], "errors": ["Internal server error", "no c"]}
        }

    @pytest.mark.parametrize("name", ["tokens", "results", "removeOnCompletes"])
    def test_lists_of_a_batch_run_parallel(self, desk: Desk, name: str) -> None:
        assert desk.refused("ACKB", ids=["a"], **{name: []}) == f"ACKB {name} length must match ids length"
        assert desk.run("ACKB", ids=[], **{name: []}) is None

    def test_failures(self, desk: Desk) -> None:
        desk.broker.on("fail", APPLIED, APPLIED, Acknowledged(["already-finalized"], {}))
        assert desk.run("FAIL", id="x", token="t", error="e", unrecoverable=True, removeOnFail=True) is None
        assert desk.broker.last == ((Failure("x", "e", "t", None, True, True),),)
        stack = ["a", 5, "b\ud800", *["x"] * 200]
        desk.run("FAIL", id="x", stack=stack)
        ((sent,),) = desk.broker.last
        assert sent.stack[:3] == ["a", "b?", "x"]
        assert len(sent.stack) == 99
        assert desk.run("FAIL", id="x", stack="no list") == FINAL
        assert desk.broker.last == ((Failure("x"),),)


class TestLeases:
    def test_heartbeats(self, desk: Desk) -> None:
        desk.broker.on("heartbeat", [True], [False], [True, False])
        assert desk.run("JobHeartbeat", id="x", token="t", duration=5000) == {"data": {"ok": True}}
        assert desk.broker.last == ((Renewal("x", "t", 5000),),)
        assert desk.refused("JobHeartbeat", id="x") == "Job not found or not active (or invalid token)"
        assert desk.broker.last == ((Renewal("x", None, None),),)
        assert desk.run("JobHeartbeatB", ids=["a", "b"], tokens=["t"]) == {"data": {"ok": True, "count": 1}}
        assert desk.broker.last == ([Renewal("a", "t"), Renewal("b")],)

    def test_extensions(self, desk: Desk) -> None:
        desk.broker.on("extend", [True], [False], [True, True, False])
        assert desk.run("ExtendLock", id="x", token="t", duration=5) is None
        assert desk.broker.last == ((Renewal("x", "t", 5),),)
        assert desk.refused("ExtendLock", id="x") == "Lock not found or invalid token"
        assert desk.run("ExtendLocks", ids=["a", "b", "c"], tokens=["t", None], durations=[1]) == {"count": 2}
        assert desk.broker.last == ([Renewal("a", "t", 1), Renewal("b"), Renewal("c")],)
        assert desk.refused("ExtendLocks", ids=[]) == "tokens is required"

    def test_progress(self, desk: Desk) -> None:
        desk.broker.on("progress", None, None, None)
        desk.run("Progress", id="x", progress=250)
        assert desk.broker.last == ("x", 100, None, True)
        desk.run("Progress", id="x", progress=-1, message="m")
        assert desk.broker.last == ("x", 0, "m", False)
        desk.run("Progress", id="x", progress=50.5, message=None)
        assert desk.broker.last == ("x", 50.5, None, False)
        assert desk.refused("Progress", id="x", progress="50") == "progress must be a number"
        assert desk.refused("Progress", id="x", progress=math.nan) == "progress must be a finite number"
        desk.broker.on("progress_of", Progress(5, None))
        assert desk.run("GetProgress", id="x") == {"progress": 5, "message": None}


class TestQueries:
    def test_jobs(self, desk: Desk) -> None:
        view = JobView(JOB, "waiting")
        desk.broker.on("job", view, None)
        desk.broker.on("job_by_custom_id", view, None)
        assert desk.run("GetJob", id="x") == {"job": view}
        assert desk.refused("GetJob") == "Job not found"
        assert desk.run("GetJobByCustomId", customId="c", queue="q") == {"job": ViewWithoutState(view)}
        assert desk.refused("GetJobByCustomId", customId="c") == "Job not found"

    @pytest.mark.parametrize(
        ("state", "asked"),
        [
            (None, []),
            ([], []),
            ("waiting", ["waiting"]),
            (["failed", "waiting", "nonsense"], ["waiting", "failed"]),
        ],
    )
    def test_listings(self, desk: Desk, state: Any, asked: list[str]) -> None:
        desk.broker.on("jobs", [])
        assert desk.run("GetJobs", queue="q", state=state, offset=2, limit=5, asc=False) == {"jobs": []}
        assert desk.broker.last == ("q", asked, Page(2, 5, False))

    def test_listings_that_need_no_broker(self, desk: Desk) -> None:
        for more in ({"state": "wait"}, {"state": ["nonsense"]}, {"limit": 0}, {"limit": -3}):
            assert desk.run("GetJobs", queue="q", **more) == {"jobs": []}

    def test_a_single_state_is_the_state_shown(self, desk: Desk) -> None:
        desk.broker.on("jobs", [JobView(JOB, "waiting")])
        assert desk.run("GetJobs", queue="q", state="paused") == {"jobs": [JobView(JOB, "paused")]}

    def test_states_and_results_are_never_refused(self, desk: Desk) -> None:
        desk.broker.on("states", ["active"])
        desk.broker.on("results", [None], [NULL])
        assert desk.run("GetState", id="x") == {"id": "x", "state": "active"}
        assert desk.run("GetResult", id="x") == {"id": "x"}
        assert desk.run("GetResult", id="x") == {"id": "x", "result": Packed(NULL)}
        for id in (None, 5, "a\0", "\ud800"):
            assert desk.run("GetState", id=id) == {"id": id, "state": "unknown"}
            assert desk.run("GetResult", id=id) == {"id": id}
        deep: Any = {}
        for _ in range(600):
            deep = {"a": deep}
        for id in (deep, ["\ud800"], 10**30):
            assert desk.run("GetState", id=id) == {"id": None, "state": "unknown"}
            assert desk.run("GetResult", id=id) == {"id": None}

    def test_counts(self, desk: Desk) -> None:
        counts = Counts(1, 2, 3, 4, 5, 6, 7, 8)
        desk.broker.on("counts", counts, counts)
        assert desk.run("GetJobCounts", queue="a b") == {
            "counts": {
                "waiting": 1,
                "prioritized": 2,
                "delayed": 3,
                "active": 4,
                "completed": 5,
                "failed": 6,
                "waiting-children": 7,
                "paused": 8,
            }
        }
        assert desk.run("Count", queue="q") == {"count": 14}
        desk.broker.on("counts_per_priority", {0: 2, -3: 1})
        assert desk.run("GetCountsPerPriority", queue="q") == {"queue": "q", "counts": {"0": 2, "-3": 1}}

    def test_waiting(self, desk: Desk) -> None:
        desk.broker.on("wait", (True, NULL), (True, None), (False, None))
        assert desk.run("WaitJob", id="x") == {"completed": True, "result": Packed(NULL)}
        assert desk.broker.last == ("x", 30_000)
        assert desk.run("WaitJob", id="x", timeout=0) == {"completed": True}
        assert desk.run("WaitJob", id="x", timeout=600_000) == {"completed": False}
        assert desk.refused("WaitJob", id="x", timeout=600_001) == "timeout must be at most 600000"

    def test_children(self, desk: Desk) -> None:
        desk.broker.on("children_values", {"q:a": NULL})
        assert desk.run("GetChildrenValues", id="x") == {"data": {"values": {"q:a": Packed(NULL)}}}
        desk.broker.on("children_failures", {"q:a": "e"}, {})
        assert desk.run("GetFailedChildrenValues", id="x") == {"values": {"q:a": "e"}}
        assert desk.broker.last == ("x", "continue")
        assert desk.run("GetIgnoredChildrenFailures", id="x") == {"values": {}}
        assert desk.broker.last == ("x", "ignore")

    def test_queue_names(self, desk: Desk) -> None:
        desk.broker.on("queues", ["a", "b"])
        assert desk.run("ListQueues") == {"queues": ["a", "b"]}


class TestSingleJobs:
    @pytest.mark.parametrize(
        ("cmd", "request_", "verb", "arguments"),
        [
            ("Cancel", {"id": "x"}, "cancel", ("x",)),
            ("Update", {"id": "x", "data": None}, "update_data", ("x", NULL)),
            ("UpdateParent", {"childId": "c", "parentId": "p"}, "update_parent", ("c", "p")),
            ("ChangePriority", {"id": "x", "priority": 3.7}, "change_priority", ("x", 3, None)),
            ("ChangePriority", {"id": "x", "priority": 3, "lifo": True}, "change_priority", ("x", 3, True)),
            ("Promote", {"id": "x"}, "promote", ("x",)),
            ("MoveToWait", {"id": "x", "token": ""}, "move_to_wait", ("x", None)),
            ("Discard", {"id": "x", "token": "t"}, "discard", ("x", "t")),
            ("RemoveUnprocessedChildren", {"id": "x"}, "remove_unprocessed_children", ("x",)),
            ("ClearLogs", {"id": "x", "keepLogs": 3}, "clear_logs", ("x", 3)),
            ("ClearLogs", {"id": "x", "keepLogs": -3}, "clear_logs", ("x", 0)),
            ("Pause", {"queue": "a b"}, "pause", ("a b",)),
            ("Resume", {"queue": "q"}, "resume", ("q",)),
            ("Obliterate", {"queue": "q"}, "obliterate", ("q",)),
            ("RateLimitClear", {"queue": "q"}, "clear_rate_limit", ("q",)),
            ("ClearConcurrency", {"queue": "q"}, "clear_concurrency", ("q",)),
            ("SetConcurrency", {"queue": "q", "limit": "2"}, "set_concurrency", ("q", 2.0)),
            ("RateLimit", {"queue": "q", "limit": True}, "set_rate_limit", ("q", 1.0, None, None)),
            (
                "RateLimit",
                {"queue": "q", "limit": 5, "duration": "2500", "ttl": 9.5},
                "set_rate_limit",
                ("q", 5.0, 2500, 9),
            ),
            (
                "RateLimit",
                {"queue": "q", "limit": 5, "duration": -1, "ttl": 0},
                "set_rate_limit",
                ("q", 5.0, None, None),
            ),
            ("SetConcurrency", {"queue": "q", "limit": 2**63}, "set_concurrency", ("q", float(2**53 - 1))),
            ("SetConcurrency", {"queue": "q", "limit": -(10**400)}, "set_concurrency", ("q", float(1 - 2**53))),
            (
                "RateLimit",
                {"queue": "q", "limit": 5, "duration": 2**64 - 1, "ttl": 1e300},
                "set_rate_limit",
                ("q", 5.0, 2**53 - 1, 2**53 - 1),
            ),
            (
                "SetGroupRateLimit",
                {"queue": "q", "groupId": "g", "max": 3, "duration": 5},
                "set_group_rate_limit",
                ("q", "g", 3, 5),
            ),
            (
                "SetGroupConcurrency",
                {"queue": "q", "groupId": "g", "concurrency": 3},
                "set_group_concurrency",
                ("q", "g", 3),
            ),
            ("RateLimitGroup", {"queue": "q", "groupId": "g", "duration": 3}, "rate_limit_group", ("q", "g", 3)),
        ],
    )
    def test_bare_successes(
        self, desk: Desk, cmd: str, request_: dict[str, Any], verb: str, arguments: tuple[Any, ...]
    ) -> None:
        desk.broker.on(verb, None)
        assert desk.run(cmd, **request_) is None
        assert desk.broker.last == arguments

    @pytest.mark.parametrize(
        ("cmd", "request_", "verb", "value", "arguments", "reply"),
        [
            ("PromoteJobs", {"queue": "q", "count": 2.5}, "promote_jobs", 2, ("q", 2), {"count": 2}),
            ("PromoteJobs", {"queue": "q"}, "promote_jobs", 2, ("q", None), {"count": 2}),
            ("Drain", {"queue": "q"}, "drain_queue", 4, ("q",), {"count": 4}),
            ("Clean", {"queue": "q", "grace": 5}, "clean", ["a"], ("q", 5, None, 1000), {"count": 1, "ids": ["a"]}),
            ("Clean", {"queue": "q", "grace": "x"}, "clean", [], ("q", None, None, 1000), {"count": 0, "ids": []}),
            (
                "Clean",
                {"queue": "q", "grace": 5, "state": "failed", "limit": 2.9},
                "clean",
                [],
                ("q", 5, "failed", 2),
                {"count": 0, "ids": []},
            ),
            (
                "MoveToWaitingChildren",
                {"id": "x", "token": "t"},
                "move_to_waiting_children",
                None,
                ("x", "t"),
                {"data": {"moved": True}},
            ),
            ("RemoveChildDependency", {"id": "x"}, "remove_child_dependency", False, ("x",), {"removed": False}),
            (
                "GetDeduplicationJobId",
                {"queue": "q", "deduplicationId": "k"},
                "key_owner",
                None,
                ("q", "k"),
                {"data": {"jobId": None}},
            ),
            (
                "RemoveDeduplicationKey",
                {"queue": "q", "deduplicationId": "k"},
                "remove_key",
                1,
                ("q", "k"),
                {"data": {"count": 1}},
            ),
            ("RemoveJobDeduplicationKey", {"id": "x"}, "remove_job_key", True, ("x",), {"data": {"removed": True}}),
            ("AddLog", {"id": "x", "message": "m"}, "add_log", None, ("x", "m", "info"), {"data": {"added": True}}),
            ("IsPaused", {"queue": "q"}, "is_paused", True, ("q",), {"paused": True}),
            ("GetGroupsJobsCount", {"queue": "q"}, "group_jobs_count", 2, ("q", None), {"data": {"count": 2}}),
            (
                "GetGroupJobsCount",
                {"queue": "q", "groupId": "g"},
                "group_jobs_count",
                2,
                ("q", "g"),
                {"data": {"count": 2}},
            ),
            (
                "GetGroupActiveCount",
                {"queue": "q", "groupId": "g"},
                "group_active_count",
                2,
                ("q", "g"),
                {"data": {"count": 2}},
            ),
            (
                "GetGroupRateLimit",
                {"queue": "q", "groupId": "g"},
                "group_rate_limit",
                (3, 5),
                ("q", "g"),
                {"data": {"limit": {"max": 3, "duration": 5}}},
            ),
            (
                "GetGroupRateLimitTtl",
                {"queue": "q", "groupId": "g", "maxJobs": 2},
                "group_rate_limit_ttl",
                -2,
                ("q", "g", 2),
                {"data": {"ttl": -2}},
            ),
            (
                "RemoveGroupRateLimit",
                {"queue": "q", "groupId": "g"},
                "remove_group_rate_limit",
                True,
                ("q", "g"),
                {"data": {"removed": 1}},
            ),
            (
                "GetGroupConcurrency",
                {"queue": "q", "groupId": "g"},
                "group_concurrency",
                None,
                ("q", "g"),
                {"data": {"concurrency": None}},
            ),
            (
                "RemoveGroupConcurrency",
                {"queue": "q", "groupId": "g"},
                "remove_group_concurrency",
                False,
                ("q", "g"),
                {"data": {"removed": 0}},
            ),
            (
                "PauseGroup",
                {"queue": "q", "groupId": "g"},
                "pause_group",
                True,
                ("q", "g"),
                {"data": {"changed": True}},
            ),
            (
                "ResumeGroup",
                {"queue": "q", "groupId": "g"},
                "resume_group",
                False,
                ("q", "g"),
                {"data": {"changed": False}},
            ),
            (
                "IsGroupPaused",
                {"queue": "q", "groupId": "g"},
                "is_group_paused",
                True,
                ("q", "g"),
                {"data": {"paused": True}},
            ),
            ("PurgeDlq", {"queue": "q"}, "purge_dead_letters", 3, ("q",), {"count": 3}),
            (
                "RemoveDlqJob",
                {"queue": "q", "jobId": "x"},
                "remove_dead_letter",
                False,
                ("q", "x"),
                {"data": {"removed": False}},
            ),
            ("GetDlqStats", {"queue": "q"}, "dlq_stats", {"total": 1}, ("q",), {"data": {"stats": {"total": 1}}}),
            ("RetryDlq", {"queue": "q"}, "retry_dead_letters", 2, ("q", None, None, None), {"count": 2}),
            (
                "RetryDlq",
                {"queue": "q", "count": "many"},
                "retry_dead_letters",
                0,
                ("q", None, 0, None),
                {"count": 0},
            ),
            (
                "RetryCompleted",
                {"queue": "q", "id": "x", "count": 1.7, "timestamp": 5},
                "retry_completed",
                1,
                ("q", "x", 1, 5),
                {"count": 1},
            ),
        ],
    )
    def test_answers(
        self,
        desk: Desk,
        cmd: str,
        request_: dict[str, Any],
        verb: str,
        value: Any,
        arguments: tuple[Any, ...],
        reply: dict[str, Any],
    ) -> None:
        desk.broker.on(verb, value)
        assert desk.run(cmd, **request_) == reply
        assert desk.broker.last == arguments

    def test_delays(self, desk: Desk) -> None:
        desk.broker.on("change_delay", True, False, False, False, True)
        desk.broker.on("states", ["unknown"], ["completed"])
        assert desk.run("MoveToDelayed", id="x", delay=5, token="t") is None
        assert desk.broker.last == ("x", 5, "t")
        assert desk.refused("MoveToDelayed", id="x", delay=5) == "Job not found"
        assert desk.refused("MoveToDelayed", id="x", delay=5) == "Job is not active (current state: completed)"
        assert desk.refused("ChangeDelay", id="x", delay=-5) == "Job not found or cannot change delay"
        assert desk.run("ChangeDelay", id="x", delay=-5) is None
        assert desk.refused("ChangeDelay", id="x") == "delay must be a number"

    def test_logs(self, desk: Desk) -> None:
        lines = [LogEntry(n, "info", f"line {n}") for n in range(5)]
        for start, end, shown in (
            (None, None, [0, 1, 2, 3, 4]),
            (1, 3, [1, 2, 3]),
            (-2, None, [3, 4]),
            (None, -1, []),
            (7, 9, []),
        ):
            desk.broker.on("logs", lines)
            data = desk.run("GetLogs", id="x", start=start, end=end)["data"]
            assert [line["timestamp"] for line in data["logs"]] == shown
            assert data["count"] == 5
        assert data["logs"] == []
        desk.broker.on("logs", lines[:1])
        assert desk.run("GetLogs", id="x")["data"]["logs"] == [{"timestamp": 0, "level": "info", "message": "line 0"}]

    def test_data_is_checked_as_in_a_push(self, desk: Desk) -> None:
        assert desk.refused("Update", id="x") == "data is required"
        assert desk.refused("Update", id="x", data="x" * (10 * 1024 * 1024)) == "Job data too large (max 10MB)"

    def test_a_clean_of_nothing_asks_nobody(self, desk: Desk) -> None:
        for limit in (0, -5, -(10**400), math.inf, "5"):
            assert desk.run("Clean", queue="q", grace=0, limit=limit) == {"count": 0, "ids": []}
        assert desk.run("RetryCompleted", id="x") == {"count": 0}

    @pytest.mark.parametrize("limit", [None, "x", math.nan, [], {}])
    def test_limits_are_finite_numbers(self, desk: Desk, limit: Any) -> None:
        for cmd in ("RateLimit", "SetConcurrency"):
            assert desk.refused(cmd, queue="q", limit=limit) == "limit must be a finite number"

    def test_group_arguments(self, desk: Desk) -> None:
        assert desk.refused("PauseGroup", groupId="g") == "Queue name is required"
        assert desk.refused("PauseGroup", queue="q") == "groupId is required"
        assert desk.refused("PauseGroup", queue="q", groupId="") == "groupId must be a non-empty string"
        assert desk.refused("SetGroupRateLimit", queue="q", groupId="g") == "max must be a positive safe integer"
        assert desk.refused("RateLimitGroup", queue="q", groupId="g", duration=0) == (
            "duration must be a positive safe integer"
        )

    def test_queue_limits(self, desk: Desk) -> None:
        desk.broker.on("queue_limits", QueueLimits(), QueueLimits(2.0, 1000, 5, 1.0, True))
        assert desk.run("GetQueueLimits", queue="q")["data"]["limits"] == {
            "rateLimit": None,
            "rateLimitTtl": -2,
            "concurrencyLimit": None,
            "maxed": False,
        }
        assert desk.run("GetQueueLimits", queue="q", maxJobs=3)["data"]["limits"] == {
            "rateLimit": {"max": 2.0, "duration": 1000},
            "rateLimitTtl": 5,
            "concurrencyLimit": 1.0,
            "maxed": True,
        }


class TestDeadLetters:
    def test_listing(self, desk: Desk) -> None:
        entry = DlqEntry(JOB, 5, "stalled")
        desk.broker.on("dead_letters", [entry], [], [])
        assert desk.run("Dlq", queue="q", count=-3) == {"jobs": [JOB], "entries": [entry]}
        assert desk.broker.last == ("q", 0, None)
        desk.run("Dlq", queue="q", filter={"reason": "", "olderThan": 0, "queue": "ignored"})
        assert desk.broker.last == ("q", None, DlqFilter())
        desk.run(
            "Dlq",
            queue="q",
            filter={
                "reason": "stalled",
                "olderThan": 5.5,
                "newerThan": 1,
                "retriable": 1,
                "expired": True,
                "offset": 2,
                "limit": 3,
            },
        )
        assert desk.broker.last == ("q", None, DlqFilter("stalled", 5, 1, True, True, 2, 3))
        assert desk.refused("Dlq", queue="q", filter=5) == "filter must be an object"

    def test_policy(self, desk: Desk) -> None:
        desk.broker.on("dlq_config", DlqConfig())
        assert desk.run("GetDlqConfig", queue="q") == {
            "config": {
                "autoRetry": False,
                "autoRetryInterval": 3_600_000,
                "maxAutoRetries": 3,
                "maxAge": 604_800_000,
                "maxEntries": 10_000,
            }
        }

    @pytest.mark.parametrize(
        ("config", "expected"),
        [
            ({}, DlqConfig()),
            ({"autoRetry": True, "maxAge": None}, DlqConfig(auto_retry=True, max_age_ms=None)),
            ({"autoRetryInterval": 1500.9, "maxEntries": 7.9}, DlqConfig(auto_retry_interval_ms=1500, max_entries=7)),
            (
                {"autoRetryInterval": -5, "maxAutoRetries": -1, "maxAge": -1, "maxEntries": 0},
                DlqConfig(auto_retry_interval_ms=0, max_auto_retries=0, max_age_ms=0, max_entries=1),
            ),
            ({"autoRetry": "yes", "maxEntries": "many", "maxAge": math.nan, "unknown": 1}, DlqConfig()),
        ],
    )
    def test_changes_of_the_policy(self, desk: Desk, config: dict[str, Any], expected: DlqConfig) -> None:
        desk.broker.on("dlq_config", DlqConfig())
        desk.broker.on("set_dlq_config", None)
        assert desk.run("SetDlqConfig", queue="q", config=config) is None
        assert desk.broker.last == ("q", expected)

    def test_a_policy_that_is_read_later(self, desk: Desk) -> None:
        first: Answer[DlqConfig] = Answer()
        second: Answer[None] = Answer()
        desk.broker.on("dlq_config", first)
        desk.broker.on("set_dlq_config", second)
        reply = COMMANDS["SetDlqConfig"].run(desk.session, {"queue": "q", "config": {"maxEntries": 5}})
        assert isinstance(reply, Answer)
        first.settle(DlqConfig())
        assert desk.broker.last == ("q", DlqConfig(max_entries=5))
        assert not reply.ready
        second.settle(None)
        assert reply.value is None

    def test_stall_policy(self, desk: Desk) -> None:
        desk.broker.on("stall_config", StallConfig(), StallConfig(), StallConfig())
        desk.broker.on("set_stall_config", None, None)
        assert desk.run("GetStallConfig", queue="q") == {
            "config": {"enabled": True, "stallInterval": 30_000, "maxStalls": 3, "gracePeriod": 5_000}
        }
        config = {"enabled": False, "stallInterval": "200", "maxStalls": "x", "gracePeriod": None, "more": 1}
        desk.run("SetStallConfig", queue="q", config=config)
        assert desk.broker.last == ("q", StallConfig(enabled=False, stall_interval_ms=200))
        desk.run("SetStallConfig", queue="q")
        assert desk.broker.last == ("q", StallConfig())
        assert desk.refused("SetDlqConfig", queue="q") == "config is required"


class TestMonitoring:
    def test_statistics(self, desk: Desk) -> None:
        desk.broker.numbers = {
            "waiting": 1,
            "paused": 2,
            "active": 3,
            "delayed": 4,
            "dlq": 5,
            "completed": 6,
            "totalFailed": 7,
        }
        stats = desk.run("Stats")["stats"]
        assert stats["uptime"] >= 0
        assert {key: stats[key] for key in ("waiting", "active", "delayed", "dlq", "completed", "failed")} == {
            "waiting": 3,
            "active": 3,
            "delayed": 4,
            "dlq": 5,
            "completed": 6,
            "failed": 7,
        }
        assert list(stats)[-2:] == ["pushPerSec", "pullPerSec"]

    def test_metrics(self, desk: Desk) -> None:
        desk.broker.numbers = {"totalPushed": 9}
        desk.broker.on("push", Pushed(["a"], ["created"]))
        desk.run("PUSH", queue="q")
        metrics = desk.run("Metrics")["metrics"]
        assert metrics["totalPushed"] == 9
        assert metrics["memoryUsageMb"] > 0
        assert (metrics["sqliteSizeMb"], metrics["activeConnections"]) == (0, 0)
        assert desk.services.meters.latencies["push"].count == 1

    def test_metrics_of_a_queue(self, desk: Desk) -> None:
        desk.broker.on("queue_metrics", QueueMetrics(5, 60_000, 2, [2, 3], 7))
        assert desk.run("Metrics", queue="q", type="completed", start=1, end=2) == {
            "data": {"meta": {"count": 5, "prevTS": 60_000, "prevCount": 2}, "data": [2, 3], "count": 7}
        }
        assert desk.broker.last == ("q", "completed", 1, 2)
        for request, text in (
            ({"type": "completed"}, "Metrics queue is required"),
            ({"queue": ""}, "Queue name is required"),
            ({"queue": "q"}, "Metrics type must be 'completed' or 'failed'"),
            ({"queue": "q", "type": "failed", "start": -1}, "start must be a non-negative safe integer"),
            ({"queue": "q", "type": "failed", "end": 1.5}, "end must be a non-negative safe integer"),
        ):
            assert desk.refused("Metrics", **request) == text

    def test_storage(self, desk: Desk) -> None:
        assert desk.run("StorageStatus") == {"data": {"diskFull": False, "error": None, "since": None}}
        desk.broker.state = Health(False, True, "disk full", True, 5)
        assert desk.run("StorageStatus") == {"data": {"diskFull": True, "error": "disk full", "since": 5}}

    def test_workers(self, desk: Desk) -> None:
        now = desk.clock()
        registered = desk.run("RegisterWorker", workerId="w", name="first", queues=["q"])["data"]
        assert registered == {
            "workerId": "w",
            "name": "first",
            "queues": ["q"],
            "concurrency": 1,
            "hostname": "unknown",
            "pid": 0,
            "status": "active",
            "registeredAt": now,
            "lastSeen": now,
            "activeJobs": 0,
            "processedJobs": 0,
            "failedJobs": 0,
            "currentJob": None,
        }
        desk.clock.advance(40_000)
        (worker,) = desk.run("ListWorkers")["data"]["workers"]
        assert (worker["id"], worker["status"], worker["uptime"]) == ("w", "stale", 40_000)
        assert desk.run("Heartbeat", id="w", activeJobs=2, processed=10, failed=1) == {"data": {"ok": True}}
        assert desk.run("ListWorkers")["data"]["stats"] == {
            "total": 1,
            "active": 1,
            "totalProcessed": 10,
            "totalFailed": 1,
            "activeJobs": 2,
            "concurrencySlots": 1,
        }
        assert desk.run("UnregisterWorker", workerId="w") == {"data": {"removed": True}}
        assert desk.refused("UnregisterWorker", workerId="w") == "Worker not found"
        assert desk.refused("Heartbeat", id="w") == "Worker not found"
        assert desk.refused("RegisterWorker", name="w") == "queues is required"


class TestSchedules:
    def test_they_are_the_brokers_to_read(self, desk: Desk) -> None:
        entry = DefinitionReader(JobReader()).read({"name": "s", "queue": "q", "repeatEvery": 60_000})
        known = Entry(entry.definition, 5)
        desk.broker.on("upsert_schedule", known)
        desk.broker.on("schedule", known)
        desk.broker.on("schedules", [known])
        desk.broker.on("remove_schedule", NotFound("Cron job not found"))
        shown = desk.run("Cron", name="s", queue="q", repeatEvery=60_000)
        assert desk.broker.last == ({"cmd": "Cron", "name": "s", "queue": "q", "repeatEvery": 60_000},)
        assert shown == {"cron": known.view()}
        assert desk.run("CronGet", name="s") == shown
        assert desk.run("CronList") == {"crons": [known.view()]}
        assert desk.refused("CronDelete", name="s") == "Cron job not found"


#: Commands that need no field, or whose fields only the broker judges.
WITHOUT_OWN_CHECKS = {
    *("Hello", "Ping", "GetJob", "GetJobByCustomId", "GetState", "GetResult", "ListQueues", "Stats", "Metrics"),
    *("StorageStatus", "ListWorkers", "ListWebhooks", "UnsubscribeEvents", "RetryCompleted", "CompactMemory"),
    *("Cron", "CronGet", "CronDelete", "CronList", "Prometheus", "DashboardOverview", "DashboardQueues"),
}


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - WITHOUT_OWN_CHECKS))
def test_missing_fields_are_refused(desk: Desk, name: str) -> None:
    assert desk.refused(name)
    assert desk.broker.calls == []


def test_validation_errors_are_validation_errors(desk: Desk) -> None:
    with pytest.raises(ValidationError):
        desk.run("PULL", queue="q", timeout=-1)
