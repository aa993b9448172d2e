"""Connections, admission, time-outs and the state of the database's health. Knows no table and no rule of the queue."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from bunqueue_core.model.errors import BackendBusy, BrokerClosed, BunqueueError, StorageUnavailable
from bunqueue_postgres import arrays
from bunqueue_postgres.connections import Connections
from bunqueue_postgres.diagnosis import READ_ONLY, Diagnosis, check_server, diagnose
from bunqueue_postgres.errors import CONNECTIONS_REFUSED, RETRIED_ONCE, WRITES_REFUSED, is_disconnect, sqlstate
from bunqueue_postgres.settings import CONNECT_TIMEOUT_S, IDLE_CLOSE_S, MAX_LIFETIME_S, PostgresStorage
from bunqueue_postgres.tls import trusted
from bunqueue_postgres.wire import Rows, Statement, WireConnection

S = TypeVar("S")
T = TypeVar("T")

#: How often a look at the database that is under way is told to end, within the time that closing may take.
PROBE_CANCELS: Final = 10

#: Seconds between attempts to reach a database that is away; the first comes at once.
RECONNECT_S: Final = 0.5

#: The same for a cause that somebody has to mend, such as a refused login: servers count those.
RECONNECT_SETTLED_S: Final = 2.0

#: Seconds in which a pool that is not exhausted has a connection to give.
POOL_PATIENCE_S: Final = 2.0

#: How long sent data may stay unconfirmed before the connection counts as lost, ms: about as long as a silent peer is given.
UNCONFIRMED_MS: Final = 12_000

#: Seconds before something that failed with a lost connection is tried again.
RETRY_PAUSE_S: Final = 0.05

#: Session settings of every connection. A plan that fits any parameters is made once a connection instead of once a call, since
#: planning costs more than running. The statements are written so that there is one sensible plan (their headers name the index).
#: That it is taken while the tables are still small, too, and so is right when they have grown, is what the refusals are for: no
#: whole table is read, and joins go row by row through an index from the few rows at hand.
#: Before PostgreSQL 18 a refused way that is the only one (through a small table, say) counts as immensely expensive, and so worth
#: seconds of compilation: hence no JIT.
#: A pooler between shows in a process that is not the one it gave out. Its sessions are shared with others: they stay as they are.
_CONFIGURE: Final = (
    "SELECT CASE WHEN pg_backend_pid() = $4::int4 THEN concat("
    "set_config('statement_timeout', $1, false), set_config('lock_timeout', $2, false), "
    "set_config('idle_in_transaction_session_timeout', $3, false), set_config('plan_cache_mode', 'force_generic_plan', false), "
    "set_config('enable_seqscan', 'off', false), set_config('enable_hashjoin', 'off', false), "
    "set_config('enable_mergejoin', 'off', false), set_config('jit', 'off', false)) END"
)

Connection = AsyncConnection[Any]


class Database:
    """The broker's way to PostgreSQL. Belongs to the event loop in which it was opened.

    Args:
        settings: the driver's settings.
        broker_id: shown as part of each connection's ``application_name``.
        on_health: called whenever the database was found to be away (cause and mend), for another cause, or back (None).
    """

    def __init__(self, settings: PostgresStorage, broker_id: str, on_health: Callable[[str | None], None]) -> None:
        self._settings = settings
        self._on_health = on_health
        self._limit = settings.max_concurrent_operations
        self._queue_limit = settings.max_queued_operations
        self._active = 0
        self._queued: deque[asyncio.Future[None]] = deque()
        self._own_tasks: set[asyncio.Task[Any]] = set()
        self._own = 0  #: of what runs or waits, the broker's own work
        self._closing = False
        self._probe: asyncio.Task[None] | None = None
        self._reason: str | None = None
        self._stale = False  #: connections may be there that became read-only and stay so whatever the server does
        self._back = asyncio.Event()  #: set while the database is not known to be away
        self._back.set()
        self._connections: Connections | None = None
        self.gate: asyncio.Task[None] | None = None  #: what every new statement waits for, if anything
        #: a pooler, which may change sessions between transactions, is between the broker and the database
        self.pooled = False
        self.statements = 0  #: statements and transactions that were run
        self.own_backends: set[int] = set()  #: process ids of this broker's connections, to know its own notifications
        # The pool logs the text of every failed attempt, hosts included. Programs that log its records still get them; without
        # any handler Python would write them to the standard error stream.
        pool_log = logging.getLogger("psycopg.pool")
        if not pool_log.handlers:
            pool_log.addHandler(logging.NullHandler())
        adapters = psycopg.adapt.AdaptersMap(psycopg.adapters)
        arrays.register(adapters)
        self._arguments: dict[str, Any] = {
            "autocommit": True,
            "prepare_threshold": 0,
            "cursor_factory": AsyncRawCursor,
            "context": adapters,
            "connect_timeout": CONNECT_TIMEOUT_S,
            "application_name": f"bunqueue:{broker_id}"[:63],
            # A peer that vanished without a word is noticed within seconds, not in the system's two hours.
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            # The same while something that was sent is not confirmed, when nothing is sent to find out.
            "tcp_user_timeout": UNCONFIRMED_MS,
        }

    # -- life cycle ---------------------------------------------------------------------------------------------------

    async def connect(self, *, listening: bool = False) -> Connection:
        """A connection outside the pool, configured like those in it; for ``listening``, to the URL meant for that."""
        settings = self._settings
        url = settings.listen_url if listening and settings.listen_url is not None else settings.url
        text = url.get_secret_value()
        connection: Connection = await AsyncConnection.connect(text, **self._arguments, **trusted(text))
        try:
            await self._configure(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def open(self) -> None:
        """Open the pool. Fails when the database cannot be reached.

        Raises:
            psycopg.Error: no connection could be made in time.
        """
        url = self._settings.url.get_secret_value()
        pool: AsyncConnectionPool[WireConnection] = AsyncConnectionPool(
            url,
            connection_class=WireConnection,
            kwargs={**self._arguments, **trusted(url)},
            min_size=1,
            max_size=self._settings.effective_pool_size,
            open=False,
            configure=self._configure,
            timeout=CONNECT_TIMEOUT_S,
            max_idle=IDLE_CLOSE_S,
            max_lifetime=MAX_LIFETIME_S,
            reconnect_timeout=CONNECT_TIMEOUT_S,
        )
        await pool.open()
        try:
            await pool.wait(CONNECT_TIMEOUT_S)
        except BaseException:
            await pool.close()
            raise
        self._connections = Connections(pool)

    async def close(self, timeout_s: float) -> None:
        """Refuse what comes, fail what waits, and close every connection. Idempotent."""
        self._closing = True
        while self._queued:
            waiter = self._queued.popleft()
            if not waiter.done():
                waiter.set_exception(BrokerClosed("Broker is closed"))
        if self._probe is not None:
            # Again and again: the pool takes a cancellation for the failure of one connection, and goes on with the next.
            for _ in range(PROBE_CANCELS):
                self._probe.cancel()
                if (await asyncio.wait([self._probe], timeout=timeout_s / PROBE_CANCELS))[0]:
                    break
        connections, self._connections = self._connections, None
        if connections is not None:
            await connections.close(timeout_s)

    async def _configure(self, connection: Connection) -> None:
        check_server(connection.info.server_version, connection.info.parameter_status("server_encoding"))
        settings = self._settings
        cursor = await connection.execute(
            _CONFIGURE,
            (
                str(settings.statement_timeout_ms),
                str(settings.lock_timeout_ms),
                str(settings.idle_transaction_timeout_ms),
                connection.info.backend_pid,
            ),
            prepare=False,
        )
        if await cursor.fetchone() == (None,):
            self.pooled = True
            connection.prepare_threshold = None
            return
        if len(self.own_backends) > 1_000:  # connections are replaced once an hour: this is years
            self.own_backends.clear()
        self.own_backends.add(connection.info.backend_pid)

    # -- work ---------------------------------------------------------------------------------------------------------

    async def run(self, query: bytes, parameters: Sequence[Any], *, first: bool = False) -> list[tuple[Any, ...]]:
        """Run one statement in a transaction of its own and return its rows.

        A conflict between transactions that rolled it back is tried once more. With ``first`` it does not wait for the gate.

        Raises:
            BackendBusy: too many statements wait already.
            StorageUnavailable: the database cannot be reached.
            psycopg.Error: anything else the database refused.
        """

        (rows,) = await self.run_all(((query, parameters),), first=first)
        assert not isinstance(rows, psycopg.Error)
        return rows

    async def run_all(self, statements: Sequence[Statement], *, first: bool = False) -> list[Rows | psycopg.Error]:
        """Run statements one after the other on one connection, each in a transaction of its own, with one wait for all.

        Gives the rows or the error of each; as :meth:`run` otherwise, where an error of the first one is raised.
        """
        return await self._admitted(self._run_on, statements, first)

    async def transaction(self, body: Callable[[Connection], Awaitable[T]]) -> T:
        """Run ``body`` in one transaction. It may be called twice, and must therefore begin from its own inputs each time."""
        return await self._admitted(self._run_within, body)

    def own(self, task: asyncio.Task[Any]) -> None:
        """Let statements of ``task`` count as the broker's own work: they wait for their turn however many wait, and take none of
        the places that commands have."""
        self._own_tasks.add(task)
        task.add_done_callback(self._own_tasks.discard)

    async def _admitted(self, work: Callable[[WireConnection, S], Awaitable[T]], argument: S, first: bool = False) -> T:
        """Do ``work`` with a connection and ``argument`` when it is its turn; see :meth:`run` for what it raises."""
        if self._closing or self._connections is None:
            raise BrokerClosed("Broker is closed")
        if self._reason is not None:
            raise StorageUnavailable(self._reason)
        if self.gate is not None and not first:
            await asyncio.wait([self.gate])
        own = asyncio.current_task() in self._own_tasks
        self._own += own
        try:
            if self._active >= self._limit:
                await self._wait_for_turn(own)
            self._active += 1
            try:
                self.statements += 1
                retried = False
                while (connections := self._connections) is not None:
                    connection = await connections.take()
                    sound = False
                    try:
                        outcome = await work(connection, argument)
                        sound = True
                        return outcome
                    except psycopg.Error as error:
                        if retried or sqlstate(error) not in RETRIED_ONCE:
                            raise
                    finally:
                        await connections.give(connection, sound)
                    retried = True
                    await asyncio.sleep(0.01 + 0.01 * random.random())
                raise BrokerClosed("Broker is closed")
            except Exception as error:
                self._judge(error)
                raise
            finally:
                self._active -= 1
                self._next()
        finally:
            self._own -= own

    async def _run_on(self, connection: WireConnection, statements: Sequence[Statement]) -> list[Rows | psycopg.Error]:
        if self.pooled:
            return await self._run_unprepared(connection, statements)
        outcomes = await connection.wire.run(statements)
        if isinstance(outcomes[0], psycopg.Error):
            raise outcomes[0]
        return outcomes

    @staticmethod
    async def _run_within(connection: WireConnection, body: Callable[[Connection], Awaitable[T]]) -> T:
        async with connection.transaction():
            return await body(connection)

    @staticmethod
    async def _run_unprepared(connection: Connection, statements: Sequence[Statement]) -> list[Rows | psycopg.Error]:
        outcomes: list[Rows | psycopg.Error] = []
        for query, parameters in statements:
            cursor = connection.cursor(binary=True)
            try:
                await cursor.execute(query, parameters)
            except psycopg.Error as error:
                if not outcomes or is_disconnect(error):
                    raise
                outcomes.append(error)
            else:
                outcomes.append(await cursor.fetchall() if cursor.pgresult and cursor.pgresult.nfields else [])
        return outcomes

    async def _wait_for_turn(self, own: bool) -> None:
        if not own:
            # Commands are refused because of each other only, never because the broker itself has something to do.
            commands = self._active + len(self._queued) - self._own
            if commands >= self._limit + self._queue_limit:
                raise BackendBusy(f"{self._active} database operations run and {len(self._queued)} wait")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queued.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._next()  # it was this one's turn: the next one's, then
            raise

    def _next(self) -> None:
        while self._queued and self._active < self._limit:
            turn = self._queued.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    @property
    def load(self) -> tuple[int, int]:
        """Statements that run, and that wait for their turn."""
        return self._active, len(self._queued)

    def figures(self) -> dict[str, int | float]:
        """Statements and connections, for statistics."""
        pool = self._connections.stats() if self._connections is not None else {}
        return {
            "databaseOperations": self._active,
            "databaseOperationsQueued": len(self._queued),
            "databaseStatements": self.statements,
            "databaseConnections": pool.get("pool_size", 0),
            "databaseConnectionsIdle": pool.get("pool_available", 0),
            "databaseConnectionsWaitedFor": pool.get("requests_waiting", 0),
        }

    # -- health -------------------------------------------------------------------------------------------------------

    @property
    def reason(self) -> str | None:
        """Why the database cannot work now, fit for clients; None if it can."""
        return self._reason

    async def returned(self, patience_s: float) -> bool:
        """Wait until the database is not known to be away any more, at most ``patience_s`` seconds; gives whether it is so."""
        # A failure that has just been noticed is not judged yet: give the first look a moment.
        await asyncio.sleep(min(RETRY_PAUSE_S, patience_s))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._back.wait()
        return self._back.is_set()

    def suspect(self) -> None:
        """Something looks as if the database were away: find out."""
        if not self._closing and self._connections is not None and (self._probe is None or self._probe.done()):
            self._probe = asyncio.get_running_loop().create_task(self._look_for_return())

    def _judge(self, error: Exception) -> None:
        """Suspect an outage if an error looks like one."""
        state = sqlstate(error)
        if state == WRITES_REFUSED:
            self._stale = True
        if is_disconnect(error) or state in (WRITES_REFUSED, CONNECTIONS_REFUSED):
            self.suspect()

    async def _look_for_return(self) -> None:
        """Try until the database takes writes again.

        One lost connection is no outage: the first attempt decides. In an outage commands fail at once, instead of waiting
        for connections that do not come.
        """
        while (fault := await self._fault()) is not None:
            if self._closing:
                return
            if self._reason != fault.cause:
                self._reason = fault.cause
                self._back.clear()
                self._on_health(fault.text)
            await asyncio.sleep(RECONNECT_SETTLED_S if fault.settled else RECONNECT_S)
        if self._reason is not None:
            self._reason = None
            self._back.set()
            self._on_health(None)

    async def _fault(self) -> Diagnosis | None:
        """Why the database cannot work now; None if it can."""
        # A connection of its own first: it fails at once, and with the cause, which the pool keeps to itself.
        fault = await self._fault_of_connecting()
        if fault is not None and not fault.crowded:
            return fault
        connections = self._connections
        if connections is None:
            return fault
        await connections.return_all()
        pool = connections.pool
        try:
            if self._stale:
                # A connection that became read-only, or reached a server that did, stays so: give all of them up.
                await pool.drain()
                self._stale = False
            # Idle connections that broke with the one that failed would each fail a command first.
            await pool.check()
            connection = await connections.take(POOL_PATIENCE_S)
            sound = False
            try:
                if await self._takes_writes(connection):
                    sound = True
                    return None
            finally:
                await connections.give(connection, sound)
            self._stale = True
            return READ_ONLY
        except PoolTimeout:
            statistics = pool.get_stats()
            if fault is None and statistics.get("pool_size", 0) > statistics.get("pool_available", 0):
                return None  # all are at work: busy, not away
            return fault or Diagnosis("no database connection became free in time")
        except psycopg.Error as error:
            return diagnose(error)

    async def _fault_of_connecting(self) -> Diagnosis | None:
        try:
            connection = await self.connect()
            try:
                return None if await self._takes_writes(connection) else READ_ONLY
            finally:
                await connection.close()
        except (psycopg.Error, OSError, BunqueueError) as error:
            return diagnose(error)

    @staticmethod
    async def _takes_writes(connection: Connection) -> bool:
        cursor = await connection.execute(
            "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::bool", prepare=False
        )
        row = await cursor.fetchone()
        return row is not None and not row[0]
