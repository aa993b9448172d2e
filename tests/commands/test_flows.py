"""Flows: what a member and a graph must look like, and in which order it is said."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue_core.model.errors import ValidationError
from bunqueue_core.model.flows import FlowReader
from bunqueue_core.model.options import JobReader
from bunqueue_core.model.payload import decode


def read(*members: Any) -> Any:
    return FlowReader(JobReader()).read(list(members))


def refusal(*members: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        read(*members)
    return str(caught.value)


def member(id: str = "x", queue: Any = "q", **given: Any) -> dict[str, Any]:
    return {"id": id, "queue": queue, "input": {"data": {}, **given}}


def child(id: str, parent: str = "p", queue: str = "q", **given: Any) -> dict[str, Any]:
    return member(id, "c", parentId=parent, data={"__parentId": parent, "__parentQueue": queue}, **given)


def parent(*children: str, **given: Any) -> dict[str, Any]:
    ids = list(children)
    return member("p", data={"__childrenIds": ids}, **{"childrenIds": ids, "dependsOn": ids, **given})


def test_a_family() -> None:
    flow = read(parent("a", "b"), child("a"), child("b", priority=3, failParentOnFailure=True))
    assert [(job.id, job.queue) for job in flow] == [("p", "q"), ("a", "c"), ("b", "c")]
    assert flow[0].spec.depends_on == flow[0].spec.children_ids == ("a", "b")
    assert (flow[2].spec.parent_id, flow[2].spec.parent_queue, flow[2].spec.priority) == ("p", None, 3)
    assert flow[2].spec.options.fail_parent_on_failure
    assert flow[0].spec.custom_id is None


def test_names_and_the_legacy_envelope() -> None:
    legacy, plain, own = read(
        member("a", data={"name": "legacy", "v": 1}), member("b"), member("c", name="own", data={"name": "kept"})
    )
    assert [job.spec.name for job in (legacy, plain, own)] == ["legacy", "default", "own"]
    assert [decode(job.spec.data) for job in (legacy, own)] == [{"v": 1}, {"name": "kept"}]


def test_an_empty_flow_and_what_is_none() -> None:
    assert read() == []
    for raws in (None, 5, {}, "x"):
        with pytest.raises(ValidationError, match="flow jobs must be an array"):
            FlowReader(JobReader()).read(raws)
    assert refusal(*[member(str(n)) for n in range(10_001)]) == "flow exceeds the 10000 job limit"


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (5, "flow jobs[0] must be an object"),
        ({"queue": "q", "input": {}}, "flow job id must be a string"),
        (member(""), "flow job id is invalid or is not well-formed Unicode"),
        (member("x" * 1025), "flow job id is invalid or is not well-formed Unicode"),
        (member("\ud800"), "flow job id is invalid or is not well-formed Unicode"),
        (member("a:b"), "flow job id cannot contain a colon"),
        (member(queue="a b"), "invalid flow queue: a b"),
        (member(queue=None), "invalid flow queue: None"),
        ({"id": "x", "queue": "q"}, "flow job input is invalid: x"),
        (member(customId="other"), "custom id does not match planned id: x"),
        (member(parentId=7), "flow parent id is invalid: x"),
        (member(parentId=""), "flow parent id is invalid: x"),
        (member(dependsOn="a"), "dependsOn must be an array of valid string job ids"),
        (member(dependsOn=[""]), "dependsOn must be an array of valid string job ids"),
        (member(childrenIds=["z" * 1025]), "childrenIds must be an array of valid string job ids"),
        (member(name=""), "Job name must be a non-empty string of at most 256 characters"),
        (member(name=None), "Job name must be a non-empty string of at most 256 characters"),
        (member(data={"name": ""}), "Job name must be a non-empty string of at most 256 characters"),
        (member(data=None), "flow job data must be an object"),
        (member(data=[]), "flow job data must be an object"),
        (member(data={"x": "y" * 10_485_760}), "Job data too large (max 10MB)"),
        (member(priority="1"), "priority must be a finite number"),
        (member(priority=10**400), "priority must be between -1000000 and 1000000"),
        (member(priority=1.5), "priority must be an integer"),
        (member(priority=1_000_001), "priority must be between -1000000 and 1000000"),
        (member(groupId="g", priority=-1), "group.priority must be between 0 and 2097151"),
        (member(delay=-1), "delay must be between 0 and 31536000000"),
        (member(timeout=True), "timeout must be a finite number"),
        (member(stallTimeout=86_400_001), "stallTimeout must be between 0 and 86400000"),
        (member(backoff=-1), "backoff must be between 0 and 86400000"),
        (member(backoff={"type": "fixed", "delay": -1}), "backoff.delay must be between 0 and 86400000"),
        (member(backoff={"type": "linear", "delay": 1}), "backoff.type must be 'fixed' or 'exponential'"),
        (member(maxAttempts=0), "attempts must be between 1 and 1000"),
        (member(maxAttempts=1.5), "attempts must be an integer"),
        (member(stackTraceLimit=10_001), "stackTraceLimit must be between 0 and 10000"),
        (member(keepLogs=-1), "keepLogs must be between 0 and 1000000"),
        (member(timestamp=-1), "timestamp must be between 0 and 9007199254740991"),
        (member(groupId="g", groupMaxSize=0), "group.maxSize must be between 1 and 9007199254740991"),
        (member(lifo=1), "lifo must be a boolean"),
        (member(removeOnComplete="yes"), "removeOnComplete must be a boolean"),
        (member(groupId=""), "groupId must be a non-empty string"),
        (member(groupId=None), "groupId must be a string"),
        (member(tags=["t" * 257]), "tags must be an array of strings of at most 256 characters"),
        (member(repeat={"every": 1000}), "repeat is not supported inside an atomic flow"),
        (member(uniqueKey="k"), "deduplication is not supported inside an atomic flow"),
        (member(debounceTtl=5), "debounce is not supported inside an atomic flow"),
        (member(failParentOnFailure=True), "a flow failure policy requires a parent"),
    ],
)
def test_members_that_are_refused(bad: Any, text: str) -> None:
    assert refusal(bad) == text


def test_a_backoff_without_delay_has_the_default_one() -> None:
    (job,) = read(member(backoff={"type": "fixed"}))
    assert job.spec.options.backoff == {"type": "fixed", "delay": 1000}


def test_all_data_together_is_bounded() -> None:
    big = {"x": "y" * 9_000_000}
    assert len(read(*[member(str(n), data=big) for n in range(7)])) == 7
    text = "flow data is too large (max 64MB per atomic batch)"
    assert refusal(*[member(str(n), data=big) for n in range(8)]) == text


@pytest.mark.parametrize(
    ("flow", "text"),
    [
        ([member("a"), member("a")], "duplicate flow job id: a"),
        ([member("a", dependsOn=["b", "b"]), member("b")], "duplicate dependency in flow job: a"),
        ([member("a", dependsOn=["nope"])], "flow dependency not found: nope"),
        ([member("a", dependsOn=["a"])], "flow job cannot depend on itself: a"),
        ([parent("a", "a", dependsOn=["a"]), child("a")], "duplicate child in flow job: p"),
        ([parent("a", dependsOn=[]), child("a")], "flow child is missing from dependencies: a"),
        ([parent("a"), member("a", "c")], "flow child a does not point back to parent p"),
        ([child("a")], "flow parent not found: p"),
        ([member("p"), child("a")], "flow parent p does not own child a"),
        ([parent("a"), child("a", queue="other")], "flow child a metadata does not match parent p"),
        ([parent("a"), member("a", "c", parentId="p")], "flow child a metadata does not match parent p"),
        (
            [member("p", childrenIds=["a"], dependsOn=["a"]), child("a")],
            "flow parent p children does not match the canonical flow topology",
        ),
        ([member("a", dependsOn=["b"]), member("b", dependsOn=["a"])], "flow contains a dependency cycle"),
        (
            [member("free"), *(member(str(n), dependsOn=[str((n + 1) % 50)]) for n in range(50))],
            "flow contains a dependency cycle",
        ),
    ],
)
def test_graphs_that_are_refused(flow: list[Any], text: str) -> None:
    assert refusal(*flow) == text


def test_only_one_policy() -> None:
    flow = [parent("a"), child("a", failParentOnFailure=True, continueParentOnFailure=True)]
    assert refusal(*flow) == "flow failure policies are mutually exclusive"


def test_members_are_checked_before_the_graph() -> None:
    assert refusal(member("a", dependsOn=["nope"]), member("b", ttl=-1)) == "ttl must be between 0 and 31536000000"
    assert refusal(member(data=[], maxAttempts=0)) == "flow job data must be an object"


def test_a_long_chain() -> None:
    chain = [member(str(n), dependsOn=[str(n + 1)]) for n in range(9_999)]
    assert len(read(*chain, member("9999"))) == 10_000
