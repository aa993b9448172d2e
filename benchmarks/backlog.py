"""A large backlog: how much memory it takes, and how long a server needs to start on it.

    python -m benchmarks.backlog [--jobs 1000000] [--out results.json]

Fills a database through an embedded queue in a process of its own, starts a server on it, and asks it for its counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.embedded import bulks
from benchmarks.systems import Ours, clean_environment, free_port, machine

#: A filled queue as this many bytes in memory, and a start in this many seconds, are aimed at for 1,000,000 jobs.
GOAL_BYTES = 1_500_000_000
GOAL_SECONDS = 30.0

QUEUE = "bench"


def fill(path: str, jobs: int) -> None:
    """Add jobs to a new file and print what it took; for a process of its own."""
    from bunqueue_core import Queue

    queue = Queue(QUEUE, embedded=True, data_path=path)
    queue.wait_until_ready()
    before = psutil.Process().memory_info().rss
    begun = time.perf_counter()
    for bulk in bulks(jobs):
        queue.add_bulk(bulk)
    queue.add("last", durable=True)
    seconds = time.perf_counter() - begun
    after = psutil.Process().memory_info().rss
    queue.close()
    print(json.dumps({"seconds": seconds, "rss": after, "rssBefore": before}))


def started(path: Path) -> dict[str, Any]:
    """Start a server on ``path``: seconds until it accepts connections, and its memory then."""
    from bunqueue_core import Queue

    port = free_port()
    command = [sys.executable, "-c", "from bunqueue_core.cli import main; main()", "--json", "start"]
    command += ["--host", "127.0.0.1", "--tcp-port", str(port), "--http-port", str(free_port())]
    begun = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--data-path", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=clean_environment(),
    )
    try:
        assert process.stdout is not None
        # Its log comes before the announcement.
        if not any(line.startswith('{"ok": true') for line in process.stdout):
            raise RuntimeError("the server did not start")
        seconds = time.perf_counter() - begun
        rss = psutil.Process(process.pid).memory_info().rss
        with Queue(QUEUE, host="127.0.0.1", port=port, command_timeout=60) as queue:
            waiting = queue.get_job_counts()["waiting"]
        return {"seconds": seconds, "rss": rss, "waiting": waiting}
    finally:
        process.terminate()
        process.communicate(timeout=120)


def measure(jobs: int, folder: Path | None) -> dict[str, Any]:
    """Fill, start, and say what both took."""
    with tempfile.TemporaryDirectory(prefix="bunqueue-backlog-", dir=folder) as name:
        path = Path(name) / "queue.db"
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.backlog", "--fill", str(path), "--jobs", str(jobs)],
            check=True,
            capture_output=True,
            text=True,
            env=clean_environment(),
        )
        filled = json.loads(done.stdout.splitlines()[-1])
        size = path.stat().st_size
        restart = started(path)
    if restart["waiting"] != jobs + 1:
        raise RuntimeError(f"{restart['waiting']} of {jobs + 1} jobs are there")
    return {
        "jobs": jobs,
        "fillSeconds": round(filled["seconds"], 2),
        "embeddedBytes": filled["rss"],
        "bytesAJob": round((filled["rss"] - filled["rssBefore"]) / jobs),
        "fileBytes": size,
        "startSeconds": round(restart["seconds"], 2),
        "serverBytes": restart["rss"],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="where the file goes (the system's temporary folder)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--fill", metavar="FILE", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.fill is not None:
        fill(chosen.fill, chosen.jobs)
        return
    figures = measure(chosen.jobs, chosen.folder)
    scale = chosen.jobs / 1_000_000
    print(f"{figures['jobs']:,} jobs added in {figures['fillSeconds']} s, file {figures['fileBytes'] / 1e6:,.0f} MB")
    print(
        f"memory: embedded {figures['embeddedBytes'] / 1e6:,.0f} MB ({figures['bytesAJob']} bytes a job), "
        f"server {figures['serverBytes'] / 1e6:,.0f} MB; goal {GOAL_BYTES * scale / 1e6:,.0f} MB"
    )
    print(f"start of a server: {figures['startSeconds']} s; goal {GOAL_SECONDS * scale:g} s")
    if chosen.out is not None:
        chosen.out.write_text(
            json.dumps({"machine": machine(), "version": Ours().version(), "backlog": figures}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
