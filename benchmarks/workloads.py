"""What is measured: names, sizes and payloads, the same for every system."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

#: Jobs that one bulk call adds.
BULK: Final = 1_000

#: Adds that are under way at once where a workload pipelines.
IN_FLIGHT: Final = 100

#: Jobs that one worker processes at once.
CONCURRENCY: Final = 50

PAYLOAD: Final[dict[str, Any]] = {"to": "user@example.com", "n": 1, "body": "x" * 50}
RESULT: Final[dict[str, Any]] = {"ok": True}


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload.

    Attributes:
        name: as in results.
        kind: ``embedded`` (in the program's process, on disk) or ``tcp`` (a server on disk, the original's client as load).
        verb: what the load programs call it.
        jobs: number of jobs of a full run.
        goal: least ratio to the original that is aimed at; None where none is.
        what: one line for people.
    """

    name: str
    kind: str
    verb: str
    jobs: int
    goal: float | None
    what: str


WORKLOADS: Final = (
    Workload("embedded_add_bulk", "embedded", "add_bulk", 50_000, 3.0, "1,000 a call, buffered"),
    Workload("embedded_add", "embedded", "add", 20_000, 3.0, "one call a job, buffered"),
    Workload("embedded_add_durable", "embedded", "add_durable", 20_000, 3.0, "one call a job, each on disk"),
    Workload("embedded_process", "embedded", "process", 20_000, 8.0, "concurrency 50, no-op processor"),
    Workload("tcp_add_bulk", "tcp", "add_bulk", 50_000, 1.5, "1,000 a call"),
    Workload("tcp_add", "tcp", "add", 20_000, 1.0, "100 in flight"),
    Workload("tcp_add_sequential", "tcp", "add_sequential", 20_000, None, "one at a time"),
    Workload("tcp_process", "tcp", "process", 20_000, 3.0, "one worker, concurrency 50"),
    Workload("tcp_lifecycle", "tcp", "lifecycle", 20_000, None, "adding and processing at once"),
)
