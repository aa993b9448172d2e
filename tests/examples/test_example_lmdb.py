"""The storage tutorial's plugin: the page shows what is there, and what is there passes the kit when it is built and installed."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from example_projects import ROOT, Project, build, shown_and_there

NAME = "bunqueue-lmdb"

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return build(NAME, tmp_path_factory.mktemp(NAME))


def test_the_tutorial_builds_the_example() -> None:
    shown, there = shown_and_there(ROOT / "docs" / "plugins" / "tutorial-storage.md", NAME)

    assert shown == there


def test_it_passes_the_kit_when_it_is_installed(project: Project) -> None:
    result = project.run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", str(project.source), directory=project.source.parent
    )

    assert result.returncode == 0, result.stdout[-8000:] + result.stderr
    summary = re.search(r"(\d+) passed, (\d+) skipped", result.stdout)
    assert summary is not None, result.stdout[-2000:]
    assert int(summary[1]) > 500
    assert set(re.findall(r"not offered: (.*)", result.stdout)) <= {"multi_broker"}


def test_jobs_are_there_after_the_process_was_killed(project: Project, tmp_path: Path) -> None:
    add = (
        "import asyncio, os, signal\n"
        "from bunqueue_core.logging import Logger\n"
        "from bunqueue_core.model.job import JobOptions, JobSpec\n"
        "from bunqueue_core.plugins import PluginManager\n"
        "from bunqueue_core.storage.opening import open_broker\n"
        "from bunqueue_lmdb import LmdbStorage\n"
        "async def main(kill):\n"
        "    broker = open_broker(LmdbStorage(file='jobs.lmdb'), PluginManager(), log=Logger(level='warn'))\n"
        "    await broker.start()\n"
        "    if kill:\n"
        "        await broker.push('q', [JobSpec(f'job-{n}', b'\\xc0', JobOptions(durable=True)) for n in range(50)])\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    print((await broker.counts('q')).waiting)\n"
        "    await broker.close()\n"
    )
    killed = project.run("-c", add + "asyncio.run(main(True))", directory=tmp_path)
    again = project.run("-c", add + "asyncio.run(main(False))", directory=tmp_path)

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert again.stdout == "50\n", again.stderr


def test_a_second_process_is_refused(project: Project, tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "from bunqueue_lmdb import LmdbStorage\n"
        "from bunqueue_lmdb.journal import LmdbJournal\n"
        "from bunqueue_core.model.errors import JournalError\n"
        "journal = LmdbJournal(LmdbStorage(file='jobs.lmdb'))\n"
        "try:\n"
        "    journal.open()\n"
        "except JournalError as error:\n"
        "    sys.exit('busy' if error.busy else 'refused')\n"
        "if sys.argv[1:] == ['first']:\n"
        "    print(subprocess.run([sys.executable, __file__], capture_output=True, text=True).stderr, end='')\n"
    )
    (tmp_path / "open.py").write_text(code)

    assert project.run("open.py", "first", directory=tmp_path).stdout == "busy\n"


def test_a_full_file_says_so(project: Project, tmp_path: Path) -> None:
    code = (
        "from bunqueue_lmdb import LmdbStorage\n"
        "from bunqueue_lmdb.journal import LmdbJournal\n"
        "from bunqueue_core.model.errors import JournalError\n"
        "from bunqueue_core.storage.changes import ChangeSet\n"
        "from bunqueue_core.testing.conformance.journal import job_row\n"
        "journal = LmdbJournal(LmdbStorage(file='jobs.lmdb', map_size_mb=1))\n"
        "journal.open()\n"
        "journal.commit(ChangeSet(put=[job_row('small')]))\n"
        "try:\n"
        "    journal.commit(ChangeSet(put=[job_row('large', data=bytes(2**20))]))\n"
        "except JournalError as error:\n"
        "    print(error.disk_full, list(journal.read_jobs(['small', 'large'])))\n"
    )

    assert project.run("-c", code, directory=tmp_path).stdout == "True ['small']\n"


def test_embedded_clients_keep_their_jobs_in_it(project: Project, tmp_path: Path) -> None:
    code = (
        "from bunqueue_core import Queue, Worker\n"
        "storage = {'driver': 'lmdb', 'file': 'jobs.lmdb'}\n"
        "with Queue('q', storage=storage) as queue:\n"
        "    queue.add('job', {'n': 1})\n"
        "with Queue('q', storage=storage) as queue, Worker('q', lambda job: job.data['n'] + 1, storage=storage):\n"
        "    job = queue.get_jobs()[0]\n"
        "    print(job.wait_until_finished(ttl_ms=20_000))\n"
    )

    result = project.run("-c", code, directory=tmp_path)

    assert result.stdout == "2\n", result.stderr
