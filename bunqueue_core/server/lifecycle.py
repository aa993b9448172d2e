"""A server's life: storage, listeners, work, an orderly stop.

Start, each step only if the one before succeeded: ask the backup target; open the storage and recover it; start event sinks and
webhooks; bind every listener; accept; begin the schedule of backups; announce. The stop that SIGTERM or SIGINT asks for: hand out
and take in no more work, keep the connections so that workers can say what became of the jobs they hold, for so long at most; then
close the connections, end a backup that is being made, deliver the events that wait, hand back what is still held, write what was
accepted, release the storage. A second signal skips the waiting; a third ends the process at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from socket import socket
from typing import Any, Final

from bunqueue_core import __version__
from bunqueue_core.backup.hosting import ServerBackups
from bunqueue_core.broker.protocol import Broker
from bunqueue_core.broker.workers import WorkerRegistry
from bunqueue_core.commands.monitoring import resident_bytes
from bunqueue_core.commands.session import Services
from bunqueue_core.config.settings import Listening, Settings
from bunqueue_core.events.services import EventServices
from bunqueue_core.logging import Logger
from bunqueue_core.model.errors import BunqueueError, ConfigurationError
from bunqueue_core.model.options import JobReader
from bunqueue_core.model.ports import Ports
from bunqueue_core.plugins.manager import PluginManager
from bunqueue_core.scheduling.repeat import Repeats
from bunqueue_core.server.http.app import HttpApp, HttpOptions
from bunqueue_core.server.http.listener import HttpServer
from bunqueue_core.server.http.streams import StreamLimits, Streams
from bunqueue_core.server.limits import ConnectionLimits, RateLimiter
from bunqueue_core.server.sockets import bind_tcp, bind_unix, remove_unix, tls_context
from bunqueue_core.server.tcp.listener import TcpServer
from bunqueue_core.storage.opening import open_broker

#: How often a stopping server looks whether workers have finished, seconds.
DRAIN_POLL_S: Final = 0.05

#: How long webhooks and event sinks may take to deliver what waits, seconds; and how long when a second signal came.
EVENTS_S: Final = 5.0
HURRIED_EVENTS_S: Final = 1.0

#: How long a backup that is being made may take to withdraw what it has begun, seconds; and how long when a second signal came.
BACKUPS_S: Final = 5.0
HURRIED_BACKUPS_S: Final = 1.0

#: How long the storage may take to write what it has, seconds; and how long when a second signal came.
CLOSE_S: Final = 10.0
HURRIED_CLOSE_S: Final = 3.0

#: Exit statuses.
EXIT_OK: Final = 0
EXIT_FAILED: Final = 1


async def run_server(
    settings: Settings,
    plugins: PluginManager,
    log: Logger,
    *,
    announce: Callable[[Listening], None],
    ports: Ports | None = None,
) -> int:
    """Run a server in the current event loop until SIGTERM or SIGINT.

    Args:
        settings: the configuration.
        plugins: drivers and strategies.
        log: the server's log.
        announce: called once everything listens.
        ports: clock, ids and randomness; None takes the real ones.

    Returns:
        The exit status: 0 after an orderly stop, 1 when the server could not start or the storage could not be closed.
    """
    return await Server(settings, plugins, log, ports=ports).run(announce)


class Server:
    """One server. :meth:`run` is its whole life; the steps are there for those who embed it in a program of their own.

    Args:
        settings: the configuration.
        plugins: drivers and strategies.
        log: the server's log.
        ports: clock, ids and randomness; None takes the real ones.
        stream_limits: bounds and intervals of event streams and WebSockets; None takes the usual ones.
    """

    def __init__(
        self,
        settings: Settings,
        plugins: PluginManager,
        log: Logger,
        *,
        ports: Ports | None = None,
        stream_limits: StreamLimits | None = None,
    ) -> None:
        self._settings = settings
        self._plugins = plugins
        self._log = log
        self._ports = ports or Ports()
        self._stream_limits = stream_limits
        self._broker: Broker | None = None
        self._services: Services | None = None
        self._events: EventServices | None = None
        self._backups: ServerBackups | None = None
        self._tcp: TcpServer | None = None
        self._app: HttpApp | None = None
        self._http: HttpServer | None = None
        self._streams: Streams | None = None
        self._bound: list[socket] = []  # listening, but nothing serves them yet
        self._unix: list[Path] = []
        self._timers: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._signals = 0
        self._first_signal = ""

    async def run(self, announce: Callable[[Listening], None]) -> int:
        """Start, serve until a signal or :meth:`request_stop`, stop. Gives the exit status."""
        loop = asyncio.get_running_loop()
        handled = (signal.SIGTERM, signal.SIGINT)
        for number in handled:
            loop.add_signal_handler(number, self._signalled, number)
        try:
            try:
                listening = await self.start()
            except BunqueueError as error:
                if self._broker is None and not isinstance(error, ConfigurationError):
                    self._log.error("Failed to initialize storage", error=str(error))
                else:
                    self._log.error(f"Failed to start server: {error}")
                await self.stop()
                return EXIT_FAILED
            announce(listening)
            await self._stop.wait()
            return EXIT_OK if await self.stop() else EXIT_FAILED
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def request_stop(self) -> None:
        """Ask for an orderly stop; asked again, it no longer waits for workers."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def _signalled(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals > 2:
            os._exit(EXIT_FAILED)
        if self._signals == 1:
            self._first_signal = number.name
            self._log.info(f"Received {number.name}, shutting down...")
        else:
            self._log.warn(f"Received {number.name} again, not waiting any longer")
        self.request_stop()

    # -- start --------------------------------------------------------------------------------------------------------

    async def start(self) -> Listening:
        """Open the storage, start what receives events, bind the listeners, accept connections.

        Raises:
            ConfigurationError: TLS files, an address, an event sink or the backup target cannot be used.
            BunqueueError: the storage cannot be opened.
        """
        settings = self._settings
        server = settings.server
        context = tls_context(server.tls_cert_file, server.tls_key_file)
        driver = self._plugins.driver(settings.storage.driver)
        asyncio.get_running_loop().set_exception_handler(self._unexpected)
        backups = self._backups = ServerBackups(
            settings,
            self._plugins,
            self._ports,
            self._log,
            announce=lambda name, fields: services.tell(name, **fields),
        )
        await backups.open()
        broker = open_broker(
            settings.storage, self._plugins, ports=self._ports, role="server", log=self._log.component("Storage")
        )
        await broker.start()
        self._broker = broker
        services = self._services = Services(
            broker=broker,
            ports=self._ports,
            log=self._log.component("TCP"),
            workers=WorkerRegistry(
                timeout_ms=settings.timeouts.worker_timeout_ms, now=self._ports.now, new_id=self._ports.new_token
            ),
            reader=JobReader(self._plugins.strategies, Repeats().check_pattern),
            version=__version__,
            tokens=settings.auth.tokens,
            private_webhooks=settings.webhooks.allow_private_networks,
        )
        broker.has_worker = services.workers.has_active
        services.workers.removed = lambda id: broker.share_workers((), (id,))
        self._events = EventServices(
            broker,
            settings,
            self._plugins,
            self._log,
            self._ports,
            announce=lambda name, fields: services.tell(name, **fields),
        )
        services.events = self._events.statistics
        services.backups = backups.statistics
        await self._events.start()
        tcp_sockets, tcp_address = self._bind("tcp", server.tcp_socket_path, server.host, server.tcp_port)
        http_sockets, http_address = self._bind("http", server.http_socket_path, server.host, server.http_port)
        await self._serve(services, context, tcp_sockets, http_sockets)
        self._every(settings.timeouts.worker_cleanup_interval_ms, services.workers.sweep)
        backups.start(broker)
        return Listening(tcp=tcp_address, http=http_address, storage=driver.describe(settings.storage))

    def _bind(
        self, protocol: str, path: str | None, host: str, port: int
    ) -> tuple[list[socket], tuple[str, int] | Path]:
        try:
            if path is not None:
                sockets = [bind_unix(Path(path))]
                self._unix.append(Path(path))
            else:
                sockets = bind_tcp(host, port)
        except OSError as error:
            where = path if path is not None else f"{host}:{port}"
            setting = f"server.{protocol}SocketPath" if path is not None else f"server.{protocol}Port or server.host"
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise ConfigurationError(
                f"{protocol.upper()} cannot listen at {where}: {reason}; choose another {setting}"
            ) from error
        self._bound.extend(sockets)
        return sockets, Path(path) if path is not None else (host, sockets[0].getsockname()[1])

    async def _serve(
        self,
        services: Services,
        context: ssl.SSLContext | None,
        tcp_sockets: list[socket],
        http_sockets: list[socket],
    ) -> None:
        settings = self._settings
        limits = settings.limits
        limiter = None
        if limits.rate_limit is not None:
            limiter = RateLimiter(*limits.rate_limit, self._ports.now)
            self._every(limits.rate_limit_cleanup_ms, limiter.sweep)
        tcp = self._tcp = TcpServer(
            services,
            ConnectionLimits(unsent_bytes=limits.tcp_max_write_queue_bytes, stall_ms=limits.tcp_idle_timeout_ms),
            limiter,
        )
        streams = self._streams = Streams(services, self._stream_limits, settings.monitoring)
        app = self._app = HttpApp(
            services,
            HttpOptions(
                cors_origins=settings.cors.origins,
                metrics_need_token=settings.auth.require_auth_for_metrics,
                metrics_queues=settings.telemetry.max_prometheus_queues,
            ),
            lambda: {"tcp": len(tcp.connections), **streams.connections()},
            limiter,
            streams=streams,
        )
        services.metrics = app.metrics
        self._http = HttpServer(app, context)
        await tcp.start(tcp_sockets, context)
        await self._http.start(http_sockets)
        self._bound.clear()
        self._every(settings.timeouts.stats, lambda: self._log_statistics(services, tcp, streams))

    def _every(self, interval_ms: int, work: Callable[[], object]) -> None:
        async def repeat() -> None:
            while True:
                await asyncio.sleep(interval_ms / 1000)
                work()

        self._timers.append(asyncio.create_task(repeat()))

    def _log_statistics(self, services: Services, tcp: TcpServer, streams: Streams) -> None:
        numbers = services.broker.statistics()
        workers = services.workers.totals()
        rss = f"{round(resident_bytes() / 2**20)}MB"
        self._log.component("Stats").info(
            "Queue statistics",
            time=time.strftime("%H:%M:%S"),
            waiting=numbers.get("waiting", 0) + numbers.get("paused", 0),
            active=numbers.get("active", 0),
            delayed=numbers.get("delayed", 0),
            completed=numbers.get("completed", 0),
            dlq=numbers.get("dlq", 0),
            tcp=len(tcp.connections),
            **streams.connections(),
            workers=f"{workers.active}/{workers.total}",
            mem=f"{rss}/{rss}",
            rss=rss,
            idx=numbers.get("jobs", 0),
            locks=numbers.get("locks", 0),
            clients=numbers.get("sessions", 0),
        )

    def _unexpected(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error that nobody caught: said, and survived."""
        error = context.get("exception")
        self._log.error(
            "Unexpected error",
            detail=str(context.get("message", "")),
            error=f"{type(error).__name__}: {error}" if error is not None else None,
        )

    # -- stop ---------------------------------------------------------------------------------------------------------

    async def stop(self) -> bool:
        """Stop in order; see the module's head. False if the storage could not be closed. Idempotent."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if self._streams is not None:
            self._streams.announce("server:shutdown", {"signal": self._first_signal})
            self._streams.close()
            self._streams = None
        broker = self._broker
        if broker is not None and self._tcp is not None:
            broker.drain()
            await self._drain(broker)
        if self._tcp is not None:
            await self._tcp.stop()
            self._tcp = None
        if self._app is not None:
            self._app.close()
            self._app = None
        if self._http is not None:
            await self._http.stop()
            self._http = None
        if self._backups is not None:
            await self._backups.stop(HURRIED_BACKUPS_S if self._hurry.is_set() else BACKUPS_S)
            self._backups = None
        if self._events is not None:
            await self._events.stop(HURRIED_EVENTS_S if self._hurry.is_set() else EVENTS_S)
            self._events = None
        for listener in self._bound:
            listener.close()
        self._bound.clear()
        for path in self._unix:
            remove_unix(path)
        self._unix.clear()
        return broker is None or await self._close(broker)

    async def _drain(self, broker: Broker) -> None:
        """Wait until no worker holds a job, for the configured time at most."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.timeouts.shutdown / 1000
        told = 0
        while (active := broker.active_jobs) and loop.time() < deadline and not self._hurry.is_set():
            if active != told:
                self._log.info(f"Waiting for {active} active jobs...")
                told = active
            wait = min(DRAIN_POLL_S, deadline - loop.time())
            try:
                await asyncio.wait_for(self._hurry.wait(), max(0.0, wait))
            except TimeoutError:
                continue

    async def _close(self, broker: Broker) -> bool:
        self._broker = None
        deadline = HURRIED_CLOSE_S if self._hurry.is_set() else CLOSE_S
        try:
            await asyncio.wait_for(_settled(broker, deadline), deadline + 1)
        except Exception as error:
            self._log.error("Storage could not be closed", error=str(error) or type(error).__name__)
            self._log.error("Shutdown completed with errors")
            return False
        self._log.info("Shutdown complete")
        return True


async def _settled(broker: Broker, deadline_s: float) -> None:
    await broker.close(deadline_s)
