"""Prepared statements on a psycopg connection with little between them and the socket.

psycopg's cursors are made for every need; where they run a statement for the thousandth time, most of the time goes into describing
columns, waiting twice and the states of a connection. Here a statement is one write, one callback of the event loop and one
future, several at once go in one write (libpq's pipeline mode), and values are read by psycopg's own loaders.
Connections stay psycopg's: they are used by its cursors before and after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.abc import PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, Format, PipelineStatus
from psycopg.pq.abc import PGconn, PGresult

RV = TypeVar("RV")

#: A statement and its positional parameters.
Statement = tuple[bytes, Sequence[Any]]

Rows = list[tuple[Any, ...]]

#: Seconds between looks at a connection that says nothing: uvloop tells nobody of one that was reset, and only a read finds out.
_LOOK_S: Final = 0.5

_DONE: Final = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class WireConnection(AsyncConnection[Any]):
    """A connection with a :class:`Wire`, which lets go of the socket whenever psycopg itself waits for it or closes it."""

    _wire: Wire | None = None
    taken_at = 0.0  #: when it was taken out of its pool, on the loop's clock

    @property
    def wire(self) -> Wire:
        """Runs statements on this connection."""
        wire = self._wire
        if wire is None:
            wire = self._wire = Wire(self)
        return wire

    async def wait(self, gen: PQGen[RV], *arguments: Any, **options: Any) -> RV:
        """See psycopg, whose every wait this is."""
        if self._wire is not None:
            self._wire.let_go()
        return await super().wait(gen, *arguments, **options)

    async def close(self) -> None:
        """See psycopg."""
        if self._wire is not None:
            self._wire.let_go()
        await super().close()


class Wire:
    """Runs statements on ``connection``, whose user must have it to himself and be in no transaction.

    It stays registered for the connection's socket between statements, until :meth:`let_go`. Belongs to one event loop.
    A task that is cancelled meanwhile leaves the connection in the middle of a statement; its pool closes it then.
    """

    __slots__ = (
        "_answered",
        "_count",
        "_ended",
        "_left",
        "_loop",
        "_names",
        "_pgconn",
        "_results",
        "_socket",
        "_timer",
        "_transformer",
        "_writing",
    )

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._loop = asyncio.get_running_loop()
        self._pgconn: PGconn = connection.pgconn
        # Of the connection's adapters, not of itself: it keeps this, which must not keep it alive in turn.
        self._transformer = Transformer(connection.adapters)
        #: names of what is prepared, by text and types of parameters
        self._names: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
        self._count = 0  #: names given so far; none is given twice
        self._socket = -1  #: what it is registered for
        self._timer: asyncio.TimerHandle | None = None
        self._writing = False
        #: of the reply that is waited for, if one is: settled when it is whole
        self._answered: asyncio.Future[None] | None = None
        self._results: list[PGresult] = []
        self._left = 0  #: syncs that have yet to come
        self._ended = False  #: the last that came was the end of a statement

    async def run(self, statements: Sequence[Statement]) -> list[Rows | psycopg.Error]:
        """Run statements, each in a transaction of its own, in order; gives the rows or the error of each.

        Raises:
            psycopg.Error: the connection broke, or a value cannot be sent.
        """
        try:
            outcomes = await self._run(statements)
            lost = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, InvalidSqlStatementName)]
            if lost:
                # After a rollback psycopg's cursors drop all that is prepared, ours too. Nothing of these was run.
                self._names.clear()
                for n, outcome in zip(lost, await self._run([statements[n] for n in lost]), strict=True):
                    outcomes[n] = outcome
            return outcomes
        except BaseException:
            self.let_go()
            if self._pgconn.pipeline_status != PipelineStatus.OFF:
                # It may look idle, if all had come when the task was cancelled, but would answer nothing in this mode.
                self._pgconn.finish()
            raise

    def let_go(self) -> None:
        """Leave the socket to others, until the next statement."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._socket)
        if self._socket >= 0:
            self._loop.remove_reader(self._socket)
            self._socket = -1

    async def _run(self, statements: Sequence[Statement]) -> list[Rows | psycopg.Error]:
        pgconn = self._pgconn
        transformer = self._transformer
        calls = []
        for query, parameters in statements:
            values = transformer.dump_sequence(parameters, [PyFormat.AUTO] * len(parameters))
            types, formats = transformer.types or (), transformer.formats
            name = self._names.get((query, types))
            if name is None:
                name = await self._prepare(query, types)
            calls.append((name, values, formats))
        if len(calls) == 1:
            name, values, formats = calls[0]
            pgconn.send_query_prepared(name, values, formats, Format.BINARY)
            return [self._read((await self._reply(0))[-1])]
        pgconn.enter_pipeline_mode()
        for name, values, formats in calls:
            pgconn.send_query_prepared(name, values, formats, Format.BINARY)
            pgconn.pipeline_sync()
        results = await self._reply(len(calls))
        pgconn.exit_pipeline_mode()
        return [self._read(result) for result in results]

    async def _prepare(self, query: bytes, types: tuple[int, ...]) -> bytes:
        name = b"bunqueue_%d" % self._count
        self._count += 1
        self._pgconn.send_prepare(name, query, types)
        for result in await self._reply(0):
            if result.status not in _DONE:
                raise _read_error(result)
        self._names[query, types] = name
        return name

    def _read(self, result: PGresult) -> Rows | psycopg.Error:
        if result.status == ExecStatus.TUPLES_OK:
            transformer = self._transformer
            transformer.set_pgresult(result)
            rows = transformer.load_rows(0, result.ntuples, tuple)
            transformer.set_pgresult(None)
            return rows
        return [] if result.status == ExecStatus.COMMAND_OK else _read_error(result)

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def _reply(self, syncs: int) -> list[PGresult]:
        """What the server answers to what was sent: until it is ready again, or in pipeline mode until so many syncs."""
        pgconn, loop = self._pgconn, self._loop
        unsent = pgconn.flush() != 0
        descriptor = pgconn.socket
        if descriptor != self._socket:
            self.let_go()
            loop.add_reader(descriptor, self._receive)
            self._socket = descriptor
        if unsent:
            loop.add_writer(descriptor, self._send)
            self._writing = True
        if self._timer is None:
            self._timer = loop.call_later(_LOOK_S, self._look)
        results: list[PGresult] = []
        self._results = results
        self._left = syncs
        self._ended = False
        answered = self._answered = loop.create_future()
        try:
            await answered
        finally:
            self._answered = None
        if len(results) < max(1, syncs) or self._left:
            raise _read_error(results[-1]) if results else psycopg.OperationalError("the connection is lost")
        return results

    def _look(self) -> None:
        self._timer = None
        if self._answered is not None:  # else the next statement goes on with it
            self._timer = self._loop.call_later(_LOOK_S, self._look)
            self._receive()

    def _receive(self) -> None:
        if self._answered is None:
            # It is the server that begins: mostly to say that this was all. Whoever has the connection next will read it.
            self.let_go()
            return
        try:
            whole = self._take()
        except Exception as error:
            self._stop(error)
        else:
            if whole:
                self._stop(None)

    def _take(self) -> bool:
        """Take what has come; true if that is all, or all that will come."""
        pgconn, syncs = self._pgconn, self._left
        pgconn.consume_input()
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                if self._ended or not syncs:
                    return True
                self._ended = True
                continue
            self._ended = False
            status = result.status
            if status == ExecStatus.PIPELINE_SYNC:
                self._left -= 1
                if not self._left:
                    return True
                continue
            self._results.append(result)
            if status == ExecStatus.FATAL_ERROR and _ends_session(result):
                return True
        return False

    def _stop(self, error: Exception | None) -> None:
        if error is not None or self._pgconn.status != ConnStatus.OK:
            # At once: libpq closes a broken connection's socket, whose number may then be another's.
            self.let_go()
        elif self._writing:
            self._writing = False
            self._loop.remove_writer(self._socket)
        answered = self._answered
        if answered is None or answered.done():
            return
        if error is None:
            answered.set_result(None)
        else:
            answered.set_exception(error)

    def _send(self) -> None:
        try:
            if self._pgconn.flush() == 0:
                self._writing = False
                self._loop.remove_writer(self._socket)
        except Exception as error:
            self._stop(error)


def _ends_session(result: PGresult) -> bool:
    """Whether an error is the last that a connection says: no end of the statement follows."""
    return result.error_field(DiagnosticField.SEVERITY_NONLOCALIZED) in (b"FATAL", b"PANIC")


def _read_error(result: PGresult) -> psycopg.Error:
    return error_from_result(result, encoding="utf-8")
