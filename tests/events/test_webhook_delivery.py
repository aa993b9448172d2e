"""Webhooks are called for what happens in a broker: what is sent, when it is sent again, and that nobody waits for anybody."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest
from event_standins import PATIENCE_S, Hang, HookServer, Records, answering, broker_of, local_broker

from bunqueue_core.answer import Answer
from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.config.settings import WebhookSettings
from bunqueue_core.events.webhooks import WebhookBounds, WebhookDispatcher, WebhookStatistics
from bunqueue_core.model.errors import StorageUnavailable
from bunqueue_core.model.job import DEFAULT_OPTIONS, JobSpec
from bunqueue_core.model.payload import Packer
from bunqueue_core.model.requests import Ack, Event, Failure, PullRequest
from bunqueue_core.model.webhook import WEBHOOK_EVENTS, Webhook, WebhookTally

ALL = tuple(WEBHOOK_EVENTS.values())
pack = Packer().pack


class Bench:
    """A broker with webhooks, the server they point to, and timers that fire at once and remember for how long they were set."""

    def __init__(self, server: HookServer, broker: LocalBroker | None = None) -> None:
        self.server = server
        self.broker = broker or local_broker()
        self.log = Records()
        self.announced: list[tuple[str, Mapping[str, Any]]] = []
        self.pauses: list[float] = []
        self.changed = asyncio.Condition()
        self.now_ms = 1_800_000_000_000
        self.dispatchers: list[WebhookDispatcher] = []
        self.count = 0

    async def start(self, bounds: WebhookBounds | None = None, **settings: Any) -> WebhookDispatcher:
        dispatcher = WebhookDispatcher(
            self.broker,
            WebhookSettings(**{"allow_private_networks": True, **settings}),
            log=self.log,
            now=lambda: self.now_ms,
            announce=self._announce,
            bounds=bounds,
            later=self._later,
        )
        await dispatcher.start()
        self.dispatchers.append(dispatcher)
        return dispatcher

    async def add(self, path: str = "/in", events: Sequence[str] = ALL, **fields: Any) -> str:
        self.count += 1
        values: dict[str, Any] = {"queue": None, "secret": None, "created_at": 1, "url": self.server.url(path)}
        webhook = Webhook(id=f"w{self.count}", events=tuple(events), **values | fields)
        await self.broker.add_webhook(webhook)
        return webhook.id

    async def push(self, count: int = 1, queue: str = "q", data: Any = None) -> list[str]:
        pushed = await self.broker.push(queue, [JobSpec("n", pack(data), DEFAULT_OPTIONS) for _ in range(count)])
        return pushed.ids

    async def webhook(self, id: str) -> Webhook:
        return next(webhook for webhook in await self.broker.webhooks() if webhook.id == id)

    async def told(self, name: str, count: int = 1) -> list[Mapping[str, Any]]:
        """The first ``count`` announcements of that name, once they are there."""

        def found() -> list[Mapping[str, Any]]:
            return [fields for announced, fields in self.announced if announced == name]

        async with self.changed, asyncio.timeout(PATIENCE_S):
            await self.changed.wait_for(lambda: len(found()) >= count)
        return found()[:count]

    def _announce(self, name: str, fields: Mapping[str, Any]) -> None:
        self.announced.append((name, fields))

        async def notify() -> None:
            async with self.changed:
                self.changed.notify_all()

        asyncio.get_running_loop().create_task(notify()).add_done_callback(lambda _: None)

    def _later(self, seconds: float, function: Callable[..., object], *arguments: Any) -> asyncio.TimerHandle:
        self.pauses.append(seconds)
        return asyncio.get_running_loop().call_later(0, function, *arguments)


@pytest.fixture
async def bench(server: HookServer) -> AsyncIterator[Bench]:
    bench = Bench(server)
    await bench.broker.start()
    yield bench
    for dispatcher in bench.dispatchers:
        await dispatcher.stop(PATIENCE_S)
    await bench.broker.close()


# -- what is sent -----------------------------------------------------------------------------------------------------


async def test_a_job_s_life_is_told(bench: Bench, server: HookServer) -> None:
    await bench.start()
    await bench.add()
    [id] = await bench.push(data={"x": 1})
    await bench.broker.pull(PullRequest("q"))
    await bench.broker.progress(id, 40, "almost", False)
    await bench.broker.ack([Ack(id, result=pack({"r": 1}))])
    requests = await server.wait_for(4)
    documents = {request.document["event"]: request.document for request in requests}
    at = documents["job.pushed"]["timestamp"]
    shared = {"timestamp": at, "jobId": id, "queue": "q"}
    assert {name: {**document, "timestamp": at} for name, document in documents.items()} == {
        "job.pushed": {"event": "job.pushed", **shared},
        "job.started": {"event": "job.started", **shared},
        "job.progress": {"event": "job.progress", **shared, "progress": 40},
        "job.completed": {"event": "job.completed", **shared, "data": {"r": 1}},
    }
    for request in requests:
        assert request.method == "POST"
        assert request.headers["Content-Type"] == "application/json"
        assert request.headers["X-Webhook-Event"] == request.document["event"]
        assert request.headers["X-Webhook-Timestamp"] == str(request.document["timestamp"])
        assert "X-Webhook-Signature" not in request.headers
        assert request.body == json.dumps(request.document, separators=(",", ":")).encode()


async def test_every_failed_attempt_is_told_with_the_job_s_data(bench: Bench, server: HookServer) -> None:
    await bench.start()
    await bench.add(events=["job.failed"])
    [id] = await bench.push(data=[1])
    await bench.broker.pull(PullRequest("q"))
    await bench.broker.fail([Failure(id, "no", unrecoverable=True)])
    [request] = await server.wait_for(1)
    assert list(request.document) == ["event", "timestamp", "jobId", "queue", "data", "error"]
    assert (request.document["data"], request.document["error"]) == ([1], "no")


async def test_a_secret_signs_the_exact_body(bench: Bench, server: HookServer) -> None:
    await bench.start()
    await bench.add(secret="s3cr3t é")
    await bench.add("/unsigned", secret="")
    await bench.push(data="ü")
    [request] = await server.wait_for(1, "/in")
    expected = hmac.new("s3cr3t é".encode(), request.body, hashlib.sha256).hexdigest()
    assert request.headers["X-Webhook-Signature"] == expected
    [unsigned] = await server.wait_for(1, "/unsigned")
    assert "X-Webhook-Signature" not in unsigned.headers


async def test_only_what_a_webhook_names_is_told(bench: Bench, server: HookServer) -> None:
    dispatcher = await bench.start()
    await bench.add("/pushed", ["job.pushed"])
    await bench.add("/started", ["job.started", "job.started"])
    await bench.add("/nothing", [])
    await bench.add("/mail", ["job.pushed"], queue="mail")
    await bench.add("/empty", ["job.pushed"], queue="")
    off = await bench.add("/off", ["job.pushed"])
    await bench.broker.set_webhook_enabled(off, False)
    await bench.push()
    await bench.push(queue="mail")
    await bench.broker.pull(PullRequest("q"))
    await dispatcher.stop(PATIENCE_S)
    counts = {
        path: len(server.received(path)) for path in ("/pushed", "/started", "/nothing", "/mail", "/empty", "/off")
    }
    assert counts == {"/pushed": 2, "/started": 1, "/nothing": 0, "/mail": 1, "/empty": 0, "/off": 0}
    assert server.received("/mail")[0].document["queue"] == "mail"


async def test_two_webhooks_of_one_url_are_called_both(bench: Bench, server: HookServer) -> None:
    await bench.start()
    for _ in range(2):
        await bench.add(events=["job.pushed"])
    await bench.push()
    await server.wait_for(2)


async def test_webhooks_that_were_there_before_the_start_are_called(bench: Bench, server: HookServer) -> None:
    await bench.add()
    await bench.start()
    await bench.push()
    await server.wait_for(1)
    assert all(name != "webhook:added" for name, _ in bench.announced)


async def test_events_come_from_any_thread(bench: Bench, server: HookServer) -> None:
    await bench.start()
    await bench.add(events=["job.pushed"])

    def push() -> None:
        for _ in range(20):
            bench.broker.push("q", [JobSpec("n", None, DEFAULT_OPTIONS)]).result(PATIENCE_S)

    threads = [threading.Thread(target=push) for _ in range(3)]
    for thread in threads:
        thread.start()
    await server.wait_for(60)
    for thread in threads:
        thread.join()


# -- outcomes ---------------------------------------------------------------------------------------------------------


async def test_a_success_is_counted_and_announced(bench: Bench, server: HookServer) -> None:
    dispatcher = await bench.start()
    id = await bench.add(events=["job.pushed"])
    await bench.push()
    assert await bench.told("webhook:fired") == [{"webhookId": id, "url": server.url("/in"), "event": "job.pushed"}]
    webhook = await bench.webhook(id)
    assert (webhook.success_count, webhook.failure_count, webhook.last_triggered) == (1, 0, bench.now_ms)
    statistics = dispatcher.statistics()
    assert statistics == WebhookStatistics(registered=1, enabled=1, delivered=1, attempts=1)


async def test_a_failed_attempt_is_made_again_the_same_after_growing_pauses(bench: Bench, server: HookServer) -> None:
    await bench.start(retry_delay_ms=250)
    id = await bench.add(events=["job.pushed"], secret="s")
    server.on("/in", answering(500, 404, 200))
    await bench.push()
    await bench.told("webhook:fired")
    first, second, third = server.requests
    assert first.body == second.body == third.body
    for header in ("X-Webhook-Timestamp", "X-Webhook-Signature"):
        assert first.headers[header] == second.headers[header] == third.headers[header]
    assert bench.pauses == [0.25, 0.5]
    webhook = await bench.webhook(id)
    assert (webhook.success_count, webhook.failure_count) == (1, 0)


async def test_after_the_last_attempt_it_is_given_up_and_said_once(bench: Bench, server: HookServer) -> None:
    dispatcher = await bench.start(max_attempts=2)
    id = await bench.add(events=["job.pushed"])
    server.on("/in", answering(503))
    await bench.push()
    assert await bench.told("webhook:failed") == [
        {"webhookId": id, "url": server.url("/in"), "event": "job.pushed", "error": "HTTP 503"}
    ]
    assert (len(server.requests), bench.pauses) == (2, [1.0])
    webhook = await bench.webhook(id)
    assert (webhook.success_count, webhook.failure_count, webhook.last_triggered) == (0, 1, None)
    assert bench.log.records == [
        ("warn", "Webhook delivery failed", {"webhookId": id, "event": "job.pushed", "error": "HTTP 503"})
    ]
    await bench.push(5)
    await bench.told("webhook:failed", 6)
    assert len(bench.log.records) == 1  # not for every job
    assert dispatcher.statistics().failed == 6


async def test_one_attempt_may_be_all(bench: Bench, server: HookServer) -> None:
    await bench.start(max_attempts=1)
    await bench.add(events=["job.pushed"])
    server.on("/in", answering(500))
    await bench.push()
    await bench.told("webhook:failed")
    assert (len(server.requests), bench.pauses) == (1, [])


async def test_a_url_that_may_not_be_called_fails_without_a_request(bench: Bench, server: HookServer) -> None:
    await bench.start(allow_private_networks=False, max_attempts=1)
    await bench.add(events=["job.pushed"])
    await bench.push()
    [failed] = await bench.told("webhook:failed")
    assert failed["error"] == "Webhook URL cannot point to localhost"
    assert server.requests == []


async def test_counters_outlive_the_dispatcher(bench: Bench, server: HookServer) -> None:
    for _ in range(2):
        dispatcher = await bench.start()
        if not bench.count:
            await bench.add(events=["job.pushed"])
        await bench.push(3)
        await dispatcher.stop(PATIENCE_S)
    assert (await bench.webhook("w1")).success_count == 6


class SlowCounters(LocalBroker):
    """A broker that stores counters late, or not at all."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asked: list[list[WebhookTally]] = []
        self.answers: asyncio.Queue[Answer[None]] = asyncio.Queue()

    def tally_webhooks(self, tallies: Sequence[WebhookTally]) -> Answer[None]:
        self.asked.append(list(tallies))
        answer: Answer[None] = Answer()
        self.answers.put_nowait(answer)
        return answer


async def test_outcomes_gather_while_the_broker_stores_earlier_ones(server: HookServer) -> None:
    broker = broker_of(SlowCounters)
    bench = Bench(server, broker)
    await broker.start()
    dispatcher = await bench.start()
    await bench.add(events=["job.pushed"])
    await bench.push(3)
    await bench.told("webhook:fired", 3)
    assert broker.asked == [[WebhookTally("w1", 1, 0, bench.now_ms)]]
    (await broker.answers.get()).fail(StorageUnavailable("away"))
    stopping = asyncio.create_task(dispatcher.stop(PATIENCE_S))
    async with asyncio.timeout(PATIENCE_S):
        (await broker.answers.get()).settle(None)
    await stopping
    assert broker.asked[1] == [WebhookTally("w1", 3, 0, bench.now_ms)]
    assert bench.log.messages("warn") == ["Counters of webhooks could not be stored"]
    await broker.close()


# -- nobody waits for anybody -----------------------------------------------------------------------------------------


async def test_a_webhook_that_hangs_delays_no_other(bench: Bench, server: HookServer) -> None:
    dispatcher = await bench.start(WebhookBounds(attempts=6, attempts_each=8, attempts_shared=3))
    hang = Hang()
    server.on("/hangs", hang)
    await bench.add("/hangs", ["job.pushed"])
    await bench.add("/well", ["job.pushed"])
    await bench.push(50)
    await server.wait_for(50, "/well")
    assert dispatcher.statistics().active <= 3
    hang.go.set()
    await server.wait_for(50, "/hangs")


async def test_many_webhooks_that_hang_leave_places_for_others(bench: Bench, server: HookServer) -> None:
    await bench.start(WebhookBounds(attempts=10, attempts_each=4, attempts_shared=4))
    hang = Hang()
    server.on("/hangs", hang)
    for _ in range(5):
        await bench.add("/hangs", ["job.pushed"])
    await bench.push(20)
    await server.wait_for(5, "/hangs")  # each takes one place; for more than one they would need the shared ones
    await bench.add("/well", ["job.pushed"])
    await bench.push(20)
    await server.wait_for(20, "/well")
    hang.go.set()
    await server.wait_for(200, "/hangs")


async def test_attempts_of_one_webhook_are_bounded(bench: Bench, server: HookServer) -> None:
    dispatcher = await bench.start(WebhookBounds(attempts_each=3))
    hang = Hang()
    server.on("/in", hang)
    await bench.add(events=["job.pushed"])
    await bench.push(10)
    await server.wait_for(3)
    assert dispatcher.statistics().active == 3
    assert len(server.requests) == 3
    hang.go.set()
    await server.wait_for(10)


async def test_what_does_not_fit_is_dropped_counted_and_said(bench: Bench, server: HookServer) -> None:
    dispatcher = await bench.start(WebhookBounds(waiting=5, attempts_each=2))
    hang = Hang()
    server.on("/in", hang)
    await bench.add(events=["job.pushed"])
    ids = await bench.push(12)
    statistics = dispatcher.statistics()
    assert (statistics.waiting, statistics.dropped) == (5, 7)
    hang.go.set()
    requests = await server.wait_for(5)
    assert {request.document["jobId"] for request in requests} == set(ids[:5])  # the newest were dropped
    await bench.told("webhook:fired", 5)
    assert bench.log.records[0] == (
        "warn",
        "Webhook deliveries dropped: too many wait",
        {"webhookId": "w1", "deliveries": 7},
    )


async def test_payloads_that_wait_are_bounded_and_each_webhook_has_its_share(bench: Bench, server: HookServer) -> None:
    dispatcher = await bench.start(WebhookBounds(bytes=200_000, attempts_each=1))
    hang = Hang()
    server.on("/hangs", hang)
    await bench.add("/hangs", ["job.completed"])
    await bench.add("/well", ["job.completed"])
    for number in range(6):
        [id] = await bench.push()
        await bench.broker.pull(PullRequest("q"))
        await bench.broker.ack([Ack(id, result=pack("x" * 30_000))])
        await server.wait_for(number + 1, "/well")
        await bench.told("webhook:fired", number + 1)
    # 100,000 bytes hold three of them; the webhook that keeps up lost none.
    assert dispatcher.statistics().dropped == 3
    hang.go.set()
    await server.wait_for(3, "/hangs")


async def test_a_payload_beyond_the_bound_is_sent_if_nothing_else_waits(bench: Bench, server: HookServer) -> None:
    await bench.start(WebhookBounds(bytes=1_000))
    await bench.add(events=["job.completed"])
    [id] = await bench.push()
    await bench.broker.pull(PullRequest("q"))
    await bench.broker.ack([Ack(id, result=pack("x" * 30_000))])
    [request] = await server.wait_for(1)
    assert len(request.document["data"]) == 30_000


# -- changes while it works -------------------------------------------------------------------------------------------


async def test_changes_are_announced(bench: Bench, server: HookServer) -> None:
    await bench.start()
    id = await bench.add(events=["job.failed"])
    await bench.broker.set_webhook_enabled(id, False)
    await bench.broker.set_webhook_enabled(id, True)
    await bench.broker.remove_webhook(id)
    await bench.told("webhook:removed")
    assert bench.announced == [
        ("webhook:added", {"id": id, "url": server.url("/in"), "events": ["job.failed"]}),
        ("webhook:disabled", {"webhookId": id}),
        ("webhook:enabled", {"webhookId": id}),
        ("webhook:removed", {"id": id}),
    ]


@pytest.mark.parametrize("how", ["removed", "disabled"])
async def test_what_was_begun_is_finished_and_the_rest_dropped(bench: Bench, server: HookServer, how: str) -> None:
    dispatcher = await bench.start(WebhookBounds(attempts_each=2))
    hang = Hang(500)
    server.on("/in", hang)
    id = await bench.add(events=["job.pushed"])
    await bench.push(10)
    await server.wait_for(2)
    if how == "removed":
        await bench.broker.remove_webhook(id)
    else:
        await bench.broker.set_webhook_enabled(id, False)
    assert dispatcher.statistics().dropped == 8
    await bench.push()
    hang.go.set()
    await bench.told("webhook:failed", 2)
    assert len(server.requests) == 6  # two deliveries, three attempts each
    assert dispatcher.statistics().waiting == 0
    assert "Webhook deliveries dropped: too many wait" not in bench.log.messages("warn")


async def test_a_webhook_that_is_enabled_again_is_called_again(bench: Bench, server: HookServer) -> None:
    await bench.start()
    id = await bench.add(events=["job.pushed"])
    await bench.broker.set_webhook_enabled(id, False)
    await bench.push()
    await bench.broker.set_webhook_enabled(id, True)
    [second] = await bench.push()
    [request] = await server.wait_for(1)
    assert request.document["jobId"] == second


class CountingSubscriptions(LocalBroker):
    """A broker that tells how many listen."""

    listening = 0

    def subscribe(self, listener: Callable[[Event], None], queue: str | None = None) -> Callable[[], None]:
        unsubscribe = super().subscribe(listener, queue)
        self.listening += 1

        def end() -> None:
            self.listening -= 1
            unsubscribe()

        return end


async def test_it_listens_only_while_there_is_something_to_call(server: HookServer) -> None:
    broker = broker_of(CountingSubscriptions)
    bench = Bench(server, broker)
    await broker.start()
    dispatcher = await bench.start()
    seen = [broker.listening]
    await bench.add("/nothing", [])
    seen.append(broker.listening)
    id = await bench.add()
    seen.append(broker.listening)
    await bench.broker.set_webhook_enabled(id, False)
    seen.append(broker.listening)
    await bench.broker.set_webhook_enabled(id, True)
    seen.append(broker.listening)
    await dispatcher.stop(PATIENCE_S)
    seen.append(broker.listening)
    assert seen == [0, 0, 1, 0, 1, 0]
    await broker.close()


# -- the stop ---------------------------------------------------------------------------------------------------------


async def test_the_stop_finishes_what_waits_retries_included(bench: Bench, server: HookServer) -> None:
    dispatcher = await bench.start(WebhookBounds(attempts_each=1))
    server.on("/in", answering(500, 200))
    await bench.add(events=["job.pushed"])
    await bench.push(5)
    await dispatcher.stop(PATIENCE_S)
    assert len(server.requests) == 6
    assert (await bench.webhook("w1")).success_count == 5
    await dispatcher.stop(PATIENCE_S)


async def test_the_stop_drops_the_rest_after_its_deadline(bench: Bench, server: HookServer) -> None:
    dispatcher = await bench.start(WebhookBounds(attempts_each=1))
    hang = Hang()
    server.on("/in", hang)
    await bench.add(events=["job.pushed"])
    await bench.push(5)
    await server.wait_for(1)
    await dispatcher.stop(0.01)
    assert dispatcher.statistics().dropped == 5
    assert bench.log.records == [("warn", "Webhook deliveries dropped at stop", {"deliveries": 5})]
    hang.go.set()


async def test_nothing_is_taken_after_the_stop(bench: Bench, server: HookServer) -> None:
    dispatcher = await bench.start()
    await bench.add()
    await dispatcher.stop(PATIENCE_S)
    await bench.push()
    await bench.add("/other")
    assert dispatcher.statistics().waiting == 0
    assert server.requests == []
