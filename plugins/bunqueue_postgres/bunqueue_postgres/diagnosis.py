"""Why the database cannot be used, and what mends it: for the log, health and the refusal of a start.

Texts name a setting, a cause and a mend, never a host, user, database, statement or secret. Refused connections carry no SQLSTATE
(libpq hands over the server's text only), so they are told apart by the English text of libpq and of PostgreSQL 15 to 18; a server
that speaks another language gives the general cause.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from bunqueue_core.model.errors import BunqueueError, CommandError, ConfigurationError, StorageUnavailable
from bunqueue_postgres.errors import sqlstate, translate
from bunqueue_postgres.settings import CONNECT_TIMEOUT_S, MIN_SERVER_MAJOR


class Diagnosis(NamedTuple):
    """What is wrong.

    Attributes:
        cause: fit for clients.
        mend: what whoever runs the broker can do about it; empty where nothing but waiting helps.
        settled: it stays so until somebody changes something, so that trying again does not help.
        crowded: only a further connection is refused; those that are open work.
    """

    cause: str
    mend: str = ""
    settled: bool = False
    crowded: bool = False

    @property
    def text(self) -> str:
        """Cause and mend, for the log and for health."""
        return f"{self.cause}; {self.mend}" if self.mend else self.cause


_URL_UNREADABLE: Final = Diagnosis(
    "storage.url cannot be read", "percent-encode reserved characters in it and correct its parameters", True
)

READ_ONLY: Final = Diagnosis(
    "the database takes no writes now", "if it stays so, let storage.url lead to the primary instead of a replica"
)

_CROWDED: Final = Diagnosis(
    "the database takes no more connections",
    "lower storage.poolSize or raise the server's max_connections: each broker needs poolSize + 1",
    crowded=True,
)

#: What PgBouncer says of a transaction when it gives its sessions out by the statement.
_STATEMENT_POOLING: Final = "statement pooling mode"

_BY_STATEMENTS: Final = Diagnosis(
    "the pooler gives sessions out by the statement, so that no transaction is possible",
    "let storage.url lead to a pool of mode transaction or session, or to the database itself",
    True,
)

_UNREACHABLE: Final = Diagnosis(
    "the database cannot be reached", "check storage.url, and the database server's log for the reason"
)

_QUOTED: Final = re.compile(r"\"[^\"]*\"|'[^']*'")

#: Text of a failed connection → what it means; the first that occurs counts.
_CONNECTING: Final[tuple[tuple[re.Pattern[str], Diagnosis], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), diagnosis)
    for pattern, diagnosis in (
        (
            r"password authentication failed|no password supplied|not permitted to log in|role \".*?\" does not exist"
            r"|authentication failed|no such user",
            Diagnosis(
                "the database refuses the login",
                "check user and password in storage.url, reserved characters percent-encoded",
                True,
            ),
        ),
        (
            r"pg_hba\.conf",
            Diagnosis(
                "the database lets this host or user not in",
                "add a rule to the server's pg_hba.conf, or sslmode=verify-full to storage.url if the rule asks for TLS",
                True,
            ),
        ),
        (
            r"database \".*?\" does not exist|no such database",
            Diagnosis(
                "the database does not exist", "create it, or correct its name at the end of storage.url's path", True
            ),
        ),
        (
            r"permission denied for database",
            Diagnosis(
                "the user may not connect to the database",
                "grant it CONNECT, or name another user in storage.url",
                True,
            ),
        ),
        (
            r"not currently accepting connections",
            Diagnosis("the database accepts no connections", "allow them, or name another database in storage.url"),
        ),
        (
            r"too many clients|remaining connection slots|too many connections for",
            _CROWDED,
        ),
        (
            r"server login (?:has been failing|failed)|cannot connect to server|query_wait_timeout",
            Diagnosis("the pooler does not reach the database", "check the pooler's log, and the server behind it"),
        ),
        (
            r"system is (?:starting up|shutting down|in recovery mode|not accepting|not yet accepting)"
            r"|terminating connection|closed the connection unexpectedly",
            Diagnosis("the database is going down or starting"),
        ),
        (
            r"does not support SSL",
            Diagnosis(
                "the database offers no TLS, which sslmode asks for",
                "switch ssl on at the server, or change sslmode in storage.url",
                True,
            ),
        ),
        (
            r"does not match host name|certificate .*? is not valid for",
            Diagnosis(
                "the database's certificate is for another host",
                "use the host name of the certificate in storage.url",
                True,
            ),
        ),
        (
            r"certificate verify failed|signature failure|self.signed certificate|unable to get .*? certificate",
            Diagnosis(
                "the database's certificate is not trusted",
                "install its authority in the host's trust store (sslrootcert=system), or name it with sslrootcert "
                "in storage.url",
                True,
            ),
        ),
        (
            r"root certificate file",
            Diagnosis(
                "there is no root certificate to check the database's against",
                "add sslrootcert to storage.url: a file, or system for the host's trust store",
                True,
            ),
        ),
        (
            r"invalid response to SSL|expected authentication request|unsupported frontend protocol",
            Diagnosis("what answers is no PostgreSQL server", "correct host and port in storage.url"),
        ),
        (
            r"channel binding|SSL|TLS|certificate",
            Diagnosis("TLS with the database failed", "check sslmode and the certificates named in storage.url", True),
        ),
        (
            r"failed to resolve host|could not translate host name|name or service not known",
            Diagnosis("the database's host name is unknown", "correct the host in storage.url, or the name service"),
        ),
        (
            r"connection refused",
            Diagnosis(
                "nothing accepts connections at the database's host and port",
                "start the database, or correct host and port in storage.url",
            ),
        ),
        (
            r"timeout expired|timed out|connection timeout",
            Diagnosis(
                f"the database did not answer within {CONNECT_TIMEOUT_S} s",
                "check host and port in storage.url, and firewalls on the way",
            ),
        ),
        (
            r"no route to host|unreachable",
            Diagnosis("the database's host is unreachable", "check the host in storage.url, and the network"),
        ),
        (
            r"on socket .*? failed",
            Diagnosis("no database answers at that Unix socket", "start it, or correct the host in storage.url"),
        ),
        (
            r"read-only|hot standby",
            Diagnosis(
                "no server is of the kind that target_session_attrs asks for",
                "correct the hosts or target_session_attrs in storage.url",
            ),
        ),
        (r"invalid|unrecognized|missing|unexpected", _URL_UNREADABLE),
    )
)

#: SQLSTATE, or the start of it, of a statement that failed → what it means. Longer entries win.
_STATES: Final[dict[str, Diagnosis]] = {
    "25006": READ_ONLY,
    "42501": Diagnosis(
        "the user lacks privileges in the database",
        "let the user of storage.url own the schema bunqueue, or grant it CREATE on the database",
        True,
    ),
    "53100": Diagnosis("the database's disk is full", "free space at the database server"),
    "53300": _CROWDED,
    "55P03": Diagnosis(
        "another session holds a lock for longer than storage.lockTimeoutMs",
        "end that session (pg_stat_activity shows it), or raise the setting",
    ),
    "57014": Diagnosis(
        "a statement took longer than storage.statementTimeoutMs",
        "find out what slows the database, or raise the setting",
    ),
}


def diagnose(error: BaseException) -> Diagnosis:
    """What an error of the database means.

    Args:
        error: whatever connecting or a statement raised.
    """
    if isinstance(error, StorageUnavailable):
        return Diagnosis(error.reason)
    if isinstance(error, BunqueueError):
        return Diagnosis(str(error))
    state = sqlstate(error)
    if state is not None:
        if _STATEMENT_POOLING in str(error):
            return _BY_STATEMENTS
        for length in (5, 3, 2):
            found = _STATES.get(state[:length])
            if found is not None:
                return found
        return _translated(translate(error))
    # What is quoted is somebody's name, which may read like anything.
    text = _QUOTED.sub('""', str(error))
    for pattern, diagnosis in _CONNECTING:
        if pattern.search(text):
            return diagnosis
    return _UNREACHABLE


def _translated(error: CommandError) -> Diagnosis:
    return Diagnosis(getattr(error, "reason", None) or str(error))


def refusal(error: BaseException) -> BunqueueError:
    """The error that a start ends with when the database raised ``error``; its text names the setting to mend."""
    diagnosis = diagnose(error)
    refused: BunqueueError = (
        ConfigurationError(diagnosis.text) if diagnosis.settled else StorageUnavailable(diagnosis.text)
    )
    refused.__cause__ = error
    return refused


def check_server(version: int, encoding: str | None) -> None:
    """Refuse a server that cannot hold the queue.

    Args:
        version: as libpq gives it: 10,000 times the major.
        encoding: the database's; None if the server did not say.

    Raises:
        ConfigurationError: it is too old, or its text is not UTF-8.
    """
    major = version // 10_000
    if major < MIN_SERVER_MAJOR:
        raise ConfigurationError(
            f"storage.url leads to PostgreSQL {major}, which is too old; use a server of version {MIN_SERVER_MAJOR} to 18"
        )
    if encoding is not None and encoding != "UTF8":
        raise ConfigurationError(
            f"the database's encoding is {encoding}, which cannot hold every job; create it with ENCODING 'UTF8' "
            "and name that one in storage.url"
        )
