"""What the broker makes of the database's errors."""

from __future__ import annotations

import psycopg
import pytest
from bunqueue_postgres.errors import is_disconnect
from psycopg import errors


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (psycopg.OperationalError("the connection is lost"), True),  # libpq's own have no SQLSTATE
        (errors.ConnectionFailure(), True),
        (errors.ProtocolViolation(), True),  # 08P01, as which poolers report a server that went away
        (errors.AdminShutdown(), True),
        (errors.CrashShutdown(), True),
        (errors.CannotConnectNow(), True),
        (errors.QueryCanceled(), False),
        (errors.SerializationFailure(), False),
        (errors.DiskFull(), False),
        (errors.UniqueViolation(), False),
        (psycopg.ProgrammingError("a mistake of ours"), False),
        (OSError("not the database's"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_that_mean_a_lost_connection(error: BaseException, lost: bool) -> None:
    assert is_disconnect(error) is lost
