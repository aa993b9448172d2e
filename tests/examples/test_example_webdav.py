"""The backup tutorial's plugin: the page shows what is there; built and installed it passes its tests, and brings jobs back."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from example_projects import EXAMPLES, PATIENCE_S, ROOT, Project, build, shown_and_there

from bunqueue_core import Queue

NAME = "bunqueue-webdav"

pytestmark = pytest.mark.timeout(PATIENCE_S)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return build(NAME, tmp_path_factory.mktemp(NAME))


def test_the_tutorial_builds_the_example() -> None:
    shown, there = shown_and_there(ROOT / "docs" / "plugins" / "tutorial-backup.md", NAME)

    assert shown == there


def test_it_passes_its_tests_when_it_is_installed(project: Project) -> None:
    result = project.run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", str(project.source), directory=project.source.parent
    )

    assert result.returncode == 0, result.stdout[-8000:] + result.stderr
    assert "skipped" not in result.stdout


def test_a_backup_comes_back(project: Project, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("dav", EXAMPLES / NAME / "tests" / "dav.py")
    assert spec is not None
    assert spec.loader is not None
    dav = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dav)
    with Queue("mail", embedded=True, data_path=tmp_path / "jobs.db") as queue:
        queue.add_bulk([{"name": "welcome", "data": {"n": n}} for n in range(25)])

    with dav.serving() as server:
        environ = {
            "BUNQUEUE_BACKUP_TARGET": "webdav",
            "S3_BACKUP_ENABLED": "1",
            "BUNQUEUE_BACKUP_WEBDAV_URL": server.url,
            "BUNQUEUE_BACKUP_WEBDAV_USER": "ada",
            "BUNQUEUE_BACKUP_WEBDAV_PASSWORD": "secret",
        }

        def backup(*arguments: str, data_path: str) -> str:
            command = ("-c", "from bunqueue_core.cli import main; main()", "--json", "backup", *arguments)
            result = project.run(*command, directory=tmp_path, environ={**environ, "BUNQUEUE_DATA_PATH": data_path})
            assert result.returncode == 0, result.stdout + result.stderr
            return result.stdout

        backup("now", data_path="jobs.db")
        (key,) = (name for name in server.files if name.endswith(".db"))
        assert key in backup("list", data_path="jobs.db")
        backup("restore", key, "--force", data_path="restored.db")

    with Queue("mail", embedded=True, data_path=tmp_path / "restored.db") as queue:
        assert queue.get_job_counts()["waiting"] == 25
