"""Names as keys and values as binary arrays, checked by the server itself."""

from __future__ import annotations

import psycopg
import pytest
from bunqueue_postgres import arrays
from bunqueue_postgres.keys import IMPOSSIBLE, LONGEST, escape, is_whole, to_key, unescape
from bunqueue_postgres.testing import PostgresServer
from hypothesis import given
from hypothesis import strategies as st
from psycopg import RawCursor

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=LONGEST + 40)
awkward = st.text(st.sampled_from("\x00\x01\x02\x03\x04\x05a"), max_size=12)


@given(names | awkward)
def test_text_without_nul_comes_back(name: str) -> None:
    assert "\x00" not in escape(name)
    assert unescape(escape(name)) == name


@given(names | awkward, names | awkward)
def test_different_names_have_different_keys(one: str, other: str) -> None:
    assert (to_key(one) == to_key(other)) == (one == other)


@given(names | awkward)
def test_a_short_key_tells_its_name(name: str) -> None:
    key = to_key(name)
    assert len(key) <= LONGEST + 2
    assert not is_whole(key) or unescape(key) == name
    assert key != IMPOSSIBLE


def test_an_ill_formed_name_is_no_job() -> None:
    assert to_key("\ud800") == IMPOSSIBLE


@pytest.mark.parametrize(
    ("pack", "values"),
    [
        (arrays.texts, ["a", None, "", "\U0001f407" * 700, "x" * 3_000]),
        (arrays.texts, ["same"] * 5),
        (arrays.texts, [None, None]),
        (arrays.blobs, [b"", None, b"\x00\xff", bytes(5_000)]),
        (arrays.blobs, [b"same"] * 3),
        (arrays.int2s, [0, -1, 32_767, None]),
        (arrays.int4s, [0, -(2**31), 2**31 - 1, None]),
        (arrays.int8s, [0, -(2**63), 2**63 - 1, None]),
        (arrays.int8s, [7, 7, 7]),
        (arrays.bools, [True, False, True]),
    ],
)
def test_arrays_arrive_as_they_are(postgres: PostgresServer, pack: object, values: list[object]) -> None:
    with psycopg.connect(postgres.dsn, cursor_factory=RawCursor) as connection:
        arrays.register(connection.adapters)
        for length in (0, 1, len(values)):
            part = values[:length]
            row = connection.execute("SELECT $1", (pack(part),)).fetchone()  # type: ignore[operator]
            assert row is not None
            assert row[0] == part
