"""Flows: trees, chains and fans, created whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from client_servers import ScriptedServer, wire_job

from bunqueue_core.client._acompat import AEvent
from bunqueue_core.client.flow_async import FlowProducer
from bunqueue_core.client.job_async import Job
from bunqueue_core.client.queue_async import Queue
from bunqueue_core.client.queue_group_async import QueueGroup
from bunqueue_core.client.worker_async import Worker
from bunqueue_core.model.errors import CommandError

Target = dict[str, Any]

PATIENCE = 20.0


async def test_children_run_before_their_parent(target: Target, name: str) -> None:
    order: list[str] = []
    done = AEvent()

    async def process(job: Job) -> Any:
        order.append(job.name)
        if job.name == "parent":
            return await job.get_children_values()
        return f"{job.name} of {job.data['n']}"

    def finished(job: Job, result: Any) -> None:
        if job.name == "parent":
            done.set()

    flow = {
        "name": "parent",
        "queueName": name,
        "data": {"n": 0},
        "opts": {"attempts": 5},
        "children": [
            {"name": "one", "queueName": name, "data": {"n": 1}, "opts": {"jobId": f"{name}-one"}},
            {"name": "two", "queueName": name, "data": {"n": 2}, "children": [
                {"name": "three", "queueName": name, "data": {"n": 3}},
            ]},
        ],
    }  # fmt: skip
    async with FlowProducer(**target) as producer, Queue(name, **target) as queue:
        tree = await producer.add(flow, {"queues_options": {name: {"attempts": 2}}})
        assert (tree.job.name, tree.job.max_attempts, len(tree.children)) == ("parent", 5, 2)
        one, two = tree.children
        assert (one.job.id, one.job.max_attempts, one.job.parent_id) == (f"{name}-one", 2, tree.job.id)
        assert await queue.get_state(tree.job.id) == "waiting-children"
        read = await producer.get_flow(tree.job.id)
        assert read is not None
        assert [child.job.name for child in read.children] == ["one", "two"]
        assert [child.job.name for child in read.children[1].children] == ["three"]
        shallow = await producer.get_flow(tree.job.id, depth=1, max_children=1)
        assert shallow is not None
        assert [child.job.name for child in shallow.children] == ["one"]
        assert await producer.get_flow(tree.job.id, queue_name="another") is None
        assert await producer.get_flow("nobody") is None
        worker = Worker(name, process, autorun=False, **target)
        worker.on("completed", finished)
        async with worker:
            assert await done.wait(PATIENCE)
        assert order.index("three") < order.index("two") < order.index("parent")
        assert await queue.get_result(tree.job.id) == {
            f"{name}:{one.job.id}": "one of 1",
            f"{name}:{two.job.id}": "two of 2",
        }


async def test_a_chain_a_fan_and_a_tree(target: Target, name: str) -> None:
    seen: dict[str, Any] = {}
    done = AEvent()

    async with FlowProducer(**target) as producer, Queue(name, **target) as queue:

        async def process(job: Job) -> str:
            seen[job.name] = job.data
            if len(seen) == 8:
                done.set()
            return job.name

        def step(step_name: str, **members: Any) -> dict[str, Any]:
            return {"name": step_name, "queueName": name, "data": {"own": step_name}, **members}

        chain = await producer.add_chain([step("a"), step("b")])
        fan = await producer.add_bulk_then([step("p1"), step("p2")], step("f"))
        tree = await producer.add_tree(step("root", children=[step("leaf", children=[step("twig")])]))
        assert len(tree["job_ids"]) == 3
        assert await queue.get_state(chain[1]) == await queue.get_state(fan["final_id"]) == "waiting-children"
        async with Worker(name, process, **target):
            assert await done.wait(PATIENCE)
            assert await queue.wait_for_job(fan["final_id"], 10_000) == "f"
            assert await queue.wait_for_job(tree["job_ids"][2], 10_000) == "twig"
        assert list(seen).index("a") < list(seen).index("b")
        assert list(seen).index("root") < list(seen).index("leaf") < list(seen).index("twig")
        assert seen["a"] == {"own": "a", "__flowParentId": None}
        assert seen["b"]["__flowParentId"] == chain[0]
        assert seen["f"]["__flowParentIds"] == fan["parallel_ids"]
        assert await producer.get_parent_result(chain[0]) == "a"
        assert await producer.get_parent_results(fan["parallel_ids"]) == dict(
            zip(fan["parallel_ids"], ["p1", "p2"], strict=True)
        )


async def test_flows_of_one_call_are_all_or_none(target: Target, name: str) -> None:
    async with FlowProducer(prefix_key="x:", **target) as producer, Queue(name, prefix_key="x:", **target) as queue:
        assert await producer.add_bulk([]) == []
        good = {"name": "good", "queueName": name}
        bad = {"name": "bad", "queueName": name, "opts": {"attempts": 0}}
        with pytest.raises(CommandError):
            await producer.add_bulk([good, bad])
        assert await queue.count() == 0
        nodes = await producer.add_bulk([dict(good), dict(good)])
        assert [node.job.queue for node in nodes] == [f"x:{name}"] * 2
        assert await queue.count() == 2


def node(**members: Any) -> dict[str, Any]:
    """A node that is fine but for ``members``."""
    return {"name": "n", "queueName": "q", **members}


def deep(levels: int) -> dict[str, Any]:
    """A chain of children."""
    flow = node()
    for _ in range(levels - 1):
        flow = node(children=[flow])
    return flow


SHARED = node()


@pytest.mark.parametrize(
    ("flow", "text"),
    [
        ("text", "flow node must be an object"),
        ({"queueName": "q"}, "flow job name is required"),
        ({"name": "n"}, "flow queueName is required"),
        (node(data=[1]), "flow job data must be an object"),
        (node(data={"__x": 1}), "flow job data key is reserved: __x"),
        (node(children="no"), "flow children must be an array"),
        (node(opts={"job_id": "a:b"}), "flow jobId must be non-empty and cannot contain a colon"),
        (node(children=[node(opts={"jobId": "a"}), node(opts={"jobId": "a"})]), "duplicate flow job id: a"),
        (node(children=[SHARED, SHARED]), "flow contains a cycle or shared node"),
        (node(opts={"repeat": {"every": 1}}), "repeat is not supported inside an atomic flow"),
        (node(opts={"deduplication": {"id": "x"}}), "deduplication is not supported inside an atomic flow"),
        (node(opts={"debounce": {"id": "x"}}), "debounce is not supported inside an atomic flow"),
        (
            node(opts={"parent": {"id": "1", "queue": "q"}}),
            "FlowProducer owns parent links; opts.parent is not allowed",
        ),
        (deep(101), "flow exceeds the 100 level depth limit"),
        (node(children=[node() for _ in range(10_000)]), "flow exceeds the 10000 job limit"),
    ],
)
async def test_what_is_no_flow(flow: Any, text: str) -> None:
    producer = FlowProducer()
    with pytest.raises(ValueError, match=text):
        await producer.add(flow)


async def test_more_that_is_no_flow() -> None:
    async with FlowProducer() as producer:
        with pytest.raises(ValueError, match="nested children are only supported by addTree"):
            await producer.add_chain([node(children=[node()])])
        with pytest.raises(ValueError, match="jobId cannot be a queue default"):
            await producer.add(node(), {"queues_options": {"q": {"jobId": "x"}}})


async def test_a_response_without_the_jobs_is_refused(scripted: Callable[..., ScriptedServer]) -> None:
    responses = [{"ok": True}, {"ok": True, "data": {"jobs": [wire_job("other")]}}]
    server = scripted(lambda command, connection: responses.pop(0))
    async with FlowProducer(**server.address) as producer:
        with pytest.raises(CommandError, match="committed job snapshots are missing"):
            await producer.add(node())
        with pytest.raises(CommandError, match="IDs do not match the request"):
            await producer.add(node())


async def test_a_group_of_queues(target: Target, name: str) -> None:
    async with QueueGroup(name, **target) as group:
        assert await group.list_queues() == []
        a, b = group.get_queue("a"), group.get_queue("b")
        assert group.get_queue("a") is a
        assert (a.queue_key, a.logical_name) == (f"{name}:a", "a")
        await a.add("x", 1)
        await b.add_bulk([{"name": "x"}, {"name": "y"}])
        async with Queue("c", prefix_key=f"{name}:", **target) as other:
            await other.add("z", {})
        assert await group.list_queues() == ["a", "b", "c"]
        await group.pause_all()
        assert await a.is_paused()
        assert await b.is_paused()
        await group.resume_all()
        assert not await a.is_paused()

        async def process(job: Job) -> str:
            return "grouped"

        async with group.get_worker("a", process):
            (job,) = await a.get_jobs()
            assert await job.wait_until_finished(ttl_ms=10_000) == "grouped"
        assert await group.drain_all() == 2
        await group.obliterate_all()
        assert await a.get_jobs() == []
    with pytest.raises(ValueError, match="namespace must not be empty"):
        QueueGroup("")
