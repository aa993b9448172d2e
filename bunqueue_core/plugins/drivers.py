"""What a plugin hands over through the hooks: drivers, targets, kinds, strategies and sinks, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from bunqueue_core.model.ports import Ports
from bunqueue_core.model.rules import BackoffStrategy as BackoffStrategy
from bunqueue_core.model.schedule import Schedule as Schedule
from bunqueue_core.model.schedule import ScheduleKind as ScheduleKind

if TYPE_CHECKING:
    from bunqueue_core.broker.protocol import Broker, Capabilities
    from bunqueue_core.model.requests import Event
    from bunqueue_core.storage.journal import Journal, SnapshotFiles
    from bunqueue_core.storage.maintenance import Maintenance


class Env:
    """Names the environment variables of a settings field, in their order; the first that is set decides.

    Use it in ``Annotated``. Without it a field of a storage driver is read from ``BUNQUEUE_<DRIVER>_<FIELD>``.
    """

    __slots__ = ("names",)

    def __init__(self, *names: str) -> None:
        self.names = names


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a number whose field name does not end in it (``ms``, ``bytes``). Use it in ``Annotated``."""

    name: Literal["ms", "bytes", "mb"]


class Secret:
    """Marks a field whose value is never shown. Use it in ``Annotated``; a pydantic ``SecretStr`` needs no mark."""

    __slots__ = ()


class SettingsModel(BaseModel):
    """Base of every settings model: camelCase and snake_case keys, unknown keys refused, values fixed once validated."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,
    )


class StorageSettings(SettingsModel):
    """Base of a storage driver's settings. A driver narrows ``driver`` to ``Literal["its name"]`` with that default."""

    driver: str


class JournalSettings(StorageSettings):
    """Settings that every journal driver shares, because the core's engine reads them."""

    max_completed_jobs: Annotated[int, Env("BUNQUEUE_MAX_COMPLETED_JOBS", "MAX_COMPLETED_JOBS")] = Field(
        default=50_000, ge=1, description="Completed jobs kept in memory; it bounds memory only, not what is stored."
    )
    completed_retention_ms: Annotated[int | None, Env("BUNQUEUE_COMPLETED_RETENTION_MS", "COMPLETED_RETENTION_MS")] = (
        Field(
            default=None,
            ge=0,
            le=2**53 - 1,
            description="Delete completed jobs this many ms after completion; None keeps them.",
        )
    )


@dataclass(frozen=True, slots=True)
class OpenContext:
    """What the core hands to a driver that is opened.

    Attributes:
        ports: clock, ids and randomness.
        version: version of the server, for registries.
        role: ``server`` or ``embedded``.
        log: writes one log record: level, message, fields.
        strategies: back-off strategies by name, those of the core among them; empty: only those.
        kinds: kinds of schedule, in the order in which their fields are looked for; empty: only those of the core.
    """

    ports: Ports
    version: str
    role: Literal["server", "embedded"]
    log: Callable[..., None]
    strategies: Mapping[str, BackoffStrategy] = field(default_factory=dict)
    kinds: Sequence[ScheduleKind] = ()


@dataclass(frozen=True, slots=True)
class JournalDriver:
    """A storage driver that stores what the core's engine decides.

    Attributes:
        name: value of ``storage.driver`` that selects it.
        settings: its settings model.
        capabilities: what a broker on it offers.
        open: gives the (not yet opened) journal, or None where there is nothing to keep (memory).
        describe: one line for people: what is used, without secrets.
        identity: what makes two openings in one process the same storage (a resolved path); None: never the same.
        files: the storage as a file, for backups and restores; None where ``capabilities.snapshots`` is False.
        maintenance: offline care of the storage, for ``bunqueue db``; None where there is nothing to care for.
    """

    name: str
    settings: type[JournalSettings]
    capabilities: Capabilities
    open: Callable[[Any, OpenContext], Journal | None]
    describe: Callable[[Any], str]
    identity: Callable[[Any], str | None] = lambda _: None
    files: Callable[[Any], SnapshotFiles] | None = None
    maintenance: Callable[[Any], Maintenance] | None = None


@dataclass(frozen=True, slots=True)
class BrokerDriver:
    """A storage driver that is authoritative itself. Attributes as :class:`JournalDriver`; ``open`` gives a broker."""

    name: str
    settings: type[StorageSettings]
    capabilities: Capabilities
    open: Callable[[Any, OpenContext], Broker]
    describe: Callable[[Any], str]


StorageDriver = JournalDriver | BrokerDriver


class BackupStore(Protocol):
    """An opened backup target: objects by key. Used by one thread at a time, not always the same one.

    Every method may block, and raises :class:`~bunqueue_core.backup.errors.StoreError`; its ``retryable`` says whether the same
    call may succeed shortly. The store itself does not repeat anything. What ends an upload early, an error of the iterable that it
    reads included, must leave no object.
    """

    @property
    def prefix(self) -> str:
        """What the key of every backup begins with, as it is; may be empty."""

    def check(self) -> None:
        """Find out whether backups can be kept there.

        Raises:
            ConfigurationError: the place does not exist or refuses; the message names the setting to mend.
            StoreError: it cannot be reached now.
        """

    def put(
        self, key: str, chunks: Iterable[bytes], *, size: int | None = None, content_type: str | None = None
    ) -> None:
        """Publish an object atomically: it is there whole, or not at all. One of that key is replaced.

        Args:
            key: its whole key, prefix included.
            chunks: its bytes.
            size: their number, if known; fewer or more are an error.
            content_type: media type, for targets that keep one.
        """

    def get(self, key: str) -> Iterator[bytes]:
        """Iterate over the object's bytes in chunks.

        Raises:
            ObjectMissing: there is no such object.
        """

    def list(self) -> Sequence[tuple[str, int, int]]:
        """(key, size in bytes, modified at in epoch ms) of every object under the prefix; never a part of them."""

    def delete(self, key: str) -> None:
        """Remove the object; a missing one is no error."""

    def tidy(self, before: int) -> int:
        """Remove what uploads left behind that were interrupted, and begun before ``before`` (epoch ms). Gives their number."""

    def close(self) -> None:
        """Release connections. Idempotent."""


@dataclass(frozen=True, slots=True)
class BackupTarget:
    """A place for backups.

    Attributes:
        name: value of ``backup.target`` that selects it.
        settings: its settings model.
        open: gives the store; does not contact it.
        describe: where backups go, for people and events, without secrets; the first entry names the place.
        label: its name for people; empty: ``name``.
    """

    name: str
    settings: type[SettingsModel]
    open: Callable[[Any, OpenContext], BackupStore]
    describe: Callable[[Any], Mapping[str, str]] = lambda _: {}
    label: str = ""


class EventSink(Protocol):
    """Receives every event. Runs isolated from the broker: its failures and slowness are counted, never felt.

    Where events are missing because it was too slow or failed too often, the next batch begins with an event of type ``dropped``
    whose ``count`` says how many. ``name`` is the ``type`` that chooses it in ``events.sinks``.
    """

    name: str

    def write(self, events: Sequence[Event]) -> None:
        """Take a batch, in order. May block; runs on the sink's own thread.

        Raises:
            Exception: it was not taken; the same events come again a few times, then they are given up.
        """

    def close(self) -> None:
        """Flush and end."""
