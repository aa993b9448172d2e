"""Settings: defaults, bounds, floors, and what never shows."""

from __future__ import annotations

import pytest
from bunqueue_postgres.settings import PostgresStorage
from pydantic import ValidationError

URL = "postgresql://user:p%40ss@db.example:5432/jobs"


def storage(**settings: object) -> PostgresStorage:
    return PostgresStorage.model_validate({"url": URL, **settings})


def test_defaults() -> None:
    settings = storage()
    assert (settings.namespace, settings.broker_id, settings.pool_size) == ("default", None, 4)
    assert (settings.lease_duration_ms, settings.poll_interval_ms) == (30_000, 250)
    assert (settings.statement_timeout_ms, settings.lock_timeout_ms, settings.idle_transaction_timeout_ms) == (
        30_000,
        5_000,
        30_000,
    )
    assert (settings.max_concurrent_operations, settings.max_queued_operations) == (16, 128)
    assert (settings.max_completed_jobs, settings.max_queue_events) == (50_000, 10_000)
    assert (settings.max_snapshot_jobs, settings.max_snapshot_payload_bytes) == (100_000, 268_435_456)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("pool_size", 1, None),
        ("lease_duration_ms", 1, 2**53 - 1),
        ("poll_interval_ms", 1, 2**53 - 1),
        ("statement_timeout_ms", 1, 2**31 - 1),
        ("lock_timeout_ms", 1, 2**31 - 1),
        ("idle_transaction_timeout_ms", 1, 2**31 - 1),
        ("max_concurrent_operations", 1, None),
        ("max_queued_operations", 0, None),
        ("max_completed_jobs", 1, 2**53 - 1),
        ("max_queue_events", 1, 2**53 - 1),
        ("max_snapshot_jobs", 1, None),
        ("max_snapshot_payload_bytes", 1, None),
    ],
)
def test_bounds(name: str, least: int, most: int | None) -> None:
    assert getattr(storage(**{name: least}), name) == least
    with pytest.raises(ValidationError, match=name):
        storage(**{name: least - 1})
    if most is not None:
        assert getattr(storage(**{name: most}), name) == most
        with pytest.raises(ValidationError, match=name):
            storage(**{name: most + 1})


def test_a_journal_without_events_is_refused() -> None:
    with pytest.raises(ValidationError, match="PostgreSQL storage requires maxQueueEvents to be at least 1"):
        storage(maxQueueEvents=0)


def test_small_values_are_raised_when_it_runs() -> None:
    settings = storage(lease_duration_ms=1, poll_interval_ms=1, pool_size=1)
    assert (settings.effective_lease_ms, settings.effective_poll_ms, settings.effective_pool_size) == (1_000, 25, 2)


@pytest.mark.parametrize(
    ("lease", "heartbeat", "stale", "recovery"),
    [
        (30_000, 10_000, 30_000, 15_000),
        (1_000, 1_000, 3_000, 500),
        (3_000, 1_000, 3_000, 1_500),
        (600_000, 200_000, 600_000, 15_000),
    ],
)
def test_intervals_follow_the_lease(lease: int, heartbeat: int, stale: int, recovery: int) -> None:
    settings = storage(lease_duration_ms=lease)
    assert (settings.heartbeat_ms, settings.stale_after_ms, settings.recovery_ms) == (heartbeat, stale, recovery)


@pytest.mark.parametrize("url", ["mysql://h/d", "h:5432", ""])
def test_another_url_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="requires a postgres:// or postgresql:// URL"):
        storage(url=url)


def test_blank_names_are_defaults() -> None:
    assert storage(namespace="  ").namespace == "default"
    assert storage(broker_id=" ").broker_id is None
    assert storage(namespace=" a ", broker_id=" b ").namespace == "a"


def test_the_password_does_not_show() -> None:
    assert "p%40ss" not in repr(storage())
    assert "p%40ss" not in str(storage())
