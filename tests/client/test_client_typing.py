"""A type checker knows the options of a job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

RIGHT = """
from datetime import UTC, datetime, timedelta
from typing import Any

import bunqueue_core.asyncio
from bunqueue_core import Bunqueue, Queue
from bunqueue_core.client.job_options import JobOptions

queue = Queue("q", default_job_options={"attempts": 5})
queue.add("a", {}, priority=1, delay=timedelta(seconds=1), backoff={"type": "exponential", "delay": 1000})
queue.add("a", {}, jobId="1", removeOnComplete={"age": 60, "count": 10}, timestamp=datetime.now(UTC), ttl=None)
queue.add("a", {}, deduplication={"id": "x", "ttl": 5000}, group={"id": 7}, parent={"id": "1", "queue": "p"})
options: JobOptions = {"attempts": 2}
queue.add("a", **options)
anything: dict[str, Any] = {}
queue.add("a", **anything)
Bunqueue("b", processor=lambda job: None).add("a", attempts=1)


async def main() -> None:
    await bunqueue_core.asyncio.Queue("q").add("a", durable=True)


"""

WRONG = {
    'queue.add("a", {}, prioritty=1)': 'Unexpected keyword argument "prioritty" for "add"',
    'queue.add("a", {}, priority="high")': 'Argument "priority" to "add" of "Queue" has incompatible type "str"',
    'queue.add("a", {}, depends_on=5)': 'Argument "depends_on" to "add" of "Queue" has incompatible type "int"',
}


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("typed")
    (directory / "right.py").write_text(RIGHT)
    (directory / "wrong.py").write_text(RIGHT + "\n".join(WRONG) + "\n")
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache"), "right.py", "wrong.py"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout + result.stderr


def test_what_is_right_passes(findings: str) -> None:
    assert "right.py" not in findings, findings


@pytest.mark.parametrize("statement", list(WRONG))
def test_what_is_wrong_is_found(findings: str, statement: str) -> None:
    line = RIGHT.count("\n") + 1 + list(WRONG).index(statement)
    assert f"wrong.py:{line}: error: {WRONG[statement]}" in findings, findings
