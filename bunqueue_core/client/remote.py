"""The verbs of a broker behind a connection: each becomes a command of protocol v3."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgpack

from bunqueue_core.answer import Answer, Driver
from bunqueue_core.client._options import linked_data, wire_options
from bunqueue_core.client._session import (
    DEFAULT_TIMEOUT,
    ConnectionOptions,
    Decoder,
    Default,
    array_header,
)
from bunqueue_core.client._verbs import Claim, Verbs
from bunqueue_core.model.errors import CommandError, NotFound
from bunqueue_core.model.requests import Ack, Acknowledged, Failure, Outcome, PullRequest, Pushed, Renewal

#: A long poll may take this much longer than it was told to wait, seconds.
POLL_GRACE_S: Final = 10.0

_RESULT: Final[bytes] = msgpack.packb("result")
_RESULTS: Final[bytes] = msgpack.packb("results")
#: ``undefined`` of the JavaScript codec: inside a list it says "no result", which null does not.
_UNDEFINED: Final = b"\xd4\x00\x00"


class Transport(Protocol):
    """What both transports offer; see :class:`~bunqueue_core.client._transport_threads.ThreadTransport`."""

    @property
    def options(self) -> ConnectionOptions: ...

    @property
    def connected(self) -> bool: ...

    @property
    def generation(self) -> int: ...

    @property
    def backing_off(self) -> bool: ...

    def open(self) -> Answer[None]: ...

    def submit(
        self,
        fields: dict[str, Any],
        *,
        timeout: float | Default | None = DEFAULT_TIMEOUT,
        decode: Decoder | None = None,
        extra: bytes = b"",
        extra_count: int = 0,
        flush: bool = True,
        on_cancel: Callable[[Answer[Any]], None] | None = None,
    ) -> Answer[Any]: ...

    def give_up(self, answer: Answer[Any], value: Any, late: Decoder) -> None: ...

    def close(self) -> None: ...


class RemoteVerbs(Verbs):
    """The verbs over ``transport``.

    Args:
        transport: carries the commands. Several clients may share it.
    """

    remote = True

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._submit = transport.submit

    @property
    def generation(self) -> int:
        """Number of connections made so far."""
        return self.transport.generation

    # -- produce ------------------------------------------------------------------------------------------------------

    def add(self, queue: str, name: str, data: Any, options: Mapping[str, Any] | None) -> Answer[Pushed]:
        """``PUSH``."""
        fields: dict[str, Any] = {"cmd": "PUSH", "queue": queue, "name": name}
        if options is not None:
            data = linked_data(data, options)
            fields.update(wire_options(options))
        if data is not None:
            fields["data"] = data
        return self._submit(fields, decode=_pushed_one)

    def add_bulk(
        self, queue: str, jobs: Sequence[Mapping[str, Any]], defaults: Mapping[str, Any] | None
    ) -> Answer[Pushed]:
        """``PUSHB``."""
        return self.add_entries(queue, [bulk_entry(job, defaults) for job in jobs])

    def add_entries(self, queue: str, entries: Sequence[Mapping[str, Any]]) -> Answer[Pushed]:
        """``PUSHB`` of what :func:`bulk_entry` has made."""
        return self._submit({"cmd": "PUSHB", "queue": queue, "jobs": entries}, decode=_pushed)

    # -- consume ------------------------------------------------------------------------------------------------------

    def pull(self, request: PullRequest) -> Answer[Sequence[Claim]]:
        """``PULL`` for one job, ``PULLB`` for more."""
        fields: dict[str, Any] = {
            "cmd": "PULL" if request.count == 1 else "PULLB",
            "queue": request.queue,
            "timeout": request.wait_ms,
        }
        if request.count != 1:
            fields["count"] = request.count
        if request.owner is not None:
            fields["owner"] = request.owner
            fields["lockTtl"] = request.lock_ttl_ms
        group = request.group
        if group is not None:
            defaults: dict[str, Any] = {}
            if group.concurrency is not None:
                defaults["concurrency"] = group.concurrency
            if group.limit_max is not None:
                defaults["limit"] = {"max": group.limit_max, "duration": group.limit_duration_ms}
            if group.affine:
                defaults["affinity"] = group.affinity
            fields["group"] = defaults
        return self._submit(
            fields,
            timeout=request.wait_ms / 1000 + POLL_GRACE_S,
            decode=_claim if request.count == 1 else _claims,
            on_cancel=self._cancel_pull,
        )

    def _cancel_pull(self, answer: Answer[Sequence[Claim]]) -> None:
        if not answer.ready:
            self.transport.give_up(answer, [], self._give_back_late)
        elif answer.error is None:
            self._give_back(answer.value)

    def _give_back_late(self, response: dict[str, Any]) -> None:
        self._give_back(_claims(response) if "jobs" in response else _claim(response))

    def _give_back(self, claims: Sequence[Claim]) -> None:
        """Return jobs that nobody will process. What cannot be returned comes back when its lease ends."""
        for source, token in claims:
            if isinstance(source, Mapping):
                self.command("MoveToWait", {"id": source.get("id"), "token": token})

    def ack(self, acks: Sequence[Ack], *, flush: bool = True) -> Answer[Acknowledged]:
        """``ACK`` for one job, ``ACKB`` for more."""
        if len(acks) == 1:
            return self._ack_one(acks[0], flush)
        fields: dict[str, Any] = {
            "cmd": "ACKB",
            "ids": [ack.id for ack in acks],
            "tokens": [ack.token for ack in acks],
        }
        extra, count = b"", 0
        removing = any(ack.remove for ack in acks)
        if removing:
            fields["removeOnCompletes"] = [ack.remove for ack in acks]
        if removing or any(ack.result is not None for ack in acks):
            parts = [_UNDEFINED if ack.result is None else ack.result for ack in acks]
            extra, count = _RESULTS + array_header(len(acks)) + b"".join(parts), 1
        batch: Answer[Acknowledged] = Answer(self.driver)

        def decode(response: dict[str, Any]) -> Acknowledged:
            return _acknowledged(response, len(acks))

        def finish(answer: Answer[Acknowledged]) -> None:
            error = answer.error
            if error is None:
                batch.settle(answer.value)
            elif isinstance(error, CommandError):
                # The batch is not atomic: some of it may have been applied. Each member is asked for by itself.
                self._ack_each(acks, batch)
            else:
                batch.fail(error)

        self._submit(fields, decode=decode, extra=extra, extra_count=count, flush=flush).add_callback(finish)
        return batch

    @property
    def driver(self) -> Driver | None:
        """What makes progress for a thread that waits; None where an event loop does."""
        transport = self.transport
        return transport if hasattr(transport, "drive") else None  # type: ignore[return-value]

    def _ack_one(self, ack: Ack, flush: bool) -> Answer[Acknowledged]:
        fields: dict[str, Any] = {"cmd": "ACK", "id": ack.id}
        if ack.token is not None:
            fields["token"] = ack.token
        if ack.remove:
            fields["removeOnComplete"] = True
        if ack.result is None:
            return self._submit(fields, decode=_acknowledged_one, flush=flush)
        return self._submit(fields, decode=_acknowledged_one, extra=_RESULT + ack.result, extra_count=1, flush=flush)

    def _ack_each(self, acks: Sequence[Ack], batch: Answer[Acknowledged]) -> None:
        """Acknowledge one by one after a batch was refused, and settle ``batch`` with what became of each."""
        outcomes: list[Outcome] = ["applied"] * len(acks)
        errors: dict[int, Exception] = {}
        left = len(acks)

        def settled(position: int, error: BaseException | None) -> None:
            nonlocal left
            if isinstance(error, Exception):
                errors[position] = error
            left -= 1
            if left == 0:
                batch.settle(Acknowledged(outcomes, errors))

        def follow(position: int, ack: Ack) -> None:
            def acknowledged(answer: Answer[Acknowledged]) -> None:
                error = answer.error
                if error is None:
                    outcomes[position] = answer.value.outcomes[0]
                if not isinstance(error, NotFound):
                    settled(position, error)
                    return
                # Perhaps the refused batch had applied this one: then the job is completed.
                self.command("GetState", {"id": ack.id}).add_callback(lambda state: judged(state, error))

            def judged(state: Answer[dict[str, Any]], error: NotFound) -> None:
                completed = state.error is None and state.value.get("state") == "completed"
                settled(position, None if completed else error)

            self._ack_one(ack, True).add_callback(acknowledged)

        for position, ack in enumerate(acks):
            follow(position, ack)

    def fail(self, failure: Failure, *, flush: bool = True) -> Answer[Acknowledged]:
        """``FAIL``."""
        fields: dict[str, Any] = {"cmd": "FAIL", "id": failure.id, "error": failure.error or ""}
        if failure.token is not None:
            fields["token"] = failure.token
        if failure.stack is not None:
            fields["stack"] = failure.stack
        if failure.unrecoverable:
            fields["unrecoverable"] = True
        if failure.remove:
            fields["removeOnFail"] = True
        return self._submit(fields, decode=_acknowledged_one, flush=flush)

    def heartbeat(self, renewals: Sequence[Renewal]) -> Answer[list[bool]]:
        """``JobHeartbeat`` for one job, ``JobHeartbeatB`` for more."""
        beats: Answer[list[bool]] = Answer(self.driver)
        if len(renewals) == 1:
            self._heartbeat_each(renewals, beats)
            return beats
        fields = {
            "cmd": "JobHeartbeatB",
            "ids": [renewal.id for renewal in renewals],
            "tokens": [renewal.token or "" for renewal in renewals],
        }

        def finish(answer: Answer[dict[str, Any]]) -> None:
            error = answer.error
            if error is not None:
                beats.fail(error)
                return
            data = answer.value.get("data")
            if isinstance(data, dict) and data.get("count") == len(renewals):
                beats.settle([True] * len(renewals))
                return
            # The response says how many were lost, not which.
            self._heartbeat_each(renewals, beats)

        self._submit(fields).add_callback(finish)
        return beats

    def _heartbeat_each(self, renewals: Sequence[Renewal], beats: Answer[list[bool]]) -> None:
        held = [True] * len(renewals)
        left = len(renewals)

        def settled(position: int, error: BaseException | None) -> None:
            nonlocal left
            left -= 1
            if error is not None and not isinstance(error, CommandError):
                beats.fail(error)
                return
            held[position] = error is None
            if left == 0:
                beats.settle(held)

        for position, renewal in enumerate(renewals):
            fields: dict[str, Any] = {"id": renewal.id, "token": renewal.token, "duration": renewal.duration_ms}
            self.command("JobHeartbeat", fields).add_callback(
                lambda answer, position=position: settled(position, answer.error)  # type: ignore[misc]
            )

    # -- everything else ----------------------------------------------------------------------------------------------

    def command(
        self,
        name: str,
        fields: Mapping[str, Any],
        *,
        timeout: float | Default | None = DEFAULT_TIMEOUT,
        flush: bool = True,
    ) -> Answer[dict[str, Any]]:
        """Send command ``name``."""
        command = {"cmd": name}
        command.update((key, value) for key, value in fields.items() if value is not None)
        return self._submit(command, timeout=timeout, flush=flush)


def bulk_entry(job: Mapping[str, Any], defaults: Mapping[str, Any] | None) -> dict[str, Any]:
    """An element of a bulk push as the wire has it, from ``{name, data, **options}``."""
    name, data = job.get("name"), job.get("data")
    entry: dict[str, Any] = {"name": "default" if name is None else name}
    if defaults or len(job) - ("name" in job) - ("data" in job):
        options = dict(defaults) if defaults else {}
        options.update((key, value) for key, value in job.items() if key not in ("name", "data"))
        data = linked_data(data, options)
        entry.update(wire_options(options, "customId"))
    if data is not None:
        entry["data"] = data
    return entry


def _pushed_one(response: dict[str, Any]) -> Pushed:
    return Pushed([response["id"]], ["created"])


def _pushed(response: dict[str, Any]) -> Pushed:
    ids = response["ids"]
    return Pushed(ids, ["created"] * len(ids))


def _claim(response: dict[str, Any]) -> Sequence[Claim]:
    job = response.get("job")
    return [] if job is None else [(job, response.get("token") or None)]


def _claims(response: dict[str, Any]) -> Sequence[Claim]:
    jobs = response.get("jobs") or []
    tokens = response.get("tokens")
    if tokens is None:
        return [(job, None) for job in jobs]
    return [(job, token or None) for job, token in zip(jobs, tokens, strict=True)]


def _acknowledged_one(response: dict[str, Any]) -> Acknowledged:
    data = response.get("data")
    ignored = isinstance(data, dict) and data.get("applied") is False
    return Acknowledged(["already-finalized" if ignored else "applied"], {})


def _acknowledged(response: dict[str, Any], count: int) -> Acknowledged:
    outcomes: list[Outcome] = ["applied"] * count
    data = response.get("data")
    if isinstance(data, dict):
        for position in data.get("ignoredIndices") or ():
            outcomes[int(position)] = "already-finalized"
    return Acknowledged(outcomes, {})
