"""Kills a backup, a restore or a vacuum at one file operation after the other, lets that operation fail, or gives it a disk on
which files cannot grow beyond a size; and says what is left. A program of its own: it forks.

    python kill_points.py kill|fail|full backup|restore|vacuum FOLDER

``FOLDER`` holds ``template.db``, for a restore or a vacuum its log ``template.db-wal``, and for a restore a backup in ``kept``.
Prints a JSON object a line: the number of the file operation (or the size, in units of :data:`UNIT`) that was interfered with,
whether the child ended without having met it (the last line), how it ended, and what was found afterwards.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bunqueue_sqlite.maintenance import SqliteMaintenance
from bunqueue_sqlite.settings import SqliteStorage
from bunqueue_sqlite.snapshots import SqliteFiles

from bunqueue_core.backup.folder import FolderStore
from bunqueue_core.backup.service import Backups
from bunqueue_core.model.errors import BunqueueError

#: File operations of the interpreter that count, besides ``os.fsync``; SQLite's own lie between them.
EVENTS = frozenset({"open", "os.rename", "os.remove", "os.chmod", "os.listdir", "os.scandir"})

#: Exit codes of the child: a success and a failure during which the operation failed, and an end without having come that far.
SUCCESS, FAILURE, FINISHED = 0, 1, 2

#: Step between two largest sizes of files, bytes.
UNIT = 6_000


def main(how: str, what: str, folder: Path) -> None:
    point = 0
    finished = False
    while not finished:
        point += 1
        work = folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        for suffix in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(folder / f"template.db{suffix}", work / f"jobs.db{suffix}")
        store = folder / "store"
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(folder / "kept", store)
        child = os.fork()
        if child == 0:
            reached = _interfere(how, point)
            success = _work(what, work, store)
            os._exit((SUCCESS if reached() else FINISHED) if success else FAILURE)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        finished = code == FINISHED
        report: dict[str, Any] = {"point": point, "finished": finished, "code": code}
        report.update(_found_after_backup(work, store) if what == "backup" else _found_after_replacement(work))
        print(json.dumps(report), flush=True)


def _interfere(how: str, point: int) -> Callable[[], bool]:
    """Interfere with this process at ``point``. Gives a function that says whether it has come that far."""
    if how == "full":
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (point * UNIT, point * UNIT))
        return lambda: False
    seen = 0

    def count() -> None:
        nonlocal seen
        seen += 1
        if seen == point:
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.EIO, "Input/output error")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS:
            count()

    fsync = os.fsync

    def counted_fsync(fd: int) -> None:
        count()
        fsync(fd)

    os.fsync = counted_fsync
    sys.addaudithook(hook)
    return lambda: seen >= point


def _backups(work: Path, store: Path) -> Backups:
    return Backups(
        FolderStore(store),
        SqliteFiles(SqliteStorage(data_path=work / "jobs.db")),
        version="1",
        retention=1,
        log=lambda *_, **__: None,
    )


def _work(what: str, work: Path, store: Path) -> bool:
    if what == "vacuum":
        try:
            SqliteMaintenance(SqliteStorage(data_path=work / "jobs.db")).vacuum(lambda done, total: None)
        except (BunqueueError, OSError):
            return False
        return True
    backups = _backups(work, store)
    if what == "backup":
        return backups.run().success
    (key,) = [path.name for path in store.iterdir() if path.name.endswith(".db")]
    return backups.restore(key).success


def _found_after_replacement(work: Path) -> dict[str, Any]:
    """What the next owner finds, once it has settled what was left."""
    error = ""
    try:
        with SqliteFiles(SqliteStorage(data_path=work / "jobs.db")).own():
            pass
    except BunqueueError as refused:
        error = str(refused)
    return {"error": error, "jobs": _jobs(work / "jobs.db"), "names": _names(work)}


def _found_after_backup(work: Path, store: Path) -> dict[str, Any]:
    """Whether what is published is whole, and whether the next backup cleans up."""
    jobs = _jobs(work / "jobs.db")
    backups = _backups(work, store)
    listed = [backup.key for backup in backups.list()]
    broken = [key for key in listed if not backups.verify(key).success]
    after = backups.run()
    return {"jobs": jobs, "listed": len(listed), "broken": broken, "next": after.success, "names": _names(work)}


def _jobs(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        ((count,),) = connection.execute(
            "SELECT count(*) FROM (SELECT id FROM jobs UNION SELECT id FROM jobs_incoming)"
        ).fetchall()
        return int(count)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(("-wal", "-shm")))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
