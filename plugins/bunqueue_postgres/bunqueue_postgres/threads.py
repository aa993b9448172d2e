"""A PostgreSQL broker for programs without an event loop: one thread of its own runs the loop that the broker lives in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from bunqueue_core.answer import Answer
from bunqueue_core.broker.protocol import Broker
from bunqueue_core.model.errors import BrokerClosed
from bunqueue_core.model.requests import Event, Health
from bunqueue_core.plugins.drivers import OpenContext
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.settings import CAPABILITIES, PostgresStorage

#: Verbs that give an answer: those of the protocol but the ones that this class has of its own.
VERBS: Final = tuple(
    name
    for name, member in vars(Broker).items()
    if callable(member)
    and not name.startswith("_")
    and name
    not in {
        "start",
        "drain",
        "close",
        "flush",
        "health",
        "statistics",
        "snapshot_source",
        "subscribe",
        "subscribe_share",
        "subscribe_dashboard",
        "watch_webhooks",
        "has_worker",
    }
)


class ThreadedBroker(Broker):
    """A :class:`PostgresBroker` whose verbs may be called from any thread; its answers are waited for in any thread.

    The thread begins with ``start`` and ends with ``close``. Listeners are called in it.

    Args:
        settings: the driver's settings.
        context: what the core hands to a driver.
    """

    capabilities = CAPABILITIES

    def __init__(self, settings: PostgresStorage, context: OpenContext) -> None:
        self._broker = PostgresBroker(settings, context)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        for verb in VERBS:
            setattr(self, verb, partial(self._call, getattr(self._broker, verb)))

    def _call(self, verb: Callable[..., Answer[Any]], *arguments: Any, **named: Any) -> Answer[Any]:
        """Call a verb in the loop's thread; its answer is settled there."""
        loop = self._loop
        if loop is None:
            return Answer.failed(BrokerClosed("the broker is not running"))
        inner: list[Answer[Any]] = []

        def cancel(_: Answer[Any]) -> None:
            loop.call_soon_threadsafe(lambda: inner[0].cancel() if inner else None)

        answer: Answer[Any] = Answer(on_cancel=cancel)

        def begin() -> None:
            inner.append(verb(*arguments, **named))
            inner[0].add_callback(lambda done: _pass_on(done, answer))

        try:
            loop.call_soon_threadsafe(begin)
        except RuntimeError:  # the loop was closed meanwhile
            return Answer.failed(BrokerClosed("the broker is not running"))
        return answer

    def _inside(self, function: Callable[[], Any]) -> Any:
        """Call ``function`` in the loop's thread and wait for what it returns."""

        async def call() -> Any:
            return function()

        loop = self._loop
        if loop is None:
            raise BrokerClosed("the broker is not running")
        return asyncio.run_coroutine_threadsafe(call(), loop).result()

    def start(self) -> Answer[None]:
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(loop,), name="bunqueue-postgres", daemon=True)
        self._thread.start()
        answer = self._call(self._broker.start)
        answer.add_callback(lambda done: self._stop() if done.error is not None else None)
        return answer

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def close(self, deadline_s: float = 30.0) -> Answer[None]:
        if self._loop is None:
            return Answer.of(None)
        answer = self._call(self._broker.close, deadline_s)
        answer.add_callback(lambda _: self._stop())
        return answer

    def drain(self) -> None:
        self._inside(self._broker.drain)

    @property
    def active_jobs(self) -> int:
        return self._broker.active_jobs

    def health(self) -> Health:
        return self._broker.health()

    def statistics(self) -> dict[str, int | float]:
        statistics: dict[str, int | float] = self._inside(self._broker.statistics)
        return statistics

    def subscribe(self, listener: Callable[[Event], None], queue: str | None = None) -> Callable[[], None]:
        return self._ending(self._inside(lambda: self._broker.subscribe(listener, queue)))

    def subscribe_share(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        return self._ending(self._inside(lambda: self._broker.subscribe_share(listener)))

    def subscribe_dashboard(self, listener: Callable[[str, Mapping[str, Any]], None]) -> Callable[[], None]:
        return self._ending(self._inside(lambda: self._broker.subscribe_dashboard(listener)))

    def watch_webhooks(self, listener: Callable[..., None]) -> Callable[[], None]:
        return self._ending(self._inside(lambda: self._broker.watch_webhooks(listener)))

    def _ending(self, end: Callable[[], None]) -> Callable[[], None]:
        def ended() -> None:
            if self._loop is not None:
                self._inside(end)

        return ended


def _pass_on(done: Answer[Any], answer: Answer[Any]) -> None:
    if done.error is not None:
        answer.fail(done.error)
    else:
        answer.settle(done.value)
