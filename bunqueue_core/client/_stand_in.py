"""Renews a worker's leases while its event loop cannot: a handler that blocks the loop is slow, not dead.

A thread looks whether the loop has renewed when it should have. Only if it has not, the thread renews in its place, over a
connection of its own where the broker is remote. A worker of threads needs none of that: its timer is a thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from bunqueue_core.client._acompat import spawn
from bunqueue_core.client._events import LOGGER
from bunqueue_core.client._transport_threads import ThreadTransport
from bunqueue_core.client._verbs import Verbs
from bunqueue_core.client.remote import RemoteVerbs
from bunqueue_core.model.errors import BunqueueError
from bunqueue_core.model.requests import Renewal

#: The loop is late when so many periods have passed since it renewed. A lease lasts three periods or more.
LATE: Final = 1.25

#: Shorter leases are not looked after more often than this, seconds.
MIN_PERIOD_S: Final = 0.05


class AStandIn:
    """Watches over the renewals of a worker on an event loop. See the module's head.

    Args:
        name: of the thread.
        verbs: gives the worker's verbs, None while there are none.
        renewals: gives what there is to renew; called from the thread.
        period_s: time between two renewals, seconds.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        verbs: Callable[[], Verbs | None],
        renewals: Callable[[], Sequence[Renewal]],
        period_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._name = name
        self._verbs = verbs
        self._renewals = renewals
        self._period_s = max(period_s, MIN_PERIOD_S)
        self._clock = clock
        self._due = clock() + LATE * self._period_s
        self._closed = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._transport: ThreadTransport | None = None
        #: How often the loop was late.
        self.times = 0

    def begin(self) -> None:
        """Watch the loop that runs here, until it is closed or :meth:`close` is called."""
        self._loop = asyncio.get_running_loop()
        self.kept()
        spawn(self._name, self._watch)

    def kept(self) -> None:
        """The loop has just renewed."""
        self._due = self._clock() + LATE * self._period_s

    def close(self) -> None:
        """Watch no more."""
        self._closed.set()

    def _watch(self) -> None:
        loop = self._loop
        while loop is not None and not self._closed.wait(max(0.0, self._due - self._clock())):
            now = self._clock()
            if now < self._due:
                self._let_go()
                continue
            self._due = now + self._period_s
            if loop.is_running():
                self.times += 1
                self._renew()
            elif loop.is_closed():
                break  # nobody will close the worker any more; what it had is not being worked on
        self._let_go()

    def _renew(self) -> None:
        verbs, renewals = self._verbs(), self._renewals()
        if verbs is None or not renewals:
            return
        if isinstance(verbs, RemoteVerbs):
            if self._transport is None:
                self._transport = ThreadTransport(replace(verbs.transport.options, on_telemetry=None))
            verbs = RemoteVerbs(self._transport)
        try:
            # What is lost the loop finds out when it is back.
            verbs.heartbeat(renewals).result(LATE * self._period_s)
        except BunqueueError as error:
            LOGGER.debug("leases were not renewed while the event loop was blocked: %s", error)

    def _let_go(self) -> None:
        """The loop does it itself again: a connection is not kept for the next time."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()


class StandIn:
    """The same for a worker of threads: there is nothing to do."""

    times = 0

    def __init__(
        self,
        name: str,
        verbs: Callable[[], Verbs | None],
        renewals: Callable[[], Sequence[Renewal]],
        period_s: float,
        clock: Callable[[], float],
    ) -> None:
        """Take the same arguments."""

    def begin(self) -> None:
        """Watch nothing."""

    def kept(self) -> None:
        """Nobody wants to know."""

    def close(self) -> None:
        """Nothing was begun."""
