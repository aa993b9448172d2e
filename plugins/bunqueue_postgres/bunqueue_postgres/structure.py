"""Whether the objects of the schema are what this version builds, and the mending of those that are not.

An object may have its name and yet be another: an index without uniqueness, a sequence that hands out blocks, a column that takes
nulls. What an object means is read from the catalog as the server itself writes it down, so that no rule of the server's has to be
repeated here: to know what it should be, the schema is built once more, empty, under another name, and compared. That happens
only when the digest of all definitions is not the one that was recorded. Objects that the schema does not know (an index that an
operator added) are left alone, and so are storage parameters and the clock's function.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final, NamedTuple

from psycopg import AsyncConnection, sql

from bunqueue_core.model.errors import ConfigurationError
from bunqueue_postgres.sqlfiles import load_schema

#: The schema, and the name under which it is built to compare with; it lives for one transaction.
SCHEMA: Final = "bunqueue"
MODEL: Final = "bunqueue_model"

#: Kind, table, name and definition of every object of a schema.
_OBJECTS: Final = """
    SELECT 'index', t.relname, c.relname,
        pg_get_indexdef(i.indexrelid) || CASE WHEN i.indisvalid AND i.indisready THEN '' ELSE ' INVALID' END
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
        JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid)
    UNION ALL
    SELECT 'constraint', t.relname, k.conname,
        pg_get_constraintdef(k.oid) || CASE WHEN i.indisvalid AND i.indisready THEN '' ELSE ' INVALID' END
    FROM pg_constraint k JOIN pg_class t ON t.oid = k.conrelid JOIN pg_namespace n ON n.oid = k.connamespace
        JOIN pg_index i ON i.indexrelid = k.conindid
    WHERE n.nspname = $1
    UNION ALL
    SELECT 'column', t.relname, a.attname, format_type(a.atttypid, a.atttypmod)
            || CASE WHEN l.collname IS NULL OR l.collname = 'default' THEN '' ELSE ' COLLATE ' || quote_ident(l.collname) END
    FROM pg_attribute a JOIN pg_class t ON t.oid = a.attrelid JOIN pg_namespace n ON n.oid = t.relnamespace
        LEFT JOIN pg_collation l ON l.oid = a.attcollation
    WHERE n.nspname = $1 AND t.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT 'null', t.relname, a.attname, CASE WHEN a.attnotnull THEN 'SET' ELSE 'DROP' END
    FROM pg_attribute a JOIN pg_class t ON t.oid = a.attrelid JOIN pg_namespace n ON n.oid = t.relnamespace
    WHERE n.nspname = $1 AND t.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT 'default', t.relname, a.attname, coalesce(pg_get_expr(d.adbin, d.adrelid), '')
    FROM pg_attribute a JOIN pg_class t ON t.oid = a.attrelid JOIN pg_namespace n ON n.oid = t.relnamespace
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE n.nspname = $1 AND t.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped AND a.attidentity = '' AND a.attgenerated = ''
    UNION ALL
    SELECT 'sequence', '', c.relname, format(
        'AS %s INCREMENT BY %s MINVALUE %s MAXVALUE %s START WITH %s CACHE %s %s', format_type(s.seqtypid, NULL), s.seqincrement,
        s.seqmin, s.seqmax, s.seqstart, s.seqcache, CASE WHEN s.seqcycle THEN 'CYCLE' ELSE 'NO CYCLE' END
    )
    FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1
"""


class Thing(NamedTuple):
    """An object by kind and name; ``table`` is the one that it belongs to."""

    kind: str
    table: str
    name: str


async def fingerprint(connection: AsyncConnection[Any]) -> str:
    """A digest of the definitions of all objects."""
    objects = await _objects(connection, SCHEMA)
    return hashlib.sha256(repr(sorted(objects.items())).encode()).hexdigest()


async def mend(connection: AsyncConnection[Any]) -> list[str]:
    """Make every object what it should be, in the connection's transaction. Gives the names of those that were not.

    Raises:
        ConfigurationError: a column has another type; its values are not touched.
        psycopg.Error: what is stored does not allow it (two rows where a key allows one), or another object has the name.
    """
    # What is missing first.
    await connection.execute(load_schema(), prepare=False)
    await connection.execute(re.sub(rf"\b{SCHEMA}\b", MODEL, load_schema()), prepare=False)
    wanted = {
        thing: text.replace(f"{MODEL}.", f"{SCHEMA}.") for thing, text in (await _objects(connection, MODEL)).items()
    }
    await connection.execute(f"DROP SCHEMA {MODEL} CASCADE", prepare=False)
    present = await _objects(connection, SCHEMA)
    odd = [thing for thing in sorted(wanted, key=_rank) if present.get(thing) != wanted[thing]]
    for thing in odd:
        for statement in _statements(thing, thing in present, wanted):
            await connection.execute(statement.as_bytes(connection), prepare=False)
    return [f"{thing.table}.{thing.name}" if thing.table else thing.name for thing in odd]


async def _objects(connection: AsyncConnection[Any], schema: str) -> dict[Thing, str]:
    cursor = await connection.execute(_OBJECTS, (schema,), prepare=False)
    return {Thing(kind, table, name): text for kind, table, name, text in await cursor.fetchall()}


def _rank(thing: Thing) -> tuple[int, Thing]:
    """Columns before what is built on them."""
    return ("column", "default", "null", "constraint", "index", "sequence").index(thing.kind), thing


def _statements(thing: Thing, present: bool, wanted: dict[Thing, str]) -> list[sql.Composed]:
    """What makes one object what it should be."""
    table, name, text = sql.Identifier(SCHEMA, thing.table), sql.Identifier(thing.name), sql.SQL(wanted[thing])
    own = sql.Identifier(SCHEMA, thing.name)
    if thing.kind == "column":
        if present:
            raise ConfigurationError(
                f"PostgreSQL schema: column {thing.table}.{thing.name} is not of type {wanted[thing]}; restore it by hand"
            )
        default = wanted.get(Thing("default", thing.table, thing.name))
        value = sql.SQL(f"DEFAULT {default}" if default else "")
        return [sql.SQL("ALTER TABLE {} ADD COLUMN {} {} {}").format(table, name, text, value)]
    if thing.kind == "default":
        change = sql.SQL("SET DEFAULT {}").format(text) if wanted[thing] else sql.SQL("DROP DEFAULT").format()
        return [sql.SQL("ALTER TABLE {} ALTER COLUMN {} {}").format(table, name, change)]
    if thing.kind == "null":
        return [sql.SQL("ALTER TABLE {} ALTER COLUMN {} {} NOT NULL").format(table, name, text)]
    if thing.kind == "sequence":
        return [sql.SQL("ALTER SEQUENCE {} {}").format(own, text)]
    if thing.kind == "constraint":
        # A plain index may have taken the name of the key.
        return [
            sql.SQL("ALTER TABLE {} DROP CONSTRAINT IF EXISTS {}").format(table, name),
            sql.SQL("DROP INDEX IF EXISTS {}").format(own),
            sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {}").format(table, name, text),
        ]
    return [sql.SQL("DROP INDEX IF EXISTS {}").format(own), text.format()]
