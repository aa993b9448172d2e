"""``bunqueue db``: what it prints, for people and for machines, and how it ends."""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path

import pytest
from cli_call import Call
from fixtures.sqlite_bench import Bench


@pytest.fixture(autouse=True)
def with_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BUNQUEUE_PLUGINS")


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """A database with 60 jobs: two completed, one dead letter, the rest waits."""
    path = tmp_path / "jobs.db"
    bench = Bench(path)
    bench.add("q", 60, size=2_000)
    taken = bench.take("q", 3)
    bench.complete(taken[:2])
    bench.bury(taken[2:])
    bench.broker.close().result()
    return path


def test_info(bunqueue: Call, db: Path) -> None:
    told = bunqueue("db", "info", "--data-path", str(db))
    assert (told.code, told.err) == (0, "")
    lines = told.out.splitlines()
    assert lines[0].split(maxsplit=1) == ["Database", str(db)]
    assert next(line for line in lines if line.startswith("Jobs")).split(maxsplit=1)[1] == (
        "57 waiting, 2 completed, 1 failed"
    )
    assert next(line for line in lines if line.startswith("Schema version")).endswith(" 1")
    assert any(line.split()[:3] == ["jobs", "59", "rows"] for line in lines)


def test_info_as_json(bunqueue: Call, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUNQUEUE_DATA_PATH", str(db))
    told = bunqueue("db", "info", "--json")
    found = json.loads(told.out)
    assert told.code == 0
    assert (found["ok"], found["path"], found["schemaVersion"], found["owner"]) == (True, str(db), 1, None)
    assert found["bytes"] == db.stat().st_size
    assert found["jobs"]["waiting"] == 57
    assert {table["name"]: table["rows"] for table in found["tables"]}["dlq"] == 1


def test_check_of_a_sound_database(bunqueue: Call, db: Path) -> None:
    told = bunqueue("db", "check", "--data-path", str(db))
    assert (told.code, told.out, told.err) == (0, "The database is sound\n", "")
    told = bunqueue("db", "check", "--json", "--data-path", str(db))
    document = json.loads(told.out)
    assert (told.code, document["ok"], document["problems"]) == (0, True, [])


def test_check_of_a_damaged_database(bunqueue: Call, db: Path) -> None:
    content = bytearray(db.read_bytes())
    content[5 * 4_096 : 15 * 4_096] = random.Random(1).randbytes(10 * 4_096)
    db.write_bytes(content)
    told = bunqueue("db", "check", "--data-path", str(db))
    assert told.code == 1
    assert told.out
    assert "The database is damaged: restore a backup" in told.err
    told = bunqueue("db", "check", "--json", "--data-path", str(db))
    document = json.loads(told.out)
    assert (told.code, document["ok"]) == (1, False)
    assert document["problems"]


def test_vacuum(bunqueue: Call, db: Path) -> None:
    with sqlite3.connect(db) as connection:
        connection.execute("DELETE FROM jobs WHERE state = 'waiting'")
    connection.close()
    before = db.stat().st_size
    told = bunqueue("db", "vacuum", "--data-path", str(db))
    assert (told.code, told.err) == (0, "")
    assert told.out == f"{before / 1024:.1f} KB before, {db.stat().st_size / 1024:.1f} KB now\n"
    assert db.stat().st_size < before
    document = json.loads(bunqueue("db", "vacuum", "--json", "--data-path", str(db)).out)
    assert document["ok"] is True
    assert document["before"] == document["after"] == db.stat().st_size


def test_the_configuration_file_names_the_database(bunqueue: Call, db: Path, tmp_path: Path) -> None:
    (tmp_path / "bunqueue.config.toml").write_text('[storage]\ndriver = "sqlite"\ndataPath = "jobs.db"\n')
    assert bunqueue("db", "check").out == "The database is sound\n"


@pytest.mark.parametrize("subcommand", ["info", "check", "vacuum"])
@pytest.mark.parametrize("json_output", [False, True])
def test_a_server_that_has_the_database_is_named(bunqueue: Call, db: Path, subcommand: str, json_output: bool) -> None:
    bench = Bench(db)
    told = bunqueue("db", subcommand, "--data-path", str(db), *(["--json"] if json_output else []))
    bench.broker.close().result()
    if subcommand == "info":
        assert told.code == 0
        assert "this process" in told.out
    else:
        assert (told.code, told.out) == (1, "")
        text = json.loads(told.err)["error"] if json_output else told.err
        assert "the database is in use by process" in text


def test_refusals(bunqueue: Call, tmp_path: Path) -> None:
    told = bunqueue("db", "check", "--data-path", str(tmp_path / "none.db"))
    assert (told.code, told.out) == (1, "")
    assert "there is no database" in told.err
    told = bunqueue("db", "check")
    assert told.code == 1
    assert "name a file with --data-path or BUNQUEUE_DATA_PATH" in told.err
    assert bunqueue("db").code == 2
    told = bunqueue("db", "shrink")
    assert told.code == 2
    assert "Unknown db subcommand: shrink. Use: check, info, vacuum" in told.err
    assert list(tmp_path.iterdir()) == []
