"""Adding jobs."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from bunqueue_core.answer import Answer
from bunqueue_core.commands.replies import then, timed
from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import AnyCheck, ListCheck, Members, QueueName, Reply, WholeRequest, command
from bunqueue_core.model.errors import CommandError, NotFound
from bunqueue_core.model.flows import FlowReader
from bunqueue_core.model.job import JobState
from bunqueue_core.model.options import OPTION_NAMES, LateValidationError
from bunqueue_core.model.requests import Pushed

JobMembers = Annotated[Mapping[str, Any], WholeRequest(("name", "data", *sorted(OPTION_NAMES - {"customId"})))]


@command("PUSH", returns={"id": "job id", "outcome": "created, found or replaced (only when dedup.scope is given)"})
def push(session: Session, queue: QueueName, request: JobMembers) -> Reply:
    """Add a job.

    The answer holds its id, or that of the job which already stands for it (custom id, deduplication). The custom id is
    ``jobId``. A durable job is answered after the commit that holds it.
    """
    started = time.perf_counter()
    try:
        spec = session.services.reader.read(request)
    except LateValidationError as error:
        return _unless_a_dependency_is_missing(session, error)
    answer = timed(session, "push", session.broker.push(queue, (spec,)), started)
    return then(answer, _pushed if spec.options.dedup_scope is None else _pushed_with_outcome)


@command(
    "PUSHB",
    returns={
        "ids": "list of job ids",
        "outcomes": "list of created, found, replaced (only when a dedup.scope is given)",
    },
)
def push_batch(session: Session, queue: QueueName, jobs: Annotated[list[Any], ListCheck(AnyCheck())]) -> Reply:
    """Add jobs, all or none, in order. Members of an element as of PUSH, but its custom id is ``customId``."""
    started = time.perf_counter()
    specs = session.services.reader.read_batch(jobs)
    if not specs:
        return {"ids": []}
    answer = timed(session, "push", session.broker.push(queue, specs), started)
    if session.services.announce is not None and len(specs) > 1:
        answer.add_callback(lambda pushed: _announce_batch(session, queue, pushed))
    named = any(spec.options.dedup_scope is not None for spec in specs)
    return _indexed(answer).map(_batch_with_outcomes if named else _batch)


@command("PUSHF", returns={"data": "{jobs: list of jobs as admitted, in order}"})
def push_flow(session: Session, jobs: Annotated[Any, AnyCheck()] = None) -> Reply:
    """Add a flow: a graph of jobs, each ``{id, queue, input}``, admitted whole or not at all."""
    started = time.perf_counter()
    flow = FlowReader(session.services.reader).read(jobs)
    if not flow:
        return {"data": {"jobs": []}}
    answer = timed(session, "push", session.broker.push_flow(flow), started)
    return then(answer, lambda admitted: {"data": {"jobs": admitted}})


def _announce_batch(session: Session, queue: str, answer: Answer[Pushed]) -> None:
    if answer.error is None:
        outcomes = answer.value.outcomes
        found = outcomes.count("found")
        inserted = len(outcomes) - found
        if inserted:
            session.services.tell("batch:pushed", queue=queue, total=len(outcomes), inserted=inserted, duplicates=found)


def _unless_a_dependency_is_missing(session: Session, error: LateValidationError) -> Reply:
    def decide(states: Sequence[JobState]) -> Members:
        for id, state in zip(error.depends_on, states, strict=True):
            if state == "unknown":
                raise NotFound(f"Dependency job not found: {id}")
        raise error

    return then(session.broker.states(error.depends_on), decide)


def _indexed(answer: Answer[Pushed]) -> Answer[Pushed]:
    """Name the element at fault in the text of an error."""
    if answer.ready and answer.error is None:
        return answer
    outcome: Answer[Pushed] = Answer()

    def settle(settled: Answer[Pushed]) -> None:
        error = settled.error
        if error is None:
            outcome.settle(settled.value)
            return
        if isinstance(error, CommandError) and error.position is not None:
            indexed = copy.copy(error)
            indexed.args = (f"jobs[{error.position}]: {error}",)
            error = indexed
        outcome.fail(error)

    answer.add_callback(settle)
    return outcome


def _pushed(pushed: Pushed) -> Members:
    return {"id": pushed.ids[0]}


def _pushed_with_outcome(pushed: Pushed) -> Members:
    return {"id": pushed.ids[0], "outcome": pushed.outcomes[0]}


def _batch(pushed: Pushed) -> Members:
    return {"ids": pushed.ids}


def _batch_with_outcomes(pushed: Pushed) -> Members:
    return {"ids": pushed.ids, "outcomes": pushed.outcomes}
