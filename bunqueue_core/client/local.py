"""The verbs of a broker in this process.

The frequent ones are the broker's own, called directly. The others go through the same table of commands that serves a server's
clients, with the same checks and error texts, so that a client sees no difference.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from bunqueue_core.answer import Answer
from bunqueue_core.client._options import linked_data, wire_options
from bunqueue_core.client._session import DEFAULT_TIMEOUT, Default, decode_frame
from bunqueue_core.client._verbs import Claim, Verbs
from bunqueue_core.client.remote import bulk_entry
from bunqueue_core.commands.session import Services, Session
from bunqueue_core.model.errors import (
    BunqueueError,
    CapabilityError,
    CommandError,
    SerializationError,
    ValidationError,
)
from bunqueue_core.model.job import DURABLE_OPTIONS, JobSpec, plain_spec
from bunqueue_core.model.options import JobReader
from bunqueue_core.model.payload import MAX_DATA_CHARACTERS, Packer, check_size
from bunqueue_core.model.requests import Ack, Acknowledged, Event, Failure, PullRequest, Pushed, Renewal
from bunqueue_core.model.rules import check_job_name
from bunqueue_core.model.wire import WireEncoder
from bunqueue_core.scheduling.repeat import Repeats

if TYPE_CHECKING:
    from bunqueue_core.broker.protocol import Broker
    from bunqueue_core.commands.table import Command

#: Payloads of at most so many bytes are small enough whatever they hold; see :func:`check_size`.
_SMALL_BYTES: Final = MAX_DATA_CHARACTERS // 8

_PLAIN: Final = frozenset(("name", "data"))


class _Tools(threading.local):
    """Encoders, which belong to one thread at a time."""

    def __init__(self, strategies: Collection[str]) -> None:
        self.pack = Packer().pack
        self.reader = JobReader(strategies, Repeats().check_pattern)
        self.encoder = WireEncoder()


class LocalVerbs(Verbs):
    """The verbs of ``broker``.

    Args:
        broker: a started broker.
        services: what the commands work with.
        table: the commands by name.
        strategies: names of the back-off strategies.
    """

    remote = False

    def __init__(
        self,
        broker: Broker,
        services: Services,
        table: Mapping[str, Command],
        strategies: Collection[str],
    ) -> None:
        self._broker = broker
        self._table = table
        self._session = Session(services, "embedded", authenticated=True)
        # The services are made for one thread; embedded clients come from many.
        self._commands = threading.Lock()
        self._tools = _Tools(strategies)

    @property
    def generation(self) -> int:
        """Always 1: an embedded broker forgets nobody."""
        return 1

    # -- produce ------------------------------------------------------------------------------------------------------

    def add(self, queue: str, name: str, data: Any, options: Mapping[str, Any] | None) -> Answer[Pushed]:
        """Read the job and push it."""
        if options is None:
            return self._broker.push(queue, (self._plain(name, data),))
        if len(options) == 1 and options.get("durable") is True:
            spec = self._plain(name, data)
            spec.options = DURABLE_OPTIONS
            return self._broker.push(queue, (spec,))
        raw = wire_options(options)
        raw["name"] = name
        data = linked_data(data, options)
        if data is not None:
            raw["data"] = data
        return self._broker.push(queue, (self._read(self._tools.reader.read, raw),))

    def add_bulk(
        self, queue: str, jobs: Sequence[Mapping[str, Any]], defaults: Mapping[str, Any] | None
    ) -> Answer[Pushed]:
        """Read the jobs and push them together."""
        specs: list[JobSpec] = []
        pack, plain = self._tools.pack, _PLAIN
        if defaults is None:
            checked: str | None = None
            for job in jobs:
                if job.keys() != plain:
                    break
                name, data = job["name"], job["data"]
                if name is not checked:
                    if not _is_plain_name(name):
                        break
                    checked = name
                if data is None:
                    specs.append(plain_spec(name, None))
                    continue
                blob = pack(data)
                if len(blob) > _SMALL_BYTES:
                    break
                specs.append(plain_spec(name, blob))
        if len(specs) < len(jobs):
            entries = [bulk_entry(job, defaults) for job in jobs]
            specs = self._read(self._tools.reader.read_batch, entries)
        return self._broker.push(queue, specs)

    def _plain(self, name: str, data: Any) -> JobSpec:
        if not _is_plain_name(name):
            raw = {"name": check_job_name(name)}
            if data is not None:
                raw["data"] = data
            spec: JobSpec = self._read(self._tools.reader.read, raw)
            return spec
        if data is None:
            return plain_spec(name, None)
        blob = self._tools.pack(data)
        if len(blob) > _SMALL_BYTES:
            check_size(blob)
        return plain_spec(name, blob)

    @staticmethod
    def _read(read: Callable[[Any], Any], raw: Any) -> Any:
        try:
            return read(raw)
        except ValidationError as error:
            # A client tells a payload that cannot be encoded from a job that is refused.
            if isinstance(error.__cause__, SerializationError):
                raise error.__cause__ from None
            raise

    # -- consume ------------------------------------------------------------------------------------------------------

    def pull(self, request: PullRequest) -> Answer[Sequence[Claim]]:
        """``Broker.pull``."""
        return self._broker.pull(request)  # type: ignore[return-value]

    def ack(self, acks: Sequence[Ack], *, flush: bool = True) -> Answer[Acknowledged]:
        """``Broker.ack``."""
        return self._broker.ack(acks)

    def fail(self, failure: Failure, *, flush: bool = True) -> Answer[Acknowledged]:
        """``Broker.fail``."""
        return self._broker.fail((failure,))

    def heartbeat(self, renewals: Sequence[Renewal]) -> Answer[list[bool]]:
        """``Broker.heartbeat``."""
        return self._broker.heartbeat(renewals)

    # -- everything else ----------------------------------------------------------------------------------------------

    def command(
        self,
        name: str,
        fields: Mapping[str, Any],
        *,
        timeout: float | Default | None = DEFAULT_TIMEOUT,
        flush: bool = True,
    ) -> Answer[dict[str, Any]]:
        """Run command ``name`` of the table."""
        command = self._table.get(name)
        if command is None:
            return Answer.failed(CapabilityError(name, self._broker.capabilities.driver))
        request = {key: value for key, value in fields.items() if value is not None}
        try:
            with self._commands:
                reply = command.run(self._session, request)
            if isinstance(reply, Answer):
                return reply.map(self._response)
            return Answer.of(self._response(reply))
        except BunqueueError as error:
            return Answer.failed(error)

    def _response(self, members: Mapping[str, Any] | None) -> dict[str, Any]:
        """The reply as a server's client would decode it."""
        response = decode_frame(self._tools.encoder.reply(members, None, False))
        if not isinstance(response, dict):
            raise CommandError("Internal server error")
        return response

    def subscribe(self, queue: str, listener: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        """Call ``listener`` with the members of each event of ``queue``, in whatever thread it happens; returns what ends that."""

        def told(event: Event) -> None:
            listener(decode_frame(self._tools.encoder.event(event))["event"])

        return self._broker.subscribe(told, queue)


def _is_plain_name(name: Any) -> bool:
    """Whether ``name`` is a job name that needs no closer look; the others go through the reader, which words the refusal."""
    return type(name) is str and 0 < len(name) <= 256 and name.isascii() and "\0" not in name
