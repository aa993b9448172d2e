"""Where a client's jobs are: behind a connection, or in this process. Decides from the arguments and the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from bunqueue_core.client._session import TelemetryHandler, TlsOption

if TYPE_CHECKING:
    from bunqueue_core.plugins.drivers import StorageSettings

#: What an embedded client may be given as its storage: what the section ``storage`` of a configuration holds.
StorageOption: TypeAlias = "StorageSettings | Mapping[str, Any] | None"

#: ``1`` makes clients embedded that do not say.
EMBEDDED_VARIABLE: Final = "BUNQUEUE_EMBEDDED"

#: Where a server is that no argument names.
DEFAULT_HOST: Final = "localhost"
DEFAULT_PORT: Final = 6789

#: Keys of a connection given as a mapping → argument of ``Connection``.
_CONNECTION_KEYS: Final[Mapping[str, str]] = {
    "host": "host",
    "port": "port",
    "token": "token",
    "tls": "tls",
    "connect_timeout": "connect_timeout",
    "command_timeout": "command_timeout",
    "on_telemetry": "on_telemetry",
}


@dataclass(frozen=True, slots=True)
class Target:
    """Attributes:
    embedded: the broker runs in this process.
    data_path: its database file, None for the default; only when embedded.
    storage: its storage, in place of a path; only when embedded.
    connection: a connection that is shared with others, and left open.
    arguments: arguments of the connection to make, when there is none to share.
    pool_size: number of connections to make then.
    """

    embedded: bool
    data_path: str | None
    connection: Any
    arguments: dict[str, Any]
    storage: StorageOption = None
    pool_size: int = 1


def find_target(
    *,
    host: str,
    port: int,
    token: str | None,
    tls: TlsOption,
    connection: Any,
    command_timeout: float | None,
    on_telemetry: TelemetryHandler | None,
    embedded: bool | None,
    data_path: str | os.PathLike[str] | None,
    storage: StorageOption = None,
    pool_size: int = 1,
) -> Target:
    """Decide where a client's jobs are.

    Raises:
        ValueError: the arguments contradict each other, or a connection's mapping has an unknown key.
    """
    if isinstance(pool_size, bool) or not isinstance(pool_size, int) or pool_size < 1:
        raise ValueError(f"pool_size must be an integer of at least 1, got {pool_size!r}")
    if storage is not None:
        if data_path is not None:
            raise ValueError("give either data_path or storage, not both")
        if embedded is False:
            raise ValueError("storage is for embedded clients only")
        embedded = True
    if connection is not None and (embedded or data_path is not None):
        raise ValueError("a client is either embedded or has a connection, not both")
    if data_path is not None:
        if not os.fspath(data_path):
            raise ValueError("data_path must not be empty")
        if embedded is False:
            raise ValueError("data_path is for embedded clients only")
        embedded = True
    if embedded and (host != DEFAULT_HOST or port != DEFAULT_PORT or token is not None or tls is not None):
        raise ValueError("a client is either embedded or has a server (host, port, token, tls), not both")
    if embedded is None:
        embedded = connection is None and os.environ.get(EMBEDDED_VARIABLE) == "1"
    if embedded:
        return Target(True, None if data_path is None else os.fspath(data_path), None, {}, storage)
    arguments: dict[str, Any] = {
        "host": host,
        "port": port,
        "token": token,
        "tls": tls,
        "command_timeout": command_timeout,
        "on_telemetry": on_telemetry,
    }
    if isinstance(connection, Mapping):
        for key, value in connection.items():
            if key not in _CONNECTION_KEYS:
                known = ", ".join(_CONNECTION_KEYS)
                raise ValueError(f"connection has no option {key!r} (known: {known})")
            arguments[_CONNECTION_KEYS[key]] = value
        connection = None
    return Target(False, None, connection, arguments, None, pool_size)


def queue_key(prefix_key: str, name: str) -> str:
    """The name by which the broker knows a queue."""
    return f"{prefix_key}{name}" if prefix_key else name
