"""The SQL that a change set becomes: a few statements over many rows each.

SQLite is left at every statement and the interpreter's lock must be won back then, which takes up to 5 ms beside a thread that is
busy in Python. So rows are not written one by one but through ``VALUES`` lists, whose texts are kept by number of rows, so that
SQLite's compiled statements can be reused.

A small change set of several kinds of rows becomes a *single* statement: an insert into a temporary view whose trigger does to
each row what its first column says. Beside a busy thread such a commit takes a quarter of the time (5 ms, not 20), but alone it
takes more, the more rows it has (6 acknowledgements with results: 90 µs, not 76; 40: 400, not 290), because the trigger opens its
tables and indexes anew for every row. So the bound is low, and higher as long as the interpreter's lock is seen to be contended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from bunqueue_core.storage.changes import (
    JOB_COLUMNS,
    PLAIN_COLUMNS,
    REST_COLUMNS,
    REST_DEFAULTS,
    ChangeSet,
    JobRow,
    Table,
    TableChange,
)
from bunqueue_sqlite.schema import QUEUE_TABLE

#: A statement and what is bound to its parameters.
Bound = tuple[str, Sequence[Any]]

_flatten = chain.from_iterable

#: Most rows of a change set that becomes a single statement.
SINGLE_ROWS: Final = 6

#: The same beside a thread that keeps the interpreter busy.
SINGLE_ROWS_CONTENDED: Final = 120

#: The same if rows of jobs in their full form are among them, of which each takes 39 parameters.
SINGLE_FULL_ROWS_CONTENDED: Final = 60

#: apsw keeps no statement whose text is longer than 16 KiB (SC_MAXSIZE in its statement cache); texts stay below.
_LONGEST_TEXT: Final = 16_300


class Rows:
    """A statement over a list of rows: its text by number of rows.

    Args:
        head: text before the list.
        row: text of one row.
        tail: text after the list.
        exact: up to so many rows there is a text for every number; larger numbers are put together from multiples of it.
    """

    __slots__ = ("_exact", "_head", "_most", "_row", "_tail", "_texts")

    def __init__(self, head: str, row: str, tail: str = "", *, exact: int = 100) -> None:
        self._head = head
        self._row = row
        self._tail = tail
        self._texts: dict[int, str] = {}
        largest = (_LONGEST_TEXT - len(head) - len(tail)) // (len(row) + 1)
        self._exact = exact
        self._most = max(exact, largest // exact * exact)

    def text(self, count: int) -> str:
        """The statement for ``count`` rows."""
        text = self._texts.get(count)
        if text is None:
            text = self._texts[count] = f"{self._head}{','.join([self._row] * count)}{self._tail}"
        return text

    def sizes(self, count: int) -> Iterator[int]:
        """Into which numbers of rows ``count`` rows are divided."""
        while count > self._exact:
            step = min(count // self._exact * self._exact, self._most)
            yield step
            count -= step
        if count:
            yield count

    def bind(self, rows: Sequence[Sequence[Any]], shared: Sequence[Any] = ()) -> list[Bound]:
        """Statements that cover ``rows``, every row's values in its order, after ``shared`` for parameters before the list."""
        count = len(rows)
        if count == 1 and not shared:
            return [(self.text(1), rows[0])]
        if count <= self._exact:
            return [(self.text(count), (*shared, *_flatten(rows)))] if count else []
        bound: list[Bound] = []
        start = 0
        for size in self.sizes(count):
            bound.append((self.text(size), (*shared, *_flatten(rows[start : start + size]))))
            start += size
        return bound

    def bind_values(self, values: Sequence[Any]) -> Iterator[Bound]:
        """The same for rows of one value."""
        start = 0
        for size in self.sizes(len(values)):
            yield self.text(size), tuple(values[start : start + size])
            start += size


def _marks(count: int) -> str:
    return f"({','.join('?' * count)})"


_REST_NAMES = tuple(name for name, _ in REST_COLUMNS)

assert _REST_NAMES[-1] == "extended_options"
_REST_BUT_LAST: Final = REST_DEFAULTS[:-1]

# A plain row has nine values: the ninth, `rest`, is None, and so is the default of the ninth column. It saves slicing every row.
assert REST_COLUMNS[0][1] is None
_PLAIN_NINE = (*PLAIN_COLUMNS, _REST_NAMES[0])

PUT_PLAIN: Final = Rows(
    f"INSERT OR REPLACE INTO jobs({','.join(_PLAIN_NINE)})VALUES", _marks(len(_PLAIN_NINE))
)  #: rows of jobs whose ``rest`` is None

_ALIKE: Final = ("queue", "priority", "run_at", "created_at", "state")
_EACH: Final = tuple(name for name in PLAIN_COLUMNS if name not in _ALIKE)

PUT_ALIKE: Final = Rows(
    f"INSERT OR REPLACE INTO jobs({','.join((*_ALIKE, *_EACH))})"
    f"SELECT {','.join('?' * len(_ALIKE))},{','.join(f'column{n + 1}' for n in range(len(_EACH)))} FROM(VALUES",
    _marks(len(_EACH)),
    ")",
)  #: the same of jobs that differ in nothing but the rest of their plain columns, which take a third of the parameters

_ALIKE_PLACES: Final = tuple(JobRow._fields.index(name) for name in _ALIKE)
_EACH_PLACES: Final = tuple(JobRow._fields.index(name) for name in _EACH)

#: From so many rows on it is seen whether they are alike.
_MANY: Final = 16

PUT_EXTENDED: Final = Rows(
    f"INSERT OR REPLACE INTO jobs({','.join(PLAIN_COLUMNS)},extended_options)VALUES", _marks(len(PLAIN_COLUMNS) + 1)
)  #: rows of jobs whose ``rest`` has its last column only, as that of a durable job has

PUT_FULL: Final = Rows(
    f"INSERT OR REPLACE INTO jobs({','.join(JOB_COLUMNS)})VALUES", _marks(len(JOB_COLUMNS)), exact=25
)  #: rows of jobs with every column

# OR ROLLBACK: a failure undoes the whole transaction anyway (see the journal), and SQLite need not keep a journal of the statement
# to undo it alone: 7 % more rows a second.
MOVE: Final = Rows(
    "UPDATE OR ROLLBACK jobs SET state=v.column2,started_at=v.column3,completed_at=v.column4,timeline=v.column5 FROM(VALUES",
    _marks(5),
    ")v WHERE jobs.id=v.column1",
)

PUT_RESULT: Final = Rows("INSERT OR REPLACE INTO job_results(job_id,result,completed_at)VALUES", _marks(3))
REMOVE_JOB: Final = Rows("DELETE FROM jobs WHERE id IN(", "?", ")")
REMOVE_RESULT: Final = Rows("DELETE FROM job_results WHERE job_id IN(", "?", ")")
PUT_DLQ: Final = Rows("INSERT OR REPLACE INTO dlq(id,job_id,queue,entry,entered_at)VALUES", _marks(5))
REMOVE_DLQ: Final = Rows("DELETE FROM dlq WHERE id IN(", "?", ")")

_OBLITERATE: Final = (
    "DELETE FROM job_results WHERE job_id IN(SELECT id FROM jobs WHERE queue=?)",
    "DELETE FROM jobs WHERE queue=?",
)


class TableStatements(NamedTuple):
    """The statements of one described table."""

    put: Rows
    remove: Rows
    read: Rows
    load: str


def table_statements(table: Table) -> TableStatements:
    """Build the statements of ``table`` from its description."""
    name = _quoted(table.name)
    columns = ",".join(map(_quoted, table.column_names))
    keys = ",".join(map(_quoted, table.column_names[: table.key]))
    where = f"({keys})IN(VALUES" if table.key > 1 else f"{keys} IN("
    key = _marks(table.key) if table.key > 1 else "?"
    order = f" ORDER BY {','.join(map(_quoted, table.order))}" if table.order else ""
    return TableStatements(
        put=Rows(f"INSERT OR REPLACE INTO {name}({columns})VALUES", _marks(len(table.columns)), exact=25),
        remove=Rows(f"DELETE FROM {name} WHERE {where}", key, ")", exact=25),
        read=Rows(f"SELECT {columns} FROM {name} WHERE {where}", key, ")", exact=25),
        load=f"SELECT {columns} FROM {name}{order}",
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# -- the single statement ---------------------------------------------------------------------------------------------

_OP_REMOVE, _OP_PLAIN, _OP_MOVE, _OP_RESULT, _OP_DLQ_REMOVE, _OP_DLQ, _OP_FULL = range(7)

#: Width of a row of the narrow view: what to do, and the longest of the values, a plain row's.
_NARROW: Final = 1 + len(_PLAIN_NINE)

#: The same with rows of jobs in full form.
_WIDE: Final = 1 + len(JOB_COLUMNS)


def single_statement_views() -> Iterator[str]:
    """What makes the temporary views and triggers on the live connection."""
    for view, width in (("bunqueue_narrow", _NARROW), ("bunqueue_wide", _WIDE)):
        names = ["op", *(f"c{index}" for index in range(width - 1))]
        columns = ",".join(f"NULL AS {name}" for name in names)

        def new(count: int) -> str:
            return ",".join(f"NEW.c{index}" for index in range(count))

        full = (
            f"INSERT OR REPLACE INTO jobs({','.join(JOB_COLUMNS)})SELECT {new(len(JOB_COLUMNS))} WHERE NEW.op={_OP_FULL};"
            if width == _WIDE
            else ""
        )
        yield f"CREATE TEMP VIEW {view} AS SELECT {columns}"
        yield (
            f"CREATE TEMP TRIGGER {view}_apply INSTEAD OF INSERT ON {view} BEGIN "
            f"DELETE FROM jobs WHERE NEW.op={_OP_REMOVE} AND id=NEW.c0;"
            f"DELETE FROM job_results WHERE NEW.op={_OP_REMOVE} AND job_id=NEW.c0;"
            f"INSERT OR REPLACE INTO jobs({','.join(_PLAIN_NINE)})"
            f"SELECT {new(len(_PLAIN_NINE))} WHERE NEW.op={_OP_PLAIN};"
            f"{full}"
            "UPDATE OR ROLLBACK jobs SET state=NEW.c1,started_at=NEW.c2,completed_at=NEW.c3,timeline=NEW.c4 "
            f"WHERE NEW.op={_OP_MOVE} AND id=NEW.c0;"
            "INSERT OR REPLACE INTO job_results(job_id,result,completed_at)SELECT NEW.c0,NEW.c5,NEW.c6 "
            f"WHERE NEW.op>={_OP_MOVE} AND NEW.op<={_OP_RESULT} AND NEW.c5 IS NOT NULL;"
            f"DELETE FROM dlq WHERE NEW.op={_OP_DLQ_REMOVE} AND id=NEW.c0;"
            "INSERT OR REPLACE INTO dlq(id,job_id,queue,entry,entered_at)"
            f"SELECT {new(5)} WHERE NEW.op={_OP_DLQ};"
            "END"
        )


_SINGLE_NARROW: Final = Rows("INSERT INTO temp.bunqueue_narrow VALUES", _marks(_NARROW), exact=SINGLE_ROWS_CONTENDED)
_SINGLE_WIDE: Final = Rows("INSERT INTO temp.bunqueue_wide VALUES", _marks(_WIDE), exact=SINGLE_FULL_ROWS_CONTENDED)


def _single(changes: ChangeSet, full: bool) -> Bound:
    """The whole change set as one statement, in the order that a change set asks for."""
    width = _WIDE if full else _NARROW
    nothing = (None,) * width
    values: list[Any] = []
    for id in changes.removed:
        values += (_OP_REMOVE, id)
        values += nothing[2:]
    for row in changes.put:
        if row.rest is None:
            values.append(_OP_PLAIN)
            values += row
            values += nothing[_NARROW:]
        else:
            values.append(_OP_FULL)
            values += row[:-1]
            values += row.rest
    # a move takes the job's result along: most of both are acknowledgements, and each row costs a run of the trigger
    results = {result.job_id: result for result in changes.results}
    for move in changes.moved:
        result = results.pop(move.id, None)
        values.append(_OP_MOVE)
        values += move
        values += nothing[6:] if result is None else (result.result, result.completed_at, *nothing[8:])
    for result in results.values():
        values += (_OP_RESULT, result.job_id, None, None, None, None, result.result, result.completed_at)
        values += nothing[8:]
    for entry_id in changes.dlq_removed:
        values += (_OP_DLQ_REMOVE, entry_id)
        values += nothing[2:]
    for entry in changes.dlq_put:
        values.append(_OP_DLQ)
        values += entry
        values += nothing[6:]
    return (_SINGLE_WIDE if full else _SINGLE_NARROW).text(len(values) // width), tuple(values)


def _put_plain(rows: Sequence[JobRow]) -> list[Bound]:
    """Statements for rows whose ``rest`` is None; those of one bulk mostly differ in little."""
    count = len(rows)
    if count < _MANY:
        return PUT_PLAIN.bind(rows)
    columns = tuple(zip(*rows, strict=True))
    alike = []
    for place in _ALIKE_PLACES:
        column = columns[place]
        # Equal values of other types (1, True) become the same in a column of their kind.
        if column.count(column[0]) != count:
            return PUT_PLAIN.bind(rows)
        alike.append(column[0])
    return PUT_ALIKE.bind(list(zip(*(columns[place] for place in _EACH_PLACES), strict=True)), alike)


def _put_full(rows: Sequence[JobRow]) -> list[Bound]:
    """Statements for rows whose ``rest`` is not all defaults; those of jobs that are only durable need few parameters."""
    extended = [row for row in rows if row.rest is not None and row.rest[:-1] == _REST_BUT_LAST]
    if not extended:
        return PUT_FULL.bind([row[:-1] + (row.rest or ()) for row in rows])
    statements = PUT_EXTENDED.bind([(*row[:-1], row.rest[-1]) for row in extended if row.rest is not None])
    if len(extended) < len(rows):
        short = {id(row) for row in extended}
        statements += PUT_FULL.bind([row[:-1] + (row.rest or ()) for row in rows if id(row) not in short])
    return statements


# -- a change set -----------------------------------------------------------------------------------------------------


class Planner:
    """Turns change sets into statements. Belongs to one journal."""

    __slots__ = ("_tables",)

    def __init__(self) -> None:
        self._tables: dict[str, TableStatements] = {}

    def of(self, table: Table) -> TableStatements:
        """The statements of a described table."""
        found = self._tables.get(table.name)
        if found is None:
            found = self._tables[table.name] = table_statements(table)
        return found

    def plan(self, changes: ChangeSet, contended: bool = False) -> list[Bound]:
        """The statements of ``changes`` in their order; more than one of them need a transaction around.

        Args:
            changes: what is to be written.
            contended: another thread keeps the interpreter busy, so that few statements matter more than quick ones.
        """
        put = changes.put
        plain: Sequence[JobRow] = put
        full: list[JobRow] = []
        if put:
            full = [row for row in put if row.rest is not None]
            if full:
                plain = [row for row in put if row.rest is None] if len(full) < len(put) else []
        rare = bool(changes.obliterated or changes.queues or changes.queues_removed or changes.tables)
        moves = bool(changes.moved or changes.removed or changes.results or changes.dlq_put or changes.dlq_removed)
        if not rare and not moves and not (plain and full):
            return _put_full(full) if full else _put_plain(plain)
        if not rare:
            kinds = (
                (2 if changes.removed else 0)
                + (1 if plain else 0)
                + (1 if full else 0)
                + (1 if changes.moved else 0)
                + (1 if changes.results else 0)
                + (1 if changes.dlq_removed else 0)
                + (1 if changes.dlq_put else 0)
            )
            if kinds > 1:
                most = SINGLE_ROWS if not contended else SINGLE_FULL_ROWS_CONTENDED if full else SINGLE_ROWS_CONTENDED
                if changes.rows <= most:
                    return [_single(changes, bool(full))]
        statements: list[Bound] = []
        if changes.obliterated:
            statements += [(sql, (queue,)) for queue in changes.obliterated for sql in _OBLITERATE]
        if changes.removed:
            statements += REMOVE_JOB.bind_values(changes.removed)
            statements += REMOVE_RESULT.bind_values(changes.removed)
        if plain:
            statements += _put_plain(plain)
        if full:
            statements += _put_full(full)
        if changes.moved:
            statements += MOVE.bind(changes.moved)
        if changes.results:
            statements += PUT_RESULT.bind(changes.results)
        if changes.dlq_removed:
            statements += REMOVE_DLQ.bind_values(changes.dlq_removed)
        if changes.dlq_put:
            statements += PUT_DLQ.bind(changes.dlq_put)
        if rare:
            statements += self._change_table(TableChange(QUEUE_TABLE, put=list(changes.queues)))
            statements += self._change_table(
                TableChange(QUEUE_TABLE, removed=[(name,) for name in changes.queues_removed])
            )
            for change in changes.tables:
                statements += self._change_table(change)
        return statements

    def _change_table(self, change: TableChange) -> Iterator[Bound]:
        if change.removed:
            yield from self.of(change.table).remove.bind(change.removed)
        if change.put:
            yield from self.of(change.table).put.bind(change.put)
