"""The process in which a :class:`~bunqueue_core.client.sandbox.SandboxedWorker` runs a processor.

``python -m bunqueue_core.client._sandbox_child <descriptor> <file>``: loads the file, then takes jobs over the descriptor and
answers each with ``["result", value]`` or ``["failed", text]``, after any number of ``["progress", ...]`` and ``["log", ...]``. It
ends when the other side closes the descriptor.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import msgpack

from bunqueue_core.model.errors import SerializationError
from bunqueue_core.model.payload import Packer

#: Names by which a file's function is found, the first one that is there.
NAMES = ("processor", "default")


class SandboxJob:
    """What a processor in a sandbox gets.

    Attributes:
        id: its id.
        name: its name.
        data: its payload.
        queue: the queue.
        attempts: attempts that have failed.
        parent_id: the job that waits for it, or None.
    """

    def __init__(self, view: Mapping[str, Any], tell: Callable[[list[Any]], None]) -> None:
        self.id: str = view["id"]
        self.name: str = view["name"]
        self.data: Any = view["data"]
        self.queue: str = view["queue"]
        self.attempts: int = view["attempts"]
        self.parent_id: str | None = view["parentId"]
        self._tell = tell

    def progress(self, progress: Any, message: str | None = None) -> None:
        """Tell how far it is: a number from 0 to 100, or anything else that MessagePack can hold."""
        self._tell(["progress", progress, message])

    def log(self, message: str, level: str | None = None) -> None:
        """Write a line to the job's log."""
        self._tell(["log", message, level])

    def fail(self, error: BaseException | str) -> None:
        """Fail the job.

        Raises:
            BaseException: ``error`` itself, or a RuntimeError of its text.
        """
        raise error if isinstance(error, BaseException) else RuntimeError(error)


def load(path: str) -> Callable[[SandboxJob], Any]:
    """The processor of a file.

    Raises:
        ImportError: the file cannot be loaded, or has none.
    """
    spec = importlib.util.spec_from_file_location("bunqueue_processor", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    for name in NAMES:
        found = getattr(module, name, None)
        if callable(found):
            function: Callable[[SandboxJob], Any] = found
            return function
    raise ImportError(f"{path} has no function named {' or '.join(NAMES)}")


def serve(connection: Connection, path: str) -> None:
    """Load the file and run jobs until the other side closes."""
    pack = Packer().pack

    def tell(message: list[Any]) -> None:
        connection.send_bytes(pack(message))

    try:
        processor = load(path)
    except BaseException as error:
        tell(["unusable", f"{type(error).__name__}: {error}"])
        return
    tell(["ready"])
    while True:
        try:
            view = msgpack.unpackb(connection.recv_bytes(), strict_map_key=False)
        except EOFError:
            return
        try:
            result = processor(SandboxJob(view, tell))
            if inspect.isawaitable(result):
                result = asyncio.run(_await(result))
            tell(["result", result])
        except SerializationError as error:
            tell(["failed", str(error)])
        except Exception as error:
            tell(["failed", str(error) or type(error).__name__])


async def _await(awaitable: Any) -> Any:
    return await awaitable


def main(arguments: list[str]) -> None:
    """Run the process."""
    try:
        serve(Connection(int(arguments[0])), arguments[1])
    except (BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return  # the worker is gone, or Ctrl-C reached its whole process group: it sees to the rest


if __name__ == "__main__":
    main(sys.argv[1:])
