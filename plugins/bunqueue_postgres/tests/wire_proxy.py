"""Something between a client and PostgreSQL that changes what the server says, for tests of servers that are not at hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit


@contextlib.asynccontextmanager
async def rewriting_proxy(dsn: str, rewrite: Callable[[bytes], bytes]) -> AsyncIterator[str]:
    """Give the URL of a proxy to ``dsn``.

    Args:
        dsn: URL of the server.
        rewrite: changes the first bytes that the server sends on a connection, the greeting.
    """
    target = urlsplit(dsn)
    served: set[asyncio.Task[None] | None] = set()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, from_server: bool) -> None:
        with contextlib.suppress(ConnectionError):
            greeting = from_server
            while data := await reader.read(65_536):
                if greeting:
                    changed = rewrite(data)
                    greeting = changed == data
                    data = changed
                writer.write(data)
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.add(asyncio.current_task())
        there, back = await asyncio.open_connection(target.hostname, target.port)
        await asyncio.gather(
            forward(reader, back, from_server=False), forward(there, writer, from_server=True), return_exceptions=True
        )

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield target._replace(netloc=f"{target.netloc.rpartition(':')[0]}:{port}").geturl()
    finally:
        server.close()
        await asyncio.gather(*[task for task in served if task is not None])
        await server.wait_closed()
