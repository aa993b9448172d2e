"""SQLite storage for bunqueue: one file, durable, fast.

Use it in a configuration::

    from bunqueue_core import define_config
    from bunqueue_sqlite import SqliteStorage

    config = define_config(storage=SqliteStorage(data_path="data/bunqueue.db"))
"""

from __future__ import annotations

from bunqueue_sqlite.settings import SqliteStorage

__all__ = ["SqliteStorage"]
