"""A server on one SQLite file, with tokens from the environment and a request limit. `bunqueue start` reads it from here."""

import os
from datetime import timedelta

from bunqueue_sqlite import SqliteStorage

from bunqueue_core import define_config
from bunqueue_core.config import AuthSettings, LimitSettings, LoggingSettings, ServerSettings

config = define_config(
    server=ServerSettings(host="127.0.0.1", tcp_port=6789, http_port=6790),
    auth=AuthSettings(tokens=tuple(os.environ.get("MY_TOKENS", "change-me").split(":"))),
    storage=SqliteStorage(data_path="jobs.db", max_completed_jobs=10_000),
    limits=LimitSettings(rate_limit_max_requests=10_000, rate_limit_window_ms=60_000),
    logging=LoggingSettings(level="info", format="json"),
    timeouts={"shutdown": timedelta(seconds=20)},
)
