"""Prepared statements on a psycopg connection with little between them and the socket.

psycopg's cursors are made for every need; where they run a statement for the thousandth time, most of the time goes into describing
columns, waiting twice and the states of a connection. Here a statement is one write, one callback of the event loop and one
future, several at once go in one write (libpq's pipeline mode), and values are read by psycopg's own loaders.
Connections stay psycopg's: they are used by its cursors before and after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.pq import DiagnosticField, ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

#: A statement and its positional parameters.
Statement = tuple[bytes, Sequence[Any]]

Rows = list[tuple[Any, ...]]

#: Seconds between looks at a connection that says nothing: uvloop tells nobody of one that was reset, and only a read finds out.
_LOOK_S: Final = 0.5

_DONE: Final = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class Wire:
    """Runs statements on ``connection``, whose user must have it to himself and be in no transaction.

    A task that is cancelled meanwhile leaves the connection in the middle of a statement; its pool closes it then.
    """

    __slots__ = ("_count", "_names", "_pgconn", "_transformer")

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._pgconn: PGconn = connection.pgconn
        # Of the connection's adapters, not of itself: whoever remembers this by the connection must not keep that alive.
        self._transformer = Transformer(connection.adapters)
        #: names of what is prepared, by text and types of parameters
        self._names: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
        self._count = 0  #: names given so far; none is given twice

    async def run(self, statements: Sequence[Statement]) -> list[Rows | psycopg.Error]:
        """Run statements, each in a transaction of its own, in order; gives the rows or the error of each.

        Raises:
            psycopg.Error: the connection broke, or a value cannot be sent.
        """
        outcomes = await self._run(statements)
        lost = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, InvalidSqlStatementName)]
        if lost:
            # After a rollback psycopg's cursors drop all that is prepared, ours too. Nothing of these was run.
            self._names.clear()
            for n, outcome in zip(lost, await self._run([statements[n] for n in lost]), strict=True):
                outcomes[n] = outcome
        return outcomes

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
            return [self._read((await self._results(0))[-1])]
        pgconn.enter_pipeline_mode()
        for name, values, formats in calls:
            pgconn.send_query_prepared(name, values, formats, Format.BINARY)
            pgconn.pipeline_sync()
        results = await self._results(len(calls))
        pgconn.exit_pipeline_mode()
        return [self._read(result) for result in results]

    async def _prepare(self, query: bytes, types: tuple[int, ...]) -> bytes:
        name = b"bunqueue_%d" % self._count
        self._count += 1
        self._pgconn.send_prepare(name, query, types)
        for result in await self._results(0):
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

    async def _results(self, syncs: int) -> list[PGresult]:
        """What the server answers to what was sent: until it is ready again, or in pipeline mode until so many syncs."""
        pgconn = self._pgconn
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()
        results: list[PGresult] = []
        left = syncs
        ended = False  #: the last that came was the end of a statement
        timer: asyncio.TimerHandle | None = None

        def look() -> None:
            nonlocal timer
            timer = loop.call_later(_LOOK_S, look)
            receive()

        def receive() -> None:
            nonlocal left, ended
            try:
                pgconn.consume_input()
                while not pgconn.is_busy():
                    result = pgconn.get_result()
                    if result is None:
                        if ended or not syncs:
                            break
                        ended = True
                        continue
                    ended = False
                    if result.status != ExecStatus.PIPELINE_SYNC:
                        results.append(result)
                        if result.status == ExecStatus.FATAL_ERROR and _ends_session(result):
                            break
                        continue
                    left -= 1
                    if not left:
                        break
                else:
                    return
            except Exception as error:
                stop(error)
            else:
                stop(None)

        def stop(error: Exception | None) -> None:
            # At once: libpq closes a broken connection's socket, whose number may then be another's.
            if timer is not None:
                timer.cancel()
            loop.remove_reader(descriptor)
            if writing:
                loop.remove_writer(descriptor)
            if answered.done():
                return
            if error is None:
                answered.set_result(None)
            else:
                answered.set_exception(error)

        def send() -> None:
            try:
                if pgconn.flush() == 0:
                    loop.remove_writer(descriptor)
            except Exception as error:
                stop(error)

        descriptor = pgconn.socket
        writing = pgconn.flush() != 0
        loop.add_reader(descriptor, receive)
        timer = loop.call_later(_LOOK_S, look)
        if writing:
            loop.add_writer(descriptor, send)
        try:
            await answered
        except asyncio.CancelledError:
            if answered.cancelled():
                stop(None)
            raise
        if len(results) < max(1, syncs) or left:
            raise _read_error(results[-1]) if results else psycopg.OperationalError("the connection is lost")
        return results


def _ends_session(result: PGresult) -> bool:
    """Whether an error is the last that a connection says: no end of the statement follows."""
    return result.error_field(DiagnosticField.SEVERITY_NONLOCALIZED) in (b"FATAL", b"PANIC")


def _read_error(result: PGresult) -> psycopg.Error:
    return error_from_result(result, encoding="utf-8")
