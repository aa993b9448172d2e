"""The original's own client against a server process, where bun and the ``bunqueue`` npm package are installed.

``BUNQUEUE_REFERENCE`` names a folder in which ``npm install bun bunqueue`` was run; without it the test is skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from fixtures.server import running_server

JOBS = 10_000
SCRIPT = Path(__file__).with_name("original_client.ts")


@pytest.fixture
def reference() -> Path:
    named = os.environ.get("BUNQUEUE_REFERENCE")
    if not named or not (Path(named) / "node_modules" / "bunqueue").is_dir():
        pytest.skip("BUNQUEUE_REFERENCE names no folder with bun and the bunqueue npm package")
    return Path(named)


@pytest.mark.timeout(180)
def test_ten_thousand_jobs(reference: Path, tmp_path: Path) -> None:
    # The script finds the package through the folder that it lies in.
    (tmp_path / "node_modules").symlink_to(reference / "node_modules")
    script = Path(shutil.copy(SCRIPT, tmp_path))
    with running_server(tmp_path / "queue.db") as server:
        bun = reference / "node_modules" / ".bin" / "bun"
        done = subprocess.run(
            [str(bun), str(script), str(server.port), str(JOBS)], capture_output=True, text=True, timeout=150
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        assert found == {"added": JOBS, "once": JOBS, "right": JOBS, "completed": JOBS}
        assert server.stop() == 0
