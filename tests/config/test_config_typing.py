"""A type checker sees what a configuration file written with models says, and finds what is wrong with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

RIGHT = """
from bunqueue_core import define_config
from bunqueue_core.config import AuthSettings, BackupSettings, ServerSettings
from bunqueue_s3 import S3Backup
from bunqueue_sqlite import SqliteStorage

config = define_config(
    server=ServerSettings(tcp_port=7000),
    auth=AuthSettings(tokens=("a",)),
    storage=SqliteStorage(data_path="jobs.db", synchronous="full"),
    backup=BackupSettings(enabled=True, store=S3Backup(bucket="b")),
    timeouts={"shutdown": 5},
)
"""

WRONG = {
    'SqliteStorage(data_pth="jobs.db")': 'Unexpected keyword argument "data_pth"',
    "SqliteStorage(data_path=5)": 'Argument "data_path" to "SqliteStorage" has incompatible type "int"',
    'ServerSettings(tcp_port="7000")': 'Argument "tcp_port" to "ServerSettings" has incompatible type "str"',
    "define_config(sever=ServerSettings())": 'Unexpected keyword argument "sever" for "define_config"',
    "define_config(server=AuthSettings())": 'Argument "server" to "define_config" has incompatible type "AuthSettings"',
}


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What mypy says about both, in one run, because starting it is what takes the time."""
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


def test_a_right_configuration_has_no_findings(findings: str) -> None:
    assert "right.py" not in findings


@pytest.mark.parametrize(("mistake", "finding"), WRONG.items())
def test_a_wrong_one_is_found_before_it_runs(findings: str, mistake: str, finding: str) -> None:
    line = len(RIGHT.splitlines()) + list(WRONG).index(mistake) + 1

    assert any(row.startswith(f"wrong.py:{line}: error:") and finding in row for row in findings.splitlines()), findings
