"""Everything that happens with events besides subscriptions: sinks and webhooks, started and stopped together."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bunqueue_core.events.sinks import SinkRunners, SinkStatistics
from bunqueue_core.events.webhooks import Announce, WebhookDispatcher, WebhookStatistics
from bunqueue_core.model.errors import CapabilityError, ConfigurationError

if TYPE_CHECKING:
    from bunqueue_core.broker.protocol import Broker
    from bunqueue_core.config.settings import Settings
    from bunqueue_core.logging import Logger
    from bunqueue_core.model.ports import Ports
    from bunqueue_core.plugins.manager import PluginManager

#: What webhooks need besides the core: modules, all of the extra ``server``.
_WEBHOOK_MODULES: Final = ("ada_url", "aiohttp")


@dataclass(frozen=True, slots=True)
class EventStatistics:
    """Counters of webhooks and of each sink."""

    webhooks: WebhookStatistics
    sinks: tuple[SinkStatistics, ...]


class EventServices:
    """Sinks and webhooks of a server. Start it once the broker is open, stop it before the broker closes::

        events = EventServices(broker, settings, plugins, log, ports)
        await events.start()
        ...
        await events.stop(deadline_s)

    Args:
        broker: the open broker.
        settings: the configuration; ``events`` and ``webhooks`` are read.
        plugins: they offer the sinks.
        log: the server's log.
        ports: the clock.
        announce: told of what happens to webhooks (``webhook:added``, ``:removed``, ``:enabled``, ``:disabled``, ``:fired``,
            ``:failed``, each with its fields), in the event loop; None: nobody.
    """

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        plugins: PluginManager,
        log: Logger,
        ports: Ports,
        *,
        announce: Announce | None = None,
    ) -> None:
        self._broker = broker
        self._settings = settings
        self._plugins = plugins
        self._log = log
        self._ports = ports
        self._announce = announce
        self._sinks: SinkRunners | None = None
        self._webhooks: WebhookDispatcher | None = None
        self._unsubscribe: list[Callable[[], None]] = []
        self._started = False

    async def start(self) -> None:
        """Open the sinks, and begin to follow events and webhooks. Idempotent. What was begun is ended again if it fails.

        Raises:
            ConfigurationError: a sink cannot be opened, or the storage driver offers no events for it.
        """
        if self._started:
            return
        self._started = True
        try:
            self._start_sinks()
            await self._start_webhooks()
        except BaseException:
            await self.stop(1.0)
            raise

    async def stop(self, deadline_s: float) -> None:
        """Deliver what waits, then close everything. Idempotent.

        Args:
            deadline_s: seconds after which what is not delivered is dropped.
        """
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe.clear()
        sinks, webhooks = self._sinks, self._webhooks
        self._sinks = self._webhooks = None
        stopping = []
        if webhooks is not None:
            stopping.append(webhooks.stop(deadline_s))
        if sinks is not None:
            stopping.append(_in_thread(sinks, deadline_s))
        for outcome in await asyncio.gather(*stopping, return_exceptions=True):
            if isinstance(outcome, Exception):  # the server's stop goes on
                self._log.component("Events").error("Events were not stopped in order", error=type(outcome).__name__)

    def statistics(self) -> EventStatistics:
        """Counters since the start; those of what was stopped are no longer in it."""
        webhooks, sinks = self._webhooks, self._sinks
        return EventStatistics(
            webhooks=webhooks.statistics() if webhooks is not None else WebhookStatistics(),
            sinks=tuple(sinks.statistics()) if sinks is not None else (),
        )

    def _start_sinks(self) -> None:
        made = self._plugins.sinks(self._settings)
        if not made:
            return
        sinks = self._sinks = SinkRunners(made, log=self._log.component("Events"), now=self._ports.now)
        sinks.start()
        try:
            for runner in sinks.runners:
                self._unsubscribe.append(self._broker.subscribe(runner.offer))
        except CapabilityError as error:
            raise ConfigurationError(
                f"events.sinks: storage driver '{error.driver}' offers no events; remove the sinks or choose another driver"
            ) from error

    async def _start_webhooks(self) -> None:
        missing = [module for module in _WEBHOOK_MODULES if importlib.util.find_spec(module) is None]
        if missing:
            raise ConfigurationError(
                f'Webhooks need {" and ".join(missing)}; install what is missing with: pip install "bunqueue-core[server]"'
            )
        webhooks = WebhookDispatcher(
            self._broker,
            self._settings.webhooks,
            log=self._log.component("Webhook"),
            now=self._ports.now,
            announce=self._announce,
        )
        try:
            await webhooks.start()
        except CapabilityError:
            return  # the driver keeps no webhooks: then none can be registered
        self._webhooks = webhooks


async def _in_thread(sinks: SinkRunners, deadline_s: float) -> None:
    """Stop the sinks without blocking the event loop, which their last events may come from."""
    await asyncio.to_thread(sinks.stop, deadline_s)


__all__ = ["EventServices", "EventStatistics"]
