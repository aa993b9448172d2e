"""Settings of the driver ``postgres`` and what it offers."""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal

from pydantic import Field, SecretStr, field_validator

from bunqueue_core.broker.protocol import Capabilities
from bunqueue_core.plugins.drivers import Env, StorageSettings

#: What the broker offers.
CAPABILITIES: Final = Capabilities(
    driver="postgres", embedded=False, multi_broker=True, persistent=True, snapshots=False
)

#: Oldest server that the broker works with.
MIN_SERVER_MAJOR: Final = 15

#: Largest duration that a setting takes, ms: 2**53 - 1, which every client's number type holds exactly.
MAX_DURATION_MS: Final = 2**53 - 1

#: Largest value of PostgreSQL's own time-out settings, ms.
MAX_SESSION_TIMEOUT_MS: Final = 2**31 - 1

#: Runtime floors, ms: a smaller setting is raised to it.
MIN_LEASE_MS: Final = 1_000
MIN_POLL_MS: Final = 25

#: Fewest connections that the pool needs: one for a statement, one for maintenance beside it.
MIN_POOL_SIZE: Final = 2

#: Fixed safeguards of the pool, seconds: time to connect, idle time after which a connection closes, longest life of one.
CONNECT_TIMEOUT_S: Final = 10
IDLE_CLOSE_S: Final = 30
MAX_LIFETIME_S: Final = 3_600


class PostgresStorage(StorageSettings):
    """``storage`` with driver ``postgres``: many brokers on one database.

    Lease and poll durations below their floor (1,000 ms and 25 ms) and a pool below 2 are raised to it when the broker runs.
    """

    driver: Literal["postgres"] = "postgres"
    url: SecretStr = Field(
        description="postgres:// or postgresql:// URL of the database; reserved characters percent-encoded."
    )
    listen_url: SecretStr | None = Field(
        default=None,
        description="URL for the listening connection alone; needed only if url leads through a pooler of transactions.",
    )
    notify: bool = Field(
        default=True, description="Wake other brokers by NOTIFY, and LISTEN; without, brokers find out by polling."
    )
    namespace: str = Field(
        default="default", description="Brokers of one namespace share queues; namespaces never meet."
    )
    broker_id: str | None = Field(
        default=None,
        description="Name of this broker, unique among the live ones; generated from host and process if absent.",
    )
    pool_size: int = Field(default=4, ge=1, description="Connections for statements; one more listens.")
    lease_duration_ms: int = Field(
        default=30_000,
        ge=1,
        le=MAX_DURATION_MS,
        description="Lease of a pull that names none, and the pace of coordination.",
    )
    poll_interval_ms: int = Field(
        default=250,
        ge=1,
        le=MAX_DURATION_MS,
        description="How often waiting pulls look again without having been woken.",
    )
    statement_timeout_ms: int = Field(
        default=30_000,
        ge=1,
        le=MAX_SESSION_TIMEOUT_MS,
        description="PostgreSQL's statement_timeout of each connection.",
    )
    lock_timeout_ms: int = Field(
        default=5_000, ge=1, le=MAX_SESSION_TIMEOUT_MS, description="PostgreSQL's lock_timeout of each connection."
    )
    idle_transaction_timeout_ms: int = Field(
        default=30_000,
        ge=1,
        le=MAX_SESSION_TIMEOUT_MS,
        description="PostgreSQL's idle_in_transaction_session_timeout of each connection.",
    )
    max_concurrent_operations: int = Field(
        default=16, ge=1, description="Statements that may run or hold a connection at once."
    )
    max_queued_operations: int = Field(
        default=128, ge=0, description="Statements that may wait for their turn; beyond, commands fail at once as busy."
    )
    max_completed_jobs: Annotated[int, Env("BUNQUEUE_MAX_COMPLETED_JOBS", "MAX_COMPLETED_JOBS")] = Field(
        default=50_000,
        ge=1,
        le=MAX_DURATION_MS,
        description="Completion proofs kept of jobs that were removed and that no live job needs; completed jobs stay.",
    )
    max_queue_events: int = Field(
        default=10_000, ge=1, le=MAX_DURATION_MS, description="Events kept of each queue, the newest; the others go."
    )
    max_snapshot_jobs: int = Field(default=100_000, ge=1, description="Most jobs that one operation may load at once.")
    max_snapshot_payload_bytes: int = Field(
        default=268_435_456, ge=1, description="Most payload bytes that one operation may load at once."
    )

    @field_validator("url", "listen_url")
    @classmethod
    def _check_scheme(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().startswith(("postgres://", "postgresql://")):
            raise ValueError("PostgreSQL storage requires a postgres:// or postgresql:// URL")
        return value

    @field_validator("max_queue_events", mode="before")
    @classmethod
    def _check_events(cls, value: object) -> object:
        # Brokers follow each other by the events: without any, none would hear of what another does.
        if isinstance(value, int | float) and math.isfinite(value) and value < 1:
            raise ValueError("PostgreSQL storage requires maxQueueEvents to be at least 1")
        return value

    @field_validator("namespace")
    @classmethod
    def _default_namespace(cls, value: str) -> str:
        return value.strip() or "default"

    @field_validator("broker_id")
    @classmethod
    def _blank_broker_id(cls, value: str | None) -> str | None:
        return (value.strip() or None) if value else None

    @property
    def effective_lease_ms(self) -> int:
        """Lease duration in force, ms."""
        return max(MIN_LEASE_MS, self.lease_duration_ms)

    @property
    def effective_poll_ms(self) -> int:
        """Poll interval in force, ms."""
        return max(MIN_POLL_MS, self.poll_interval_ms)

    @property
    def effective_pool_size(self) -> int:
        """Connections of the pool in force."""
        return max(MIN_POOL_SIZE, self.pool_size)

    @property
    def heartbeat_ms(self) -> int:
        """How often the broker says that it lives, ms: a third of the lease, at least 1 s."""
        return max(1_000, self.effective_lease_ms // 3)

    @property
    def stale_after_ms(self) -> int:
        """Age of the last heartbeat after which a broker's name may be taken over, ms."""
        return max(self.effective_lease_ms, 3 * self.heartbeat_ms)

    @property
    def recovery_ms(self) -> int:
        """How often expired leases are looked for, ms: half a lease, between 0.5 s and 15 s."""
        return min(15_000, max(500, self.effective_lease_ms // 2))
