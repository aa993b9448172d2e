"""Taking jobs and saying what became of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, Final

from bunqueue_core.answer import Answer
from bunqueue_core.commands.replies import Refusal, error_text, then, timed
from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import (
    ABSENT,
    AnyCheck,
    Flag,
    FreeText,
    JobId,
    JobIds,
    ListCheck,
    LiteralFlag,
    Members,
    NumberCheck,
    QueueName,
    Reply,
    Text,
    Tokens,
    Value,
    command,
)
from bunqueue_core.model.errors import NotFound, SerializationError, ValidationError
from bunqueue_core.model.options import positive_safe_integer, text
from bunqueue_core.model.requests import (
    DEFAULT_LOCK_TTL_MS,
    Ack,
    Acknowledged,
    Delivery,
    Failure,
    GroupDefaults,
    Progress,
    PullRequest,
    Renewal,
)
from bunqueue_core.model.rules import MAX_STACK_LINES

#: Longest wait of a pull, ms.
MAX_PULL_WAIT_MS: Final = 60_000

#: Jobs that one batch pull may ask for.
MAX_PULL_COUNT: Final = 1000

Wait = Annotated[int, NumberCheck(0, MAX_PULL_WAIT_MS)]
Duration = Annotated[int, NumberCheck(0)]

_ALREADY_FINAL: Final = {"data": {"applied": False, "reason": "already-finalized"}}
_NO_HEARTBEAT: Final = "Job not found or not active (or invalid token)"


@command("PULL", waits=True, returns={"job": "job or null", "token": "lock token or null (only with owner)"})
def pull(
    session: Session,
    queue: QueueName,
    timeout: Wait = 0,
    owner: Text = "",
    lock_ttl: Duration = DEFAULT_LOCK_TTL_MS,
    detach: Flag = False,
    group: Value = ABSENT,
) -> Reply:
    """Claim the next job of a queue, waiting up to ``timeout`` ms while there is none.

    With ``owner`` the job comes with a lock token that holds for ``lockTtl`` ms unless it is renewed. A job is handed back when
    the connection closes, unless its lock was renewed or it was taken without owner and with ``detach``.
    """
    tracked = session.id if owner or not detach else None
    request = PullRequest(queue, 1, owner or None, lock_ttl, timeout, tracked, _group(group))
    return then(_claim(session, request), _locked_job if owner else _job)


@command("PULLB", waits=True, returns={"jobs": "list of jobs", "tokens": "list of lock tokens (only with owner)"})
def pull_batch(
    session: Session,
    queue: QueueName,
    count: Annotated[int | None, NumberCheck(1, MAX_PULL_COUNT, whole="ceil")] = None,
    timeout: Wait = 0,
    owner: Text = "",
    lock_ttl: Duration = DEFAULT_LOCK_TTL_MS,
    group: Value = ABSENT,
) -> Reply:
    """Claim up to ``count`` jobs of a queue; what there is comes at once, only an empty batch waits. Without count: none."""
    defaults = _group(group)
    shape = _locked_jobs if owner else _jobs
    if count is None:
        return shape([])
    request = PullRequest(queue, count, owner or None, lock_ttl, timeout, session.id, defaults)
    return then(_claim(session, request), shape)


@command("ACK", returns={"data": "{applied: false, reason} when the broker had ended the delivery itself"})
def ack(
    session: Session,
    id: JobId,
    token: Text = "",
    result: Value = ABSENT,
    remove_on_complete: LiteralFlag = False,
) -> Reply:
    """Complete a job. An absent result is no result; null is one. Answered after the commit."""
    started = time.perf_counter()
    member = Ack(id, token or None, _result(session, result, "result"), remove_on_complete)
    return then(timed(session, "ack", session.broker.ack((member,)), started), _acknowledged)


@command(
    "ACKB",
    returns={
        "data": "{ignoredIndices, ignoredIds} when the broker had ended deliveries itself; beside an error "
        "{failedIndices, failedIds, errors} of the members that could not be applied"
    },
)
def ack_batch(
    session: Session,
    ids: JobIds,
    tokens: Tokens | None = None,
    results: Annotated[list[Any] | None, ListCheck(AnyCheck())] = None,
    remove_on_completes: Annotated[list[Any] | None, ListCheck(AnyCheck())] = None,
) -> Reply:
    """Complete jobs. All tokens are checked before anything is applied; then every member that can be is.

    ``removeOnCompletes`` counts only together with ``results``.
    """
    started = time.perf_counter()
    count = len(ids)
    for name, values in (("tokens", tokens), ("results", results), ("removeOnCompletes", remove_on_completes)):
        if values is not None and len(values) != count:
            raise ValidationError(f"ACKB {name} length must match ids length")
    if not ids:
        return None
    if results is None:
        members = [Ack(id, tokens[i] or None if tokens else None) for i, id in enumerate(ids)]
    else:
        members = [
            Ack(
                id,
                tokens[i] or None if tokens else None,
                _result(session, results[i], f"results[{i}]"),
                remove_on_completes is not None and remove_on_completes[i] is True,
            )
            for i, id in enumerate(ids)
        ]
    answer = timed(session, "ack", session.broker.ack(members), started)
    return then(answer, lambda done: _acknowledged_batch(ids, done))


@command("FAIL", returns={"data": "{applied: false, reason} when the broker had ended the delivery itself"})
def fail(
    session: Session,
    id: JobId,
    token: Text = "",
    error: FreeText | None = None,
    stack: Value = ABSENT,
    unrecoverable: Flag = False,
    remove_on_fail: LiteralFlag = False,
) -> Reply:
    """Record a failed attempt: retried with back-off, or dead-lettered when no attempt is left or it is unrecoverable."""
    failure = Failure(id, error, token or None, _stack(stack), unrecoverable, remove_on_fail)
    return then(session.broker.fail((failure,)), _acknowledged)


@command("JobHeartbeat", returns={"data": "{ok: true}"})
def job_heartbeat(session: Session, id: JobId, token: Text = "", duration: Duration = 0) -> Reply:
    """Say that a job is still worked on. With its token the lock is renewed too, for ``duration`` ms or its own length."""
    beat = Renewal(id, token or None, duration or None)
    return then(session.broker.heartbeat((beat,)), _heard)


@command("JobHeartbeatB", returns={"data": "{ok: true, count}"})
def job_heartbeat_batch(session: Session, ids: JobIds, tokens: Tokens | None = None) -> Reply:
    """Heartbeats of many jobs; ``count`` says how many were reached. Never refused for the rest."""
    beats = [Renewal(id, _at(tokens, position) or None) for position, id in enumerate(ids)]
    return then(session.broker.heartbeat(beats), _count_heard)


@command("ExtendLock")
def extend_lock(session: Session, id: JobId, token: Text = "", duration: Duration | None = None) -> Reply:
    """Let a lock hold for ``duration`` ms from now (its own length without). Without token, whatever lock the job has."""
    return then(session.broker.extend((Renewal(id, token or None, duration),)), _extended)


@command("ExtendLocks", returns={"count": "number of locks extended"})
def extend_locks(
    session: Session,
    ids: JobIds,
    tokens: Tokens,
    durations: Annotated[list[int | None], ListCheck(NumberCheck(0), nullable=True)],
) -> Reply:
    """Extend locks, position by position; those that cannot be are just not counted."""
    renewals = [Renewal(id, _at(tokens, position) or None, _at(durations, position)) for position, id in enumerate(ids)]
    return then(session.broker.extend(renewals), lambda held: {"count": sum(held)})


@command("Progress")
def progress(
    session: Session, id: JobId, progress: Annotated[int | float, NumberCheck(whole="keep")], message: Value = ABSENT
) -> Reply:
    """Set the progress of an active job, clamped to 0..100. An absent message leaves the old one, null clears it."""
    keep = message is ABSENT
    note = None if keep or message is None else text(message, "message")
    return then(session.broker.progress(id, min(100, max(0, progress)), note, keep), _nothing)


@command("GetProgress", returns={"progress": "number 0..100", "message": "string or null"})
def get_progress(session: Session, id: JobId) -> Reply:
    """Progress of an active job."""
    return then(session.broker.progress_of(id), _progress)


def _claim(session: Session, request: PullRequest) -> Answer[list[Delivery]]:
    started = time.perf_counter()
    answer = session.broker.pull(request)
    # The time that a pull spends waiting for a job says nothing about the broker.
    return timed(session, "pull", answer, started) if answer.ready or not request.wait_ms else answer


def _group(value: Any) -> GroupDefaults | None:
    if value is ABSENT:
        return None
    if not isinstance(value, dict):
        raise ValidationError("group must be an object")
    concurrency, limit = value.get("concurrency"), value.get("limit")
    if concurrency is not None:
        concurrency = positive_safe_integer(concurrency, "group.concurrency")
    limit_max = limit_duration = None
    if limit is not None:
        if not isinstance(limit, dict):
            raise ValidationError("group.limit must be an object")
        limit_max = positive_safe_integer(limit.get("max"), "group.limit.max")
        limit_duration = positive_safe_integer(limit.get("duration"), "group.limit.duration")
    affinity = value.get("affinity")
    if affinity is not None and not isinstance(affinity, str):
        raise ValidationError("group.affinity must be a string or null")
    return GroupDefaults(concurrency, limit_max, limit_duration, "affinity" in value, affinity)


def _result(session: Session, value: Any, field: str) -> bytes | None:
    if value is ABSENT:
        return None
    try:
        return session.services.packer.pack(value)
    except SerializationError as error:
        raise ValidationError(f"{field} cannot be stored: {error}") from None


def _stack(value: Any) -> list[str] | None:
    """Lines as they can be stored; which of them are kept is the broker's to decide."""
    if not isinstance(value, list):
        return None
    return [
        line if line.isascii() else line.encode("utf-8", "replace").decode()
        for line in value[:MAX_STACK_LINES]
        if isinstance(line, str)
    ]


def _at(values: Sequence[Any] | None, position: int) -> Any:
    return values[position] if values is not None and position < len(values) else None


def _job(deliveries: list[Delivery]) -> Members:
    return {"job": deliveries[0].job if deliveries else None}


def _locked_job(deliveries: list[Delivery]) -> Members:
    if not deliveries:
        return {"job": None, "token": None}
    return {"job": deliveries[0].job, "token": deliveries[0].token}


def _jobs(deliveries: list[Delivery]) -> Members:
    return {"jobs": [delivery.job for delivery in deliveries]}


def _locked_jobs(deliveries: list[Delivery]) -> Members:
    return {
        "jobs": [delivery.job for delivery in deliveries],
        "tokens": [delivery.token or "" for delivery in deliveries],
    }


def _acknowledged(done: Acknowledged) -> Members:
    if done.errors:
        done.raise_first()
    return None if done.outcomes[0] == "applied" else _ALREADY_FINAL


def _acknowledged_batch(ids: Sequence[str], done: Acknowledged) -> Members:
    if done.errors:
        failed = sorted(done.errors)
        raise Refusal(
            error_text(done.errors[failed[0]]),
            {
                "data": {
                    "failedIndices": failed,
                    "failedIds": [ids[position] for position in failed],
                    "errors": [error_text(done.errors[position]) for position in failed],
                }
            },
        )
    ignored = [position for position, outcome in enumerate(done.outcomes) if outcome != "applied"]
    if not ignored:
        return None
    return {"data": {"ignoredIndices": ignored, "ignoredIds": [ids[position] for position in ignored]}}


def _heard(heard: list[bool]) -> Members:
    if not heard[0]:
        raise NotFound(_NO_HEARTBEAT)
    return {"data": {"ok": True}}


def _count_heard(heard: list[bool]) -> Members:
    return {"data": {"ok": True, "count": sum(heard)}}


def _extended(held: list[bool]) -> Members:
    if not held[0]:
        raise NotFound("Lock not found or invalid token")
    return None


def _progress(progress: Progress) -> Members:
    return {"progress": progress.progress, "message": progress.message}


def _nothing(value: None) -> Members:
    return None
