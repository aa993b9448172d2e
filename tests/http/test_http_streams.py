"""Event streams: what is told to whom, resuming, bounds, the end."""

from __future__ import annotations

import asyncio
from typing import Any

from fixtures.http_site import Events, Open, Site, within
from fixtures.inprocess_server import until
from fixtures.scripted_broker import ScriptedBroker, Sink, services_of

from bunqueue_core.model.errors import StorageUnavailable
from bunqueue_core.model.payload import Packed, Packer
from bunqueue_core.model.requests import Counts, Event, QueueSummary
from bunqueue_core.server.http.streams import EventStream, StreamLimits, Streams, Told


async def names_until(events: Events, last: str) -> list[tuple[str, Any]]:
    """Everything told but counts, up to the event ``last``."""
    told = []
    while (message := await events.next()) is not None:
        if message.get("event", "queue:counts") != "queue:counts":
            told.append((message["event"], message["data"]))
        if message.get("event") == last:
            return told
    raise AssertionError(f"the stream ended without {last}")


class TestTelling:
    async def test_a_job_is_told_in_its_queue_and_to_those_who_want_all(self, site: Site) -> None:
        async with within(), site.events("/events/queues/q") as one, site.events() as every:
            other = await site.post("/queues/r/jobs", {"data": 1})
            added = await site.post("/queues/q/jobs", {"data": 1})
            assert (await one.until("job:pushed"))["data"]["jobId"] == added["id"]
            assert (await every.until("job:pushed"))["data"]["jobId"] == other["id"]

    async def test_ids_count_everything_that_is_told(self, site: Site) -> None:
        async with within(), site.events() as events:
            await site.post("/queues/q/pause")
            ids = [int((await events.until(name))["id"]) for name in ("queue:created", "job:paused", "queue:paused")]
            assert ids == [1, 2, 3]

    async def test_other_paths_filter_nothing(self, site: Site) -> None:
        for path in ("/events", "/events/", "/events/anything", "/events/queues/"):
            async with within(), site.events(path) as events:
                await site.post("/queues/q/jobs", {"data": 1})
                assert (await events.until("job:pushed"))["data"]["queue"] == "q"

    async def test_a_batch(self, site: Site) -> None:
        async with within(), site.events() as events:
            await site.post("/queues/q/jobs/bulk", {"jobs": [{"data": 1}, {"data": 2}, {"data": 3, "customId": "c"}]})
            batch = {"queue": "q", "total": 3, "inserted": 3, "duplicates": 0}
            assert (await events.until("batch:pushed"))["data"] == batch
            await site.post("/queues/q/jobs/bulk", {"jobs": [{"data": 3, "customId": "c"}, {"data": 4}]})
            batch = {"queue": "q", "total": 2, "inserted": 1, "duplicates": 1}
            assert (await events.until("batch:pushed"))["data"] == batch
            await site.post("/queues/q/jobs/pull-batch", {"count": 10})
            assert (await events.until("batch:pulled"))["data"] == {"queue": "q", "count": 4}

    async def test_what_happens_to_dead_letters(self, site: Site) -> None:
        async with within(), site.events() as events:
            added = await site.post("/queues/q/jobs", {"data": 1, "maxAttempts": 1})
            await site.get("/queues/q/jobs")
            await site.post(f"/jobs/{added['id']}/fail", {"error": "no"})
            letter = {"queue": "q", "jobId": added["id"], "reason": "max_attempts_exceeded"}
            assert (await events.until("dlq:added"))["data"] == letter
            await site.post("/queues/q/dlq/retry", {"jobId": added["id"]})
            assert (await events.until("dlq:retried"))["data"] == {"queue": "q", "count": 1, "jobId": added["id"]}
            await site.post(f"/jobs/{added['id']}/discard")
            assert (await events.until("job:discarded"))["data"] == {"jobId": added["id"]}
            await site.post("/queues/q/dlq/purge")
            assert (await events.until("dlq:purged"))["data"] == {"queue": "q", "count": 1}

    async def test_who_connects_and_works(self, site: Site) -> None:
        async with within(), site.events() as events:
            wire = await site.wire()
            client = (await events.until("client:connected"))["data"]["clientId"]
            await wire.cmd(cmd="RegisterWorker", name="n", queues=["q"], workerId="w", hostname="h", pid=1)
            worker = {"workerId": "w", "name": "n", "queues": ["q"], "hostname": "h", "pid": 1}
            assert (await events.until("worker:connected"))["data"] == worker
            await wire.cmd(cmd="Auth", token="wrong")
            assert (await events.until("auth:failed"))["data"] == {"clientId": client}
            await wire.close()
            gone = {"workerId": "w", "name": "n", "clientId": client}
            assert (await events.until("worker:disconnected"))["data"] == gone
            assert (await events.until("client:disconnected"))["data"] == {"clientId": client, "transport": "tcp"}

    async def test_webhooks(self, site: Site) -> None:
        async with within(), site.events() as events:
            hook = {"url": "https://hooks.example.com/x", "events": ["job.failed"]}
            id = (await site.post("/webhooks", hook))["data"]["webhookId"]
            assert (await events.until("webhook:added"))["data"] == {"id": id, **hook}
            await site.ask("PUT", f"/webhooks/{id}/enabled", {"enabled": False})
            assert (await events.until("webhook:disabled"))["data"] == {"webhookId": id}
            await site.ask("DELETE", f"/webhooks/{id}")
            assert (await events.until("webhook:removed"))["data"] == {"id": id}

    async def test_counts_follow_and_ignore_a_pause(self, site: Site) -> None:
        async with within(), site.events() as events:
            await site.post("/queues/q/pause")
            await site.post("/queues/q/jobs", {"data": 1})
            while (counts := (await events.until("queue:counts"))["data"])["waiting"] == 0:
                pass
            assert counts == {
                "queue": "q",
                "waiting": 1,
                "prioritized": 0,
                "active": 0,
                "completed": 0,
                "failed": 0,
                "delayed": 0,
            }


class TestResuming:
    async def test_what_was_missed_comes_again(self, site: Site) -> None:
        async with within():
            async with site.events() as events:
                await site.post("/queues/q/jobs", {"data": 1})
                seen = await events.until("job:pushed")
            await site.get("/queues/q/jobs")  # while nobody watches
            await site.post("/queues/other/jobs", {"data": 1})
            async with site.events("/events/queues/q", last_event_id=seen["id"]) as events:
                again = await events.until("job:active")
                assert int(again["id"]) > int(seen["id"])
                added = await site.post("/queues/q/jobs", {"data": 2})
                assert (await events.until("job:pushed"))["data"]["jobId"] == added["id"]

    async def test_a_header_that_names_no_event_resumes_nothing(self, site: Site) -> None:
        async with within(), site.events() as keeper:
            await site.post("/queues/q/jobs", {"data": 1})
            await keeper.until("job:pushed")
            for header in ("0", "abc", "-1", "999999999999999999999"):
                async with site.events(last_event_id=header) as events:
                    added = await site.post("/queues/q/jobs", {"data": 2})
                    assert (await events.until("job:pushed"))["data"]["jobId"] == added["id"]


class TestEnding:
    async def test_a_full_server_refuses(self, open_site: Open) -> None:
        site = await open_site(StreamLimits(clients=1))
        async with within(), site.events() as first, site.events() as second:
            assert first.answer.status_code == 200
            assert second.answer.status_code == 503
            assert await second.answer.aread() == b"Too many SSE connections"
            assert (await site.get("/health"))["connections"]["sse"] == 1

    async def test_a_client_that_leaves_makes_room(self, open_site: Open) -> None:
        site = await open_site(StreamLimits(clients=1))

        async def left() -> bool:
            return (await site.get("/health"))["connections"]["sse"] == 0

        async with within():
            async with site.events():
                pass
            await until(left)

    async def test_a_server_that_stops_says_so_and_ends_the_stream(self, site: Site) -> None:
        async with within(), site.events() as events:
            stopping = asyncio.create_task(site.server.stop())
            assert (await events.until("server:shutdown"))["data"] == {"signal": ""}
            assert await events.next() is None
            assert await stopping

    async def test_a_client_that_does_not_read_is_cut_off(self, open_site: Open) -> None:
        site = await open_site(StreamLimits(backlog_bytes=1_000_000))
        assert isinstance(site.listening.http, tuple)
        reader, writer = await asyncio.open_connection(*site.listening.http, limit=1024)
        writer.write(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"connected")
        error = "x" * 500_000

        async def cut_off() -> bool:
            added = await site.post("/queues/q/jobs", {"data": 1})
            await site.get("/queues/q/jobs")
            await site.post(f"/jobs/{added['id']}/fail", {"error": error})
            return "Event stream cut off" in site.log.text

        async with within(60):
            await until(cut_off)
            while True:
                try:
                    if not await reader.read(1_000_000):
                        break
                except ConnectionError:
                    break
        writer.close()
        assert (await site.get("/health"))["connections"]["sse"] == 0
        metrics = (await site.client.get("/prometheus")).text
        assert 'bunqueue_cut_off_connections_total{reason="unread events"} 1.0' in metrics


class TestPeriodically:
    async def test_statistics_health_storage_and_heartbeat(self, open_site: Open) -> None:
        site = await open_site(StreamLimits(tick_s=0.02))
        await site.post("/queues/q/jobs", {"data": 1})
        await site.post("/queues/q/pause")
        async with within(), site.events() as events:
            snapshot = (await events.until("stats:snapshot"))["data"]
            assert snapshot["waiting"] == 1
            assert snapshot["queues"] == {"q": {"waiting": 1, "active": 0, "delayed": 0, "dlq": 0, "paused": True}}
            health = (await events.until("health:status"))["data"]
            assert (health["ok"], health["connections"]) == (True, {"sse": 1})
            storage = (await events.until("storage:status"))["data"]
            assert (storage["diskFull"], len(storage["collections"])) == (False, 15)
            while (await events.next() or {}).get("comment") != "heartbeat":
                pass

    async def test_figures_that_cannot_be_told_leave_the_heartbeat(self) -> None:
        broker, sink = ScriptedBroker(), Sink()
        broker.on("queues", StorageUnavailable("away"), RuntimeError("broken"), *[StorageUnavailable("away")] * 100)
        streams = Streams(services_of(broker, sink=sink), StreamLimits(tick_s=0))
        stream = EventStream(streams.limits, None)
        streams.join(stream)
        text = b""
        async with within():
            while b":heartbeat" not in text:
                text += await stream.next()
        streams.leave(stream)
        streams.close()
        assert b"event: stats:snapshot" not in text
        assert "RuntimeError: broken" in sink.text
        assert "away" not in sink.text


class TestWatching:
    """Without sockets."""

    def watched(self, limits: StreamLimits | None = None) -> tuple[Streams, ScriptedBroker, EventStream]:
        broker = ScriptedBroker()
        streams = Streams(services_of(broker, sink=Sink()), limits)
        return streams, broker, EventStream(streams.limits, None)

    @staticmethod
    def emit(broker: ScriptedBroker, event: Event) -> None:
        for listener in list(broker.listeners[None]):
            listener(event)

    async def test_nobody_watches_while_nobody_is_there(self) -> None:
        streams, broker, stream = self.watched(StreamLimits(resume_s=0))
        assert streams.services.announce is None
        streams.join(stream)
        assert streams.services.announce is not None
        assert streams.services.workers.tell is not None
        assert broker.listeners[None]
        streams.leave(stream)
        async with within():
            while broker.listeners[None]:  # noqa: ASYNC110  the loop's own timer ends it
                await asyncio.sleep(0)
        assert streams.services.announce is None
        assert streams.services.workers.tell is None

    async def test_a_client_that_comes_back_in_time_finds_what_was_kept(self) -> None:
        streams, broker, stream = self.watched()
        streams.join(stream)
        streams.leave(stream)
        self.emit(broker, Event("pushed", "q", "j", 1))
        streams.join(stream)
        streams.leave(stream)
        streams.close()
        assert broker.listeners[None] == []

    async def test_what_is_kept_is_bounded_by_number_and_size(self) -> None:
        for limits in (StreamLimits(replayed_events=2), StreamLimits(replayed_bytes=200)):
            streams, broker, stream = self.watched(limits)
            streams.join(stream)
            for number in range(1, 6):
                self.emit(broker, Event("pushed", "q", f"j{number}", 1))
            assert [frame.split(b"\n")[0] for frame in streams.missed(1, "q")] == [b"id: 4", b"id: 5"]
            assert streams.missed(4, "r") == []
            streams.leave(stream)
            streams.close()

    async def test_events_from_other_threads(self) -> None:
        streams, broker, stream = self.watched()
        broker.on("summaries", [QueueSummary("q", Counts(), False)])
        streams.join(stream)
        await asyncio.to_thread(self.emit, broker, Event("pushed", "q", "j", 1))
        await asyncio.to_thread(streams.announce, "queue:paused", {"queue": "q"})
        async with within():
            text = b""
            while b"queue:paused" not in text:
                text += await stream.next()
        assert text.index(b"job:pushed") < text.index(b"queue:paused")
        streams.leave(stream)
        streams.close()

    async def test_a_stalled_job_is_told_twice_and_a_duplicate_explained(self) -> None:
        streams, broker, stream = self.watched()
        streams.join(stream)
        self.emit(broker, Event("stalled", "q", "j", 1, {"data": {"stallCount": 2, "action": "retry"}}))
        self.emit(broker, Event("stalled", "q", "j", 2))
        self.emit(broker, Event("duplicated", "q", "j", 3))
        text = await stream.next()
        assert text == (
            b'id: 1\nevent: job:stalled\ndata: {"jobId":"j","queue":"q","stallCount":2,"action":"retry"}\n\n'
            b'id: 2\nevent: job:stalled\ndata: {"queue":"q","jobId":"j","timestamp":1}\n\n'
            b'id: 3\nevent: job:stalled\ndata: {"queue":"q","jobId":"j","timestamp":2}\n\n'
            b'id: 4\nevent: job:duplicated\ndata: {"queue":"q","jobId":"j","timestamp":3}\n\n'
            b'id: 5\nevent: job:deduplicated\ndata: {"queue":"q","jobId":"j","strategy":"default"}\n\n'
        )
        streams.leave(stream)
        streams.close()

    def test_renderings(self) -> None:
        extra = {"error": "no", "data": Packed(Packer().pack({"n": 2**40})), "terminal": True}
        event = Event("failed", "q", "j", 5, extra)
        told = Told(7, "job:failed", 5, {"queue": "q", "jobId": "j", "error": "no"}, event)
        assert told.named == '{"event":"job:failed","ts":5,"data":{"queue":"q","jobId":"j","error":"no"}}'
        assert told.raw == (
            '{"eventType":"failed","queue":"q","jobId":"j","timestamp":5,"error":"no","data":{"n":1099511627776},'
            '"terminal":true}'
        )
        assert told.frame.startswith(b"id: 7\nevent: job:failed\ndata: {")

    async def test_what_waits_is_written_in_parts(self) -> None:
        stream = EventStream(StreamLimits(write_bytes=5), None)
        for frame in (b"aaa", b"bbb", b"ccc"):
            stream.put(frame)
        stream.end()
        assert [await stream.next() for _ in range(3)] == [b"aaabbb", b"ccc", b""]

    async def test_a_stream_that_is_dropped_writes_nothing_more(self) -> None:
        aborted: list[bool] = []
        stream = EventStream(StreamLimits(backlog_bytes=5), None, lambda: aborted.append(True))
        stream.put(b"aaa")
        assert not aborted
        stream.put(b"bbb")
        stream.put(b"ccc")
        assert (aborted, stream.cut_off, await stream.next()) == ([True], True, b"")
