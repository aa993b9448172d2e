"""The sink that ships with the core: newline-delimited JSON, in a file that may be rotated, or on standard output."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bunqueue_core.config import resolve
from bunqueue_core.events import ndjson
from bunqueue_core.events.ndjson import NdjsonFile, configured_sinks
from bunqueue_core.model.errors import ConfigurationError
from bunqueue_core.model.payload import Packed, Packer
from bunqueue_core.model.requests import Event
from bunqueue_core.plugins import PluginManager


def event(number: int, **extra: Any) -> Event:
    return Event("pushed", "q", f"j{number}", number, extra or None)


def documents(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def ids(path: Path) -> list[str]:
    return [document["jobId"] for document in documents(path)]


def test_one_object_a_line(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    sink = NdjsonFile(path)
    sink.write([event(1), Event("completed", "q", "j2", 2, {"data": Packed(Packer().pack({"text": "a\nb"}))})])
    sink.write([event(3)])
    sink.close()
    assert documents(path) == [
        {"eventType": "pushed", "queue": "q", "jobId": "j1", "timestamp": 1},
        {"eventType": "completed", "queue": "q", "jobId": "j2", "timestamp": 2, "data": {"text": "a\nb"}},
        {"eventType": "pushed", "queue": "q", "jobId": "j3", "timestamp": 3},
    ]


def test_it_appends(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    for number in (1, 2):
        sink = NdjsonFile(path)
        sink.write([event(number)])
        sink.close()
        sink.close()
    assert ids(path) == ["j1", "j2"]


def test_a_rotated_file_is_opened_anew(tmp_path: Path) -> None:
    path, old = tmp_path / "events.ndjson", tmp_path / "events.ndjson.1"
    sink = NdjsonFile(path)
    sink.write([event(1)])
    path.rename(old)
    sink.write([event(2)])
    path.unlink()
    sink.write([event(3)])
    other = tmp_path / "other"
    other.write_text('{"jobId":"x"}\n')
    os.replace(other, path)
    sink.write([event(4)])
    sink.close()
    assert (ids(old), ids(path)) == (["j1"], ["x", "j4"])


def test_a_truncated_file_goes_on_at_its_start(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    sink = NdjsonFile(path)
    sink.write([event(1)])
    os.truncate(path, 0)
    sink.write([event(2)])
    sink.close()
    assert ids(path) == ["j2"]


def test_a_torn_line_costs_no_other_line(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    path.write_text('{"jobId":"whole"}\n{"jobId":"to')
    sink = NdjsonFile(path)
    sink.write([event(1)])
    sink.close()
    assert path.read_text().splitlines()[:2] == ['{"jobId":"whole"}', '{"jobId":"to']
    assert json.loads(path.read_text().splitlines()[2])["jobId"] == "j1"


def test_a_write_that_stops_half_way_is_closed_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.ndjson"
    sink = NdjsonFile(path)
    real = os.write
    results: list[int | None] = [20, None]

    def write(fd: int, data: Any) -> int:
        if not results:
            return real(fd, data)
        count = results.pop(0)
        if count is None:
            raise OSError(28, "No space left on device")
        return real(fd, data[:count])

    monkeypatch.setattr(ndjson.os, "write", write)
    with pytest.raises(OSError, match="No space"):
        sink.write([event(1)])
    sink.write([event(1)])  # tried again, as the runner does
    sink.close()
    torn, whole = path.read_bytes().splitlines()
    assert len(torn) == 20
    assert json.loads(whole)["jobId"] == "j1"


def test_standard_output_is_written_a_batch_at_a_time_and_stays_open(capfdbinary: Any) -> None:
    [sink] = configured_sinks([{"type": "stdout"}])
    sink.write([event(1), event(2)])
    sink.close()
    print("still open", flush=True)
    out = capfdbinary.readouterr().out.splitlines()
    assert [json.loads(line)["jobId"] for line in out[:2]] == ["j1", "j2"]
    assert out[2] == b"still open"


# -- chosen in the configuration --------------------------------------------------------------------------------------


def made(sinks: Any) -> list[Any]:
    plugins = PluginManager(entry_points=[])
    return plugins.sinks(resolve(plugins, file={"events": {"sinks": sinks}}).require())


def test_the_configuration_chooses_them(tmp_path: Path) -> None:
    sinks = made(
        [{"type": "ndjson", "path": str(tmp_path / "a")}, "stdout", {"type": "ndjson", "path": str(tmp_path / "b")}]
    )
    assert [sink.name for sink in sinks] == ["ndjson", "stdout", "ndjson"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    for sink in sinks:
        sink.close()


def test_no_sinks_are_the_default() -> None:
    assert made([]) == []


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"type": "ndjson"}, "events.sinks[0].path is required"),
        ({"type": "ndjson", "path": ""}, "events.sinks[0].path: string should have at least 1 character"),
        ({"type": "ndjson", "path": 5}, "events.sinks[0].path: input should be a valid string"),
        ({"type": "ndjson", "path": "x", "file": "y"}, 'Unknown config key "events.sinks[0].file" (known: path)'),
        ({"type": "stdout", "path": "x"}, 'Unknown config key "events.sinks[0].path" (known: none)'),
        (
            {"type": "ndjson", "path": "no/such/folder/x"},
            'events.sinks[0].path: cannot append to "no/such/folder/x": No such file or directory',
        ),
    ],
)
def test_a_wrong_table_stops_the_start(table: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        made([table])
    assert caught.value.problems == (problem,)


def test_no_file_stays_open_when_another_cannot_be_opened(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    with pytest.raises(ConfigurationError):
        made([{"type": "ndjson", "path": str(tmp_path / "a")}, {"type": "ndjson", "path": str(tmp_path)}])
    after = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    assert after == before
