"""Looking at jobs and queues."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Final

from bunqueue_core.commands.replies import then
from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import (
    ABSENT,
    AnyQueue,
    Flag,
    JobId,
    Members,
    NumberCheck,
    Reply,
    Text,
    Value,
    command,
)
from bunqueue_core.model.errors import NotFound, ValidationError
from bunqueue_core.model.job import JOB_STATES, JobState
from bunqueue_core.model.options import text
from bunqueue_core.model.payload import Packed, is_shallow
from bunqueue_core.model.requests import Counts, JobView, Page
from bunqueue_core.model.wire import ViewWithoutState

#: Levels of lists and maps in what is no id that an answer still echoes.
MAX_ECHO_DEPTH: Final = 32

#: Longest wait of ``WaitJob``, and its default, ms.
MAX_JOB_WAIT_MS: Final = 600_000
DEFAULT_JOB_WAIT_MS: Final = 30_000

Offset = Annotated[int, NumberCheck()]


@command("GetJob", returns={"job": "job with state, returnvalue, failedReason"})
def get_job(session: Session, id: Text = "") -> Reply:
    """A job, wherever it is."""
    return then(session.broker.job(id), _job)


@command("GetJobByCustomId", returns={"job": "job with returnvalue, failedReason"})
def get_job_by_custom_id(session: Session, custom_id: Text = "") -> Reply:
    """The job of a custom id, as long as it is retained."""
    return then(session.broker.job_by_custom_id(custom_id), _job_without_state)


@command("GetJobs", returns={"jobs": "list of jobs with state, returnvalue, failedReason"})
def get_jobs(
    session: Session,
    queue: AnyQueue,
    state: Value = ABSENT,
    offset: Offset = 0,
    limit: Offset = 100,
    asc: Flag = True,
) -> Reply:
    """Jobs of a queue in one or several states (all without), by creation time then id, descending with ``asc: false``."""
    wanted = _states(state)
    known: list[JobState] = [name for name in JOB_STATES if name in wanted]
    if limit <= 0 or (wanted and not known):
        return {"jobs": []}
    shown = known[0] if isinstance(state, str) and known else None
    page = Page(max(0, offset), limit, asc)

    def listed(views: list[JobView]) -> Members:
        if shown is not None:
            # A job may have come due since; what was asked for is what is shown.
            views = [view if view.state == shown else dataclasses.replace(view, state=shown) for view in views]
        return {"jobs": views}

    return then(session.broker.jobs(queue, known, page), listed)


@command("GetState", returns={"id": "job id", "state": "state, unknown for an unknown job"})
def get_state(session: Session, id: Value = None) -> Reply:
    """The state of a job. Never refused."""
    if not _may_be_known(id):
        return {"id": id if is_shallow(id, MAX_ECHO_DEPTH) else None, "state": "unknown"}
    return then(session.broker.states((id,)), lambda states: {"id": id, "state": states[0]})


@command("GetResult", returns={"id": "job id", "result": "result; absent when there is none"})
def get_result(session: Session, id: Value = None) -> Reply:
    """The result of a completed job. Never refused; null is a result."""
    if not _may_be_known(id):
        return {"id": id if is_shallow(id, MAX_ECHO_DEPTH) else None}

    def found(results: list[bytes | None]) -> Members:
        return {"id": id} if results[0] is None else {"id": id, "result": Packed(results[0])}

    return then(session.broker.results((id,)), found)


@command(
    "GetJobCounts",
    returns={"counts": "{waiting, prioritized, delayed, active, completed, failed, waiting-children, paused}"},
)
def get_job_counts(session: Session, queue: AnyQueue) -> Reply:
    """Jobs of a queue by state. While it is paused its ready jobs count as paused."""
    return then(session.broker.counts(queue), lambda counts: {"counts": counts_by_state(counts)})


@command("GetCountsPerPriority", returns={"queue": "queue name", "counts": "{priority: number}"})
def get_counts_per_priority(session: Session, queue: AnyQueue) -> Reply:
    """Queued jobs (waiting, prioritized, delayed) by priority."""

    def named(counts: dict[int, int]) -> Members:
        return {"queue": queue, "counts": {str(priority): count for priority, count in counts.items()}}

    return then(session.broker.counts_per_priority(queue), named)


@command("Count", returns={"count": "number"})
def count(session: Session, queue: AnyQueue) -> Reply:
    """Queued jobs of a queue, delayed ones too; neither active nor waiting for children."""
    return then(
        session.broker.counts(queue),
        lambda counts: {"count": counts.waiting + counts.prioritized + counts.delayed + counts.paused},
    )


@command("GetChildrenValues", returns={"data": "{values: {queue:id: result}}"})
def get_children_values(session: Session, id: JobId) -> Reply:
    """Results of a job's children; those without one are left out."""

    def packed(values: dict[str, bytes]) -> Members:
        return {"data": {"values": {key: Packed(value) for key, value in values.items()}}}

    return then(session.broker.children_values(id), packed)


@command("GetFailedChildrenValues", returns={"values": "{queue:id: error}"})
def get_failed_children_values(session: Session, id: JobId) -> Reply:
    """Errors of children that failed and let their parent go on."""
    return then(session.broker.children_failures(id, "continue"), lambda values: {"values": values})


@command("GetIgnoredChildrenFailures", returns={"values": "{queue:id: error}"})
def get_ignored_children_failures(session: Session, id: JobId) -> Reply:
    """Errors of children whose failure their parent ignores."""
    return then(session.broker.children_failures(id, "ignore"), lambda values: {"values": values})


@command(
    "WaitJob",
    waits=True,
    returns={"completed": "boolean", "result": "result; absent when there is none or it did not complete"},
)
def wait_job(
    session: Session, id: JobId, timeout: Annotated[int, NumberCheck(0, MAX_JOB_WAIT_MS)] = DEFAULT_JOB_WAIT_MS
) -> Reply:
    """Wait until a job has completed. ``completed: false`` when it failed or vanished, or after ``timeout`` ms."""
    return then(session.broker.wait(id, timeout), _waited)


@command("ListQueues", returns={"queues": "list of names"})
def list_queues(session: Session) -> Reply:
    """Names of all queues, in order of first appearance."""
    return then(session.broker.queues(), lambda queues: {"queues": queues})


def counts_by_state(counts: Counts) -> dict[str, int]:
    """Counts under the names of the states."""
    return {
        "waiting": counts.waiting,
        "prioritized": counts.prioritized,
        "delayed": counts.delayed,
        "active": counts.active,
        "completed": counts.completed,
        "failed": counts.failed,
        "waiting-children": counts.waiting_children,
        "paused": counts.paused,
    }


def _may_be_known(id: Any) -> bool:
    """Whether a job could have this id at all."""
    try:
        text(id, "id")
    except ValidationError:
        return False
    return True


def _states(value: Any) -> set[str]:
    if value is ABSENT or value is None or value == "":
        return set()
    if isinstance(value, str):
        return {value}
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return set(value)
    raise ValidationError("state must be a string or an array of strings")


def _job(view: JobView | None) -> Members:
    if view is None:
        raise NotFound("Job not found")
    return {"job": view}


def _job_without_state(view: JobView | None) -> Members:
    if view is None:
        raise NotFound("Job not found")
    return {"job": ViewWithoutState(view)}


def _waited(outcome: tuple[bool, bytes | None]) -> Members:
    completed, result = outcome
    if not completed:
        return {"completed": False}
    return {"completed": True} if result is None else {"completed": True, "result": Packed(result)}
