"""Whether work costs more on a large backlog: adding, pulling and completing jobs on a small and on a large one, by turns.

    python -m benchmarks.growth [--jobs 1000000] [--rounds 7] [--out results.json]

The large backlog has ``--jobs`` waiting jobs, a tenth as many delayed ones, and a hundredth as many groups with ten jobs each; the
small one is that of ``--jobs 1000``. Both are SQLite files, used first through an embedded broker, each in a process of its own,
then through a server. What counts is the processor time of the process that has the broker; the least of all rounds is taken, since
whatever else runs on the machine can only add to it. What both need while nobody asks them for anything is measured, too.

The queue of many priorities is not served in the order of its adding: its rows lie scattered over the pages of the file, which
costs SQLite more; the engine it costs nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.systems import Ours, clean_environment, free_port, machine

#: What the larger backlog may cost at most, beside the smaller, and a broker may need while it is idle (of one core).
GOAL_RATIO = 1.5
GOAL_IDLE = 0.01

#: The smaller backlog.
SMALL = 1_000

#: Jobs of one measured round that come one by one; jobs of a bulk; and the former for each of the latter.
SINGLES, BULK, SINGLES_A_BULK = 1_000, 100, 50

#: How long an idle broker is watched, seconds.
IDLE_S = 10.0

PAYLOAD = {"to": "somebody@example.com", "text": "a short text"}
QUEUES = ("plain", "grouped", "prioritized")


def fill(verbs: Any, jobs: int) -> None:
    """Add the backlog."""
    groups, priorities = max(1, jobs // 100), max(1, jobs // 100)

    def add(queue: str, total: int, options: Callable[[int], dict[str, Any]]) -> None:
        for start in range(0, total, 1_000):
            numbers = range(start, min(start + 1_000, total))
            verbs.add_bulk(queue, [{"name": "j", "data": PAYLOAD, **options(n)} for n in numbers], None).result()

    add("plain", jobs, lambda n: {})
    add("plain", jobs // 10, lambda n: {"delay": 36_000_000 + n})
    add("grouped", groups * 10, lambda n: {"group": {"id": f"g{n % groups}"}})
    add("prioritized", priorities * 10, lambda n: {"priority": n % priorities})


def work(verbs: Any, queue: str, singles: int) -> None:
    """One round: add jobs, pull and complete as many, ``singles`` one by one and then some in bulks."""
    from bunqueue_core.model.requests import Ack, PullRequest

    for number in range(singles + singles // SINGLES_A_BULK):
        count = 1 if number < singles else BULK
        options: dict[str, Any] = {"group": {"id": f"g{number % 10}"}} if queue == "grouped" else {}
        if queue == "prioritized":
            options = {"priority": number % 10}
        verbs.add_bulk(queue, [{"name": "j", "data": PAYLOAD, **options}] * count, None).result()
        claims = verbs.pull(PullRequest(queue, count, "growth", wait_ms=0)).result()
        if len(claims) != count:
            raise RuntimeError(f"{len(claims)} jobs instead of {count}")
        ids = [(source["id"] if isinstance(source, dict) else source.id, token) for source, token in claims]
        verbs.ack([Ack(id, token, None) for id, token in ids]).result()


def hold(path: str, jobs: int) -> None:
    """Fill ``path`` if it is new, then do a round on the queue that each line names; for a process of its own."""
    from bunqueue_core.embedded import open_broker

    new = not os.path.exists(path)
    broker = open_broker(path)
    if new:
        fill(broker.verbs, jobs)
    print("ready", flush=True)
    for line in sys.stdin:
        queue, singles = line.split()
        work(broker.verbs, queue, int(singles))
        print("done", flush=True)
    broker.close()


class Embedded:
    """A broker in a process that does rounds on demand.

    Args:
        path: its file, filled with ``jobs`` if it is new.
        jobs: see the module's head.
    """

    def __init__(self, path: Path, jobs: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.growth", "--hold", str(path), "--jobs", str(jobs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )
        self.pid = self._process.pid
        self._expect("ready")

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != word:
            raise RuntimeError("the process with the broker ended")

    def round(self, queue: str, singles: int) -> None:
        """Do a round."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{queue} {singles}\n")
        self._process.stdin.flush()
        self._expect("done")

    def close(self) -> None:
        """Close the broker and end."""
        self._process.communicate(timeout=300)


class Served:
    """A server, and a connection to it.

    Args:
        path: its file.
    """

    def __init__(self, path: Path) -> None:
        from bunqueue_core.client.connection import Connection

        port = free_port()
        command = [sys.executable, "-c", "from bunqueue_core.cli import main; main()", "--json", "start"]
        command += ["--host", "127.0.0.1", "--tcp-port", str(port), "--http-port", str(free_port())]
        self._process = subprocess.Popen(
            [*command, "--data-path", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=clean_environment(),
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        if not any(line.startswith('{"ok": true') for line in self._process.stdout):
            raise RuntimeError("the server did not start")
        self._connection = Connection("127.0.0.1", port, command_timeout=60)

    def round(self, queue: str, singles: int) -> None:
        """Do a round."""
        work(self._connection.verbs, queue, singles)

    def close(self) -> None:
        """Stop it."""
        self._connection.close()
        self._process.terminate()
        self._process.communicate(timeout=300)


@contextmanager
def both(make: Callable[[int], Any], sizes: tuple[int, int]) -> Iterator[list[Any]]:
    """The broker with the small backlog and the one with the large one."""
    with ExitStack() as stack:
        made = []
        for size in sizes:
            made.append(make(size))
            stack.callback(made[-1].close)
        yield made


def processor_seconds(pid: int) -> float:
    """What a process has used so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def measured(brokers: list[Any], rounds: int, singles: int, idle_s: float) -> dict[str, Any]:
    """Microseconds a job (added, pulled, completed) on each broker by queue, and what each needs while it is idle."""
    jobs = singles + singles // SINGLES_A_BULK * BULK
    best = {queue: [float("inf")] * len(brokers) for queue in QUEUES}
    for turn in range(rounds + 1):
        for queue in QUEUES:
            for place, broker in enumerate(brokers):
                before = processor_seconds(broker.pid)
                broker.round(queue, singles)
                spent = (processor_seconds(broker.pid) - before) / jobs * 1e6
                if turn:  # the first is a warm-up
                    best[queue][place] = min(best[queue][place], spent)
    time.sleep(2)  # what was accepted is written
    used = [processor_seconds(broker.pid) for broker in brokers]
    time.sleep(idle_s)
    idle = [processor_seconds(broker.pid) - spent for broker, spent in zip(brokers, used, strict=True)]
    return {
        **{
            queue: {"smallUs": round(small, 2), "largeUs": round(large, 2), "ratio": round(large / max(small, 1e-9), 3)}
            for queue, (small, large) in best.items()
        },
        "idle": [round(spent / idle_s, 4) for spent in idle],
    }


def measure(jobs: int, rounds: int, singles: int, folder: Path | None, idle_s: float) -> dict[str, Any]:
    """Measure both ways."""
    with tempfile.TemporaryDirectory(prefix="bunqueue-growth-", dir=folder) as name:
        sizes = (min(SMALL, jobs), jobs)
        paths = {size: Path(name) / f"{size}.db" for size in sizes}
        with both(lambda size: Embedded(paths[size], size), sizes) as brokers:
            embedded = measured(brokers, rounds, singles, idle_s)
        with both(lambda size: Served(paths[size]), sizes) as brokers:
            server = measured(brokers, rounds, singles, idle_s)
    return {"jobs": jobs, "embedded": embedded, "server": server}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--singles", type=int, default=SINGLES, metavar="JOBS", help="jobs a round that come one by one"
    )
    parser.add_argument("--idle", type=float, default=IDLE_S, metavar="SECONDS")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where the files go (the system's temporary folder)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--hold", metavar="FILE", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.hold is not None:
        hold(chosen.hold, chosen.jobs)
        return
    figures = measure(chosen.jobs, chosen.rounds, chosen.singles, chosen.folder, chosen.idle)
    for way in ("embedded", "server"):
        found = figures[way]
        for queue in QUEUES:
            one = found[queue]
            print(
                f"{way:9}{queue:12}{one['smallUs']:8.1f} µs a job, on {chosen.jobs:,} jobs {one['largeUs']:8.1f} µs:"
                f" {one['ratio']:.2f} times; goal {GOAL_RATIO}"
            )
        print(f"{way:9}idle        {max(found['idle']):.2%} of a core; goal {GOAL_IDLE:.0%}")
    if chosen.out is not None:
        chosen.out.write_text(
            json.dumps({"machine": machine(), "version": Ours().version(), "growth": figures}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
