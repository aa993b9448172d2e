"""One attempt to call a webhook: an HTTP request that goes only where webhooks may point, redirects and name lookups included."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from bunqueue_core import __version__
from bunqueue_core.events.addresses import Target, check_webhook_url, forbidden_address, forbidden_host
from bunqueue_core.model.errors import BunqueueError, ValidationError

#: Time for one attempt: lookup, connection, request, redirects, status. Seconds.
ATTEMPT_TIMEOUT_S: Final = 10.0

#: Redirects that one attempt follows.
MAX_REDIRECTS: Final = 10

#: The rest of an answer is read so that its connection can be used again: up to this many bytes, and for so long, seconds. What
#: takes more ends the connection; the status counts either way.
MAX_ANSWER_BYTES: Final = 64 * 1024
_ANSWER_PATIENCE_S: Final = 0.25

#: How long a connection that is not used stays open, seconds.
_KEEP_ALIVE_S: Final = 15.0

#: (host name, port) → the addresses it stands for, as text. Raises OSError.
Lookup = Callable[[str, int], Awaitable[Sequence[str]]]

#: Statuses that a POST follows with a GET and without its body, and those that keep both (WHATWG Fetch, "HTTP-redirect fetch").
_TO_GET: Final = frozenset((301, 302, 303))
_SAME_METHOD: Final = frozenset((307, 308))


class SendError(BunqueueError):
    """The attempt failed before there was a final status; the text says why, for operators."""

    code = "BQ-WEBHOOK"


class Sender:
    """Makes the requests of all webhooks, over connections that are kept. Belongs to one event loop.

    Args:
        allow_private: let requests go anywhere, the own machine included.
        timeout_s: time for one attempt, seconds.
        connections: connections that may be open at a time.
        lookup: finds addresses of a host name; None asks the system.
    """

    def __init__(
        self,
        *,
        allow_private: bool,
        timeout_s: float = ATTEMPT_TIMEOUT_S,
        connections: int = 256,
        lookup: Lookup | None = None,
    ) -> None:
        self._allow_private = allow_private
        self._timeout_s = timeout_s
        connector = aiohttp.TCPConnector(
            limit=connections,
            keepalive_timeout=_KEEP_ALIVE_S,
            resolver=_GuardedResolver(lookup or look_up, allow_private),
            socket_factory=None if allow_private else _guarded_socket,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": f"bunqueue/{__version__}"},
            skip_auto_headers=("Accept-Encoding",),
            auto_decompress=False,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        """POST ``body`` to ``url`` and follow redirects. Gives the final status; what the answer says is not looked at.

        Raises:
            SendError: there is no status: nobody answers, not in time, or the request would go where it must not.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._follow(url, headers, body)
        except TimeoutError:
            raise SendError(f"no answer within {self._timeout_s:g} s") from None
        except ValidationError as error:
            raise SendError(str(error)) from None
        except _Refused as error:
            raise SendError(error.text) from None
        except aiohttp.ClientConnectorCertificateError:
            raise SendError("certificate not accepted") from None
        except aiohttp.ClientConnectorError as error:
            raise SendError(_connection_problem(error.os_error)) from None
        except aiohttp.ClientError as error:
            raise SendError(_client_problem(error)) from None
        except (OSError, ValueError) as error:
            raise SendError(f"request failed: {type(error).__name__}") from None

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def _follow(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        target = check_webhook_url(url, allow_private=self._allow_private)
        method, sent = "POST", dict(headers)
        content: bytes | None = body
        for _ in range(MAX_REDIRECTS + 1):
            status, location = await self._request(method, target, sent, content)
            if location is None or not (status in _TO_GET or status in _SAME_METHOD):
                return status
            if status in _TO_GET and method == "POST":
                method, content = "GET", None
                sent.pop("Content-Type", None)
            target = check_webhook_url(location, base=target.href, allow_private=self._allow_private)
        raise SendError(f"more than {MAX_REDIRECTS} redirects")

    async def _request(
        self, method: str, target: Target, headers: Mapping[str, str], content: bytes | None
    ) -> tuple[int, str | None]:
        """One request: its status, and where a redirect leads."""
        url = URL(target.href, encoded=True)
        # Two parsers read the URL: they must agree on where it leads.
        if url.raw_host != target.host or url.scheme != target.scheme:
            raise ValidationError("Invalid URL format")
        async with self._session.request(
            method, url.with_fragment(None), headers=headers, data=content, allow_redirects=False
        ) as answer:
            with suppress(TimeoutError, asyncio.IncompleteReadError, aiohttp.ClientError):
                async with asyncio.timeout(_ANSWER_PATIENCE_S):
                    await answer.content.readexactly(MAX_ANSWER_BYTES)
            return answer.status, answer.headers.get("Location")


class _Refused(OSError):
    """A connection would go where it must not."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class _GuardedResolver(AbstractResolver):
    """Looks names up and leaves out addresses that no webhook may connect to."""

    def __init__(self, lookup: Lookup, allow_private: bool) -> None:
        self._lookup = lookup
        self._allow_private = allow_private

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """See :class:`aiohttp.abc.AbstractResolver`."""
        found = await self._lookup(host, port)
        if self._allow_private:
            allowed = list(found)
        else:
            refused = forbidden_host(host)
            if refused is not None:
                raise _Refused(refused)
            allowed = []
            for address in found:
                problem = forbidden_address(address)
                if problem is None:
                    allowed.append(address)
                else:
                    refused = problem
            if not allowed and refused is not None:
                raise _Refused(refused)
        if not allowed:
            raise OSError(None, "no addresses")
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in allowed
        ]

    async def close(self) -> None:
        """See :class:`aiohttp.abc.AbstractResolver`."""


def _guarded_socket(info: tuple[Any, ...]) -> socket.socket:
    """Make the socket of a connection: the last place to refuse one, whatever came before."""
    family, kind, protocol, _, address = info
    problem = forbidden_address(str(address[0]))
    if problem is not None:
        raise _Refused(problem)
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setblocking(False)
    return made


async def look_up(host: str, port: int) -> list[str]:
    """Ask the system for a name's addresses, on a thread of its own: a name server that is slow delays nobody else.

    Raises:
        OSError: there are none.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def settle(addresses: list[str] | None, error: OSError | None) -> None:
        if found.done():
            return
        if error is not None:
            found.set_exception(error)
        else:
            found.set_result(addresses or [])

    def ask() -> None:
        addresses: list[str] | None = None
        problem: OSError | None = None
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))
        except OSError as error:
            problem = error
        except UnicodeError:
            problem = OSError(None, "name cannot be encoded")
        with suppress(RuntimeError):  # the loop was closed: nobody waits there any more
            loop.call_soon_threadsafe(settle, addresses, problem)

    # Daemons: a lookup that hangs must not keep the process from ending. There is at most one a name at a time.
    threading.Thread(target=ask, name="bunqueue-lookup", daemon=True).start()
    return await found


def _connection_problem(error: OSError) -> str:
    if isinstance(error, _Refused):
        return error.text
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or type(error).__name__}"
    if isinstance(error, socket.gaierror):
        return "host name cannot be resolved"
    return f"cannot connect: {_system_problem(error)}"


def _system_problem(error: OSError) -> str:
    """The system's name for the error, without the addresses that the event loop adds."""
    return os.strerror(error.errno) if error.errno else type(error).__name__


def _client_problem(error: aiohttp.ClientError) -> str:
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "connection closed without an answer"
    if isinstance(error, aiohttp.ClientOSError):
        return f"connection lost: {_system_problem(error)}"
    return f"answer not understood: {type(error).__name__}"


__all__ = ["ATTEMPT_TIMEOUT_S", "MAX_ANSWER_BYTES", "MAX_REDIRECTS", "Lookup", "SendError", "Sender", "look_up"]
