"""Calls webhooks: once an event and webhook, tried a few times, in no particular order, in nobody's way.

Every webhook has a bounded queue of its own; what does not fit is dropped and counted. Attempts of all webhooks share a number of
places, a part of which is kept for webhooks that have no attempt under way: so a webhook that hangs delays itself alone. Nothing of
this is stored: what waits when the process ends is lost. The webhooks themselves and their counters are the broker's.
"""

from __future__ import annotations

import asyncio
import hmac
import importlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from bunqueue_core.events.encoding import event_size, webhook_body
from bunqueue_core.model.errors import BunqueueError
from bunqueue_core.model.requests import Event
from bunqueue_core.model.webhook import WEBHOOK_EVENTS, Webhook, WebhookTally

if TYPE_CHECKING:
    from bunqueue_core.answer import Answer
    from bunqueue_core.broker.protocol import Broker
    from bunqueue_core.config.settings import WebhookSettings
    from bunqueue_core.events.sender import Lookup

#: A webhook's troubles are logged at most this often, seconds; how many went unsaid is told with the next.
LOG_INTERVAL_S: Final = 60.0

_EVENT_TYPES: Final[Mapping[str, str]] = {name: type for type, name in WEBHOOK_EVENTS.items()}

#: Receives news of webhooks for those who watch the server: a name such as ``webhook:fired``, and its fields.
Announce = Callable[[str, Mapping[str, Any]], None]


class Timer(Protocol):
    """Something that happens later."""

    def cancel(self) -> None:
        """Let it not happen."""


#: (seconds, function, *arguments) → a timer that calls the function then, in the event loop.
Later = Callable[..., Timer]


@dataclass(frozen=True, slots=True)
class WebhookBounds:
    """Bounds of the deliveries.

    Attributes:
        waiting: deliveries of one webhook that are not finished; beyond, the newest are dropped.
        bytes: payload bytes of all that are not finished, about. Each enabled webhook may hold an equal share of it, and one
            delivery in any case.
        attempts: attempts under way at a time.
        attempts_each: of these, of one webhook.
        attempts_shared: while this many are under way, a webhook that has one under way gets no other.
    """

    waiting: int = 10_000
    bytes: int = 64 * 1024 * 1024
    attempts: int = 256
    attempts_each: int = 8
    attempts_shared: int = 128


@dataclass(frozen=True, slots=True)
class WebhookStatistics:
    """Counters since the start of this process, over all webhooks.

    Attributes:
        registered: webhooks there are.
        enabled: of these, those that are called.
        delivered: deliveries that succeeded.
        failed: deliveries that were given up after the last attempt.
        attempts: attempts that were made.
        dropped: deliveries that were never tried: too many waited, the webhook was removed or disabled, or the server stopped.
        waiting: deliveries that are not finished.
        active: attempts under way.
    """

    registered: int = 0
    enabled: int = 0
    delivered: int = 0
    failed: int = 0
    attempts: int = 0
    dropped: int = 0
    waiting: int = 0
    active: int = 0


class _Occasion:
    """An event that webhooks are called for; its body is made once."""

    __slots__ = ("_event", "body", "name", "size", "timestamp")

    def __init__(self, event: Event) -> None:
        self._event: Event | None = event
        self.name = WEBHOOK_EVENTS[event.type]
        self.timestamp = event.timestamp
        self.size = event_size(event)
        self.body = b""

    def encoded(self) -> bytes:
        """The body."""
        event = self._event
        if event is not None:
            self.body = webhook_body(event)
            self._event = None
        return self.body


class _Delivery:
    """One webhook's call for one occasion."""

    __slots__ = ("attempts", "occasion", "timer")

    def __init__(self, occasion: _Occasion) -> None:
        self.occasion = occasion
        self.attempts = 0
        self.timer: Timer | None = None


class _Hook:
    """A webhook with what it has to do. ``held`` and ``bytes`` count deliveries that are not finished, wherever they are."""

    __slots__ = ("active", "bytes", "dropped", "held", "listed", "quiet_until", "told", "unsaid", "waiting", "webhook")

    def __init__(self, webhook: Webhook) -> None:
        self.webhook = webhook
        self.waiting: deque[_Delivery] = deque()
        self.held = 0
        self.bytes = 0
        self.active = 0
        self.listed = False  # stands in line for a place
        self.dropped = 0
        self.told = 0  # of the dropped ones, in the log
        self.quiet_until = 0.0
        self.unsaid = 0


@dataclass(frozen=True, slots=True)
class _Route:
    """The webhooks that one type of event concerns."""

    everywhere: tuple[_Hook, ...]
    by_queue: Mapping[str, tuple[_Hook, ...]]


class WebhookDispatcher:
    """Calls the broker's webhooks. Belongs to the event loop it is started in.

    Args:
        broker: whose webhooks and events.
        settings: attempts, pauses, where webhooks may point.
        log: writes one record: level, message, fields.
        now: epoch ms.
        announce: told of what happens to webhooks, in the event loop; None: nobody.
        bounds: its bounds.
        later: makes timers; None takes the event loop's.
        lookup: finds addresses of a host name; None asks the system.
    """

    def __init__(
        self,
        broker: Broker,
        settings: WebhookSettings,
        *,
        log: Callable[..., None],
        now: Callable[[], int],
        announce: Announce | None = None,
        bounds: WebhookBounds | None = None,
        later: Later | None = None,
        lookup: Lookup | None = None,
    ) -> None:
        self._broker = broker
        self._settings = settings
        self._log = log
        self._now = now
        self._announce = announce
        self._bounds = bounds or WebhookBounds()
        self._given_later = later
        self._lookup = lookup
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._lock = threading.Lock()  # guards what listeners touch from other threads: hooks, queues, the line
        self._hooks: dict[str, _Hook] = {}
        self._routes: Mapping[str, _Route] = {}
        self._share = self._bounds.bytes
        self._line: deque[_Hook] = deque()
        self._woken = False
        self._known = False
        self._stopped = False
        self._held = 0
        self._idle = asyncio.Event()
        self._active = 0
        self._delivered = 0
        self._failed = 0
        self._attempts = 0
        self._dropped = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._retries: set[_Delivery] = set()
        self._opening: asyncio.Task[Any] | None = None
        self._tallies: dict[str, WebhookTally] = {}
        self._untaken = False  # the broker did not take the latest, and that was said
        self._reporting: asyncio.Task[None] | None = None
        self._unwatch: Callable[[], None] | None = None
        self._unsubscribe: Callable[[], None] | None = None

    # -- life cycle ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to follow the broker's webhooks and to call them.

        Raises:
            CapabilityError: the broker offers no webhooks.
        """
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._unwatch = self._broker.watch_webhooks(self._registered)

    async def stop(self, deadline_s: float) -> None:
        """Take no more events, finish what was begun, then end. Idempotent.

        Args:
            deadline_s: seconds after which the rest is dropped.
        """
        if self._stopped:
            return
        with self._lock:
            self._stopped = True
            held = self._held
            if not held:
                self._idle.set()
        if self._unwatch is not None:
            self._unwatch()
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if held:
            try:
                await asyncio.wait_for(self._idle.wait(), deadline_s)
            except TimeoutError:
                self._abandon()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._reporting is not None:
            await asyncio.gather(self._reporting, return_exceptions=True)
        if self._tallies:
            self._report()
            if self._reporting is not None:
                await asyncio.gather(self._reporting, return_exceptions=True)
        if self._opening is not None:
            opened = await asyncio.gather(self._opening, return_exceptions=True)
            if not isinstance(opened[0], BaseException):
                await opened[0].close()

    def statistics(self) -> WebhookStatistics:
        """Its counters now."""
        with self._lock:
            return WebhookStatistics(
                registered=len(self._hooks),
                enabled=sum(hook.webhook.enabled for hook in self._hooks.values()),
                delivered=self._delivered,
                failed=self._failed,
                attempts=self._attempts,
                dropped=self._dropped,
                waiting=self._held,
                active=self._active,
            )

    def _abandon(self) -> None:
        """The deadline has passed: drop everything that is not finished."""
        with self._lock:
            dropped = self._held
            self._dropped += dropped
            self._held = 0
            self._line.clear()
            for hook in self._hooks.values():
                hook.waiting.clear()
        for delivery in self._retries:
            if delivery.timer is not None:
                delivery.timer.cancel()
        self._retries.clear()
        self._log("warn", "Webhook deliveries dropped at stop", deliveries=dropped)

    # -- registration, from any thread --------------------------------------------------------------------------------

    def _registered(self, webhooks: Sequence[Webhook]) -> None:
        """These are the webhooks from now on."""
        hooks: dict[str, _Hook] = {}
        enabled = 0
        with self._lock:
            if self._stopped:
                return
            before = {id: hook.webhook for id, hook in self._hooks.items()}
            for webhook in webhooks:
                hook = hooks[webhook.id] = self._hooks.get(webhook.id) or _Hook(webhook)
                hook.webhook = webhook
                enabled += webhook.enabled
            for id, hook in self._hooks.items():
                if id not in hooks or not hook.webhook.enabled:
                    self._discard(hook)
            self._hooks = hooks
            self._routes = routes = _routes(hooks.values())
            self._share = self._bounds.bytes // max(1, enabled)
            told, self._known = self._known, True
        if routes and self._unsubscribe is None:
            self._unsubscribe = self._broker.subscribe_share(self._happened)
        elif not routes and self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if told and self._announce is not None:
            for name, fields in _news(before, webhooks):
                self._on_loop(self._announce, name, fields)

    def _discard(self, hook: _Hook) -> None:
        """Drop what a removed or disabled webhook has not begun; what it has begun goes on. Under the lock."""
        begun = deque(delivery for delivery in hook.waiting if delivery.attempts)
        for delivery in hook.waiting:
            if not delivery.attempts:
                hook.dropped += 1
                hook.told += 1  # asked for: nothing to complain of
                self._dropped += 1
                self._release(hook, delivery)
        hook.waiting = begun

    def _release(self, hook: _Hook, delivery: _Delivery) -> None:
        """A delivery is finished, one way or the other. Under the lock."""
        hook.held -= 1
        hook.bytes -= delivery.occasion.size
        self._held -= 1
        if self._stopped and not self._held:
            self._on_loop(self._idle.set)

    # -- events, from any thread --------------------------------------------------------------------------------------

    def _happened(self, event: Event) -> None:
        """Put an event in the queue of every webhook that it concerns; the broker waits for this, so nothing else is done."""
        route = self._routes.get(event.type)
        if route is None:
            return
        hooks = route.everywhere
        if route.by_queue:
            hooks += route.by_queue.get(event.queue, ())
        if not hooks:
            return
        occasion = _Occasion(event)
        size = occasion.size
        with self._lock:
            if self._stopped:
                return
            for hook in hooks:
                if hook.held >= self._bounds.waiting or (hook.held and hook.bytes + size > self._share):
                    hook.dropped += 1
                    self._dropped += 1
                    continue
                hook.held += 1
                hook.bytes += size
                self._held += 1
                hook.waiting.append(_Delivery(occasion))
                if not hook.listed:
                    hook.listed = True
                    self._line.append(hook)
            wake = not self._woken
            self._woken = True
        if wake:
            self._on_loop(self._pump)

    def _on_loop(self, function: Callable[..., object], *arguments: Any) -> None:
        loop = self._loop
        if loop is None:
            return
        if threading.get_ident() == self._thread:
            loop.call_soon(function, *arguments)
            return
        try:
            loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop was closed: nobody is told anything any more
            return

    # -- attempts, in the event loop ----------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Start attempts while there are places, one webhook after the other."""
        bounds = self._bounds
        begun: list[tuple[_Hook, _Delivery]] = []
        with self._lock:
            self._woken = False
            line = self._line
            while line and self._active < bounds.attempts:
                hook = line.popleft()
                hook.listed = False
                if not hook.waiting:
                    continue
                if hook.active and (hook.active >= bounds.attempts_each or self._active >= bounds.attempts_shared):
                    continue  # it comes back when one of its own attempts ends
                delivery = hook.waiting.popleft()
                hook.active += 1
                self._active += 1
                self._attempts += 1
                begun.append((hook, delivery))
                if hook.waiting:
                    hook.listed = True
                    line.append(hook)
        for hook, delivery in begun:
            task = asyncio.get_running_loop().create_task(self._attempt(hook, delivery))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _attempt(self, hook: _Hook, delivery: _Delivery) -> None:
        error: str | None = None
        webhook, occasion = hook.webhook, delivery.occasion
        delivery.attempts += 1
        try:
            body = occasion.encoded()
            headers = {
                "Content-Type": "application/json",
                "X-Webhook-Event": occasion.name,
                "X-Webhook-Timestamp": str(occasion.timestamp),
            }
            if webhook.secret:
                headers["X-Webhook-Signature"] = hmac.new(webhook.secret.encode(), body, "sha256").hexdigest()
            if self._opening is None:
                self._opening = asyncio.get_running_loop().create_task(self._open())
            sender = await asyncio.shield(self._opening)
            status = await sender.post(webhook.url, headers, body)
            if not 200 <= status < 300:
                error = f"HTTP {status}"
        except BunqueueError as problem:
            error = str(problem)
        except Exception as problem:  # whatever it is, it concerns this delivery alone
            error = f"{type(problem).__name__}: {problem}"
        self._ended(hook, delivery, error)

    async def _open(self) -> Any:
        """Make the sender. Its libraries take a moment to load, and a server without webhooks does without them."""
        module = await asyncio.to_thread(importlib.import_module, "bunqueue_core.events.sender")
        return module.Sender(
            allow_private=self._settings.allow_private_networks,
            connections=self._bounds.attempts,
            lookup=self._lookup,
        )

    def _ended(self, hook: _Hook, delivery: _Delivery, error: str | None) -> None:
        """An attempt has ended: done, once more later, or given up."""
        again = error is not None and delivery.attempts < self._settings.max_attempts
        with self._lock:
            hook.active -= 1
            self._active -= 1
            if hook.waiting and not hook.listed:
                hook.listed = True
                self._line.append(hook)
            if not again:
                self._release(hook, delivery)
            dropped, hook.told = hook.dropped - hook.told, hook.dropped
        webhook = hook.webhook
        if again:
            self._retries.add(delivery)
            pause_s = self._settings.retry_delay_ms * delivery.attempts / 1000
            delivery.timer = self._later(pause_s, self._again, hook, delivery)
        elif error is None:
            self._delivered += 1
            self._tally(WebhookTally(webhook.id, successes=1, last_triggered=self._now()))
            self._tell("webhook:fired", webhook, delivery)
        else:
            self._failed += 1
            self._tally(WebhookTally(webhook.id, failures=1))
            self._tell("webhook:failed", webhook, delivery, error=error)
            self._complain(hook, "Webhook delivery failed", event=delivery.occasion.name, error=error)
        if dropped:
            self._complain(hook, "Webhook deliveries dropped: too many wait", deliveries=dropped)
        self._pump()

    def _later(self, seconds: float, function: Callable[..., object], *arguments: Any) -> Timer:
        later = self._given_later or asyncio.get_running_loop().call_later
        return later(seconds, function, *arguments)

    def _again(self, hook: _Hook, delivery: _Delivery) -> None:
        """The pause before another attempt is over."""
        self._retries.discard(delivery)
        with self._lock:
            hook.waiting.appendleft(delivery)
            if not hook.listed:
                hook.listed = True
                self._line.append(hook)
        self._pump()

    def _tell(self, name: str, webhook: Webhook, delivery: _Delivery, **more: Any) -> None:
        if self._announce is not None:
            fields = {"webhookId": webhook.id, "url": webhook.url, "event": delivery.occasion.name, **more}
            self._announce(name, fields)

    def _complain(self, hook: _Hook, message: str, **fields: Any) -> None:
        """Log a webhook's trouble, but not all of it: a webhook may fail with every job."""
        now = asyncio.get_running_loop().time()
        if now < hook.quiet_until:
            hook.unsaid += 1
            return
        unsaid, hook.unsaid = hook.unsaid, 0
        hook.quiet_until = now + LOG_INTERVAL_S
        self._log("warn", message, webhookId=hook.webhook.id, **fields, **({"unsaid": unsaid} if unsaid else {}))

    # -- counters of the webhooks -------------------------------------------------------------------------------------

    def _tally(self, outcome: WebhookTally) -> None:
        """Bring an outcome to the broker: now, or together with others once the broker has taken the ones before."""
        self._merge(outcome)
        if self._reporting is None:
            self._report()

    def _report(self) -> None:
        tallies = self._taken()
        answer = self._broker.tally_webhooks(tallies)
        if answer.ready:
            self._reported(tallies, answer.error)
        else:
            self._reporting = asyncio.get_running_loop().create_task(self._report_all(answer, tallies))

    async def _report_all(self, answer: Answer[None], tallies: Sequence[WebhookTally]) -> None:
        try:
            while True:
                error: Exception | None = None
                try:
                    await answer
                except Exception as problem:
                    error = problem
                self._reported(tallies, error)
                if error is not None or not self._tallies:
                    return
                tallies = self._taken()
                answer = self._broker.tally_webhooks(tallies)
        finally:
            self._reporting = None

    def _reported(self, tallies: Sequence[WebhookTally], error: BaseException | None) -> None:
        """The broker has taken outcomes, or not: then they go with the next."""
        if error is None:
            self._untaken = False
            return
        for tally in tallies:
            self._merge(tally)
        if not self._untaken:
            self._untaken = True
            self._log("warn", "Counters of webhooks could not be stored", error=type(error).__name__)

    def _merge(self, tally: WebhookTally) -> None:
        known = self._tallies.get(tally.id)
        if known is not None:
            times = [at for at in (known.last_triggered, tally.last_triggered) if at is not None]
            tally = WebhookTally(
                tally.id,
                known.successes + tally.successes,
                known.failures + tally.failures,
                max(times) if times else None,
            )
        self._tallies[tally.id] = tally

    def _taken(self) -> list[WebhookTally]:
        tallies, self._tallies = list(self._tallies.values()), {}
        return tallies


def _routes(hooks: Iterable[_Hook]) -> Mapping[str, _Route]:
    """The enabled webhooks by type of event, then by queue."""
    everywhere: dict[str, list[_Hook]] = {}
    by_queue: dict[str, dict[str, list[_Hook]]] = {}
    for hook in hooks:
        webhook = hook.webhook
        if not webhook.enabled:
            continue
        for type_ in {_EVENT_TYPES[name] for name in webhook.events if name in _EVENT_TYPES}:
            if webhook.queue is None:
                everywhere.setdefault(type_, []).append(hook)
            else:
                by_queue.setdefault(type_, {}).setdefault(webhook.queue, []).append(hook)
    return {
        type_: _Route(
            tuple(everywhere.get(type_, ())),
            {queue: tuple(chosen) for queue, chosen in by_queue.get(type_, {}).items()},
        )
        for type_ in everywhere.keys() | by_queue.keys()
    }


def _news(before: Mapping[str, Webhook], webhooks: Sequence[Webhook]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """What became of the webhooks that there were ``before``."""
    now = {webhook.id for webhook in webhooks}
    for webhook in webhooks:
        known = before.get(webhook.id)
        if known is None:
            yield "webhook:added", {"id": webhook.id, "url": webhook.url, "events": list(webhook.events)}
        elif known.enabled != webhook.enabled:
            yield f"webhook:{'enabled' if webhook.enabled else 'disabled'}", {"webhookId": webhook.id}
    for id in before:
        if id not in now:
            yield "webhook:removed", {"id": id}


__all__ = ["LOG_INTERVAL_S", "Announce", "WebhookBounds", "WebhookDispatcher", "WebhookStatistics"]
