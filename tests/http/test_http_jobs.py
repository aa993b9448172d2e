"""Jobs and queues over HTTP: what the recordings do not hold, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fixtures.http_site import Open, Site, within
from fixtures.inprocess_server import until
from fixtures.scripted_broker import ScriptedBroker, Sink, services_of

from bunqueue_core.model.errors import BackendBusy, CapabilityError, StorageUnavailable
from bunqueue_core.model.requests import Acknowledged, Counts, QueueSummary
from bunqueue_core.server.http.app import HttpApp, HttpOptions


class TestBodies:
    async def test_what_is_no_object_is_refused(self, site: Site) -> None:
        for method, path in (
            ("POST", "/queues/q/jobs"),
            ("POST", "/queues/q/jobs/bulk"),
            ("POST", "/jobs/j/ack"),
            ("PUT", "/jobs/j/data"),
        ):
            for body in (b"null", b"[1]", b'"x"', b"7", b"true", b"{", b"\xff\xfe", b'{"a":NaN}'):
                assert await site.ask(method, path, body) == (400, {"ok": False, "error": "Invalid JSON body"})

    async def test_what_is_not_read_may_be_anything(self, site: Site) -> None:
        assert await site.ask("POST", "/queues/q/pause", b"{broken") == (200, {"ok": True})

    async def test_what_is_missing_is_named(self, site: Site) -> None:
        for path, body, error in (
            ("/queues/q/jobs/bulk", {"jobs": {}}, "jobs must be an array"),
            ("/jobs/heartbeat-batch", {}, "ids is required"),
            ("/jobs/extend-locks", {"ids": []}, "tokens is required"),
            ("/workers", {"name": "n", "queues": "q"}, "queues must be an array"),
        ):
            assert await site.ask("POST", path, body) == (400, {"ok": False, "error": error})
        for path, body, error in (
            ("/jobs/j/priority", {"priority": "1"}, "priority must be a number"),
            ("/jobs/j/delay", {}, "delay must be a number"),
        ):
            assert await site.ask("PUT", path, body) == (400, {"ok": False, "error": error})

    async def test_a_body_that_announces_too_much_is_refused_unread(self, site: Site) -> None:
        assert isinstance(site.listening.http, tuple)
        reader, writer = await asyncio.open_connection(*site.listening.http)
        writer.write(b"POST /queues/q/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 136314880\r\n\r\n")
        async with within():
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 413 ")
            assert b"connection: close" in head.lower()
            assert await reader.read() == b""
        writer.close()

    async def test_a_large_body_in_parts(self, site: Site) -> None:
        text = "x" * 3_000_000

        async def parts() -> AsyncIterator[bytes]:
            yield b'{"data":"'
            for start in range(0, len(text), 100_000):
                yield text[start : start + 100_000].encode()
            yield b'"}'

        answer = await site.client.post("/queues/q/jobs", content=parts())
        job = (await site.get(f"/jobs/{answer.json()['id']}"))["job"]
        assert job["data"] == text


class TestJobs:
    async def test_members_that_are_not_listed_are_not_passed_on(self, site: Site) -> None:
        added = await site.post("/queues/q/jobs", {"data": 1, "timestamp": 5, "stackTraceLimit": 1, "customId": "mine"})
        job = (await site.get(f"/jobs/{added['id']}"))["job"]
        assert (job["stackTraceLimit"], job["customId"]) == (10, None)
        assert job["createdAt"] > 5

    async def test_a_bulk_passes_everything_on(self, site: Site) -> None:
        jobs = [{"name": 7, "data": 1, "stackTraceLimit": 1, "customId": "mine"}]
        assert await site.post("/queues/q/jobs/bulk", {"jobs": jobs}) == {"ok": True, "ids": ["mine"]}
        job = (await site.get("/jobs/mine"))["job"]
        assert (job["name"], job["stackTraceLimit"]) == ("default", 1)

    async def test_ids_are_decoded(self, site: Site) -> None:
        await site.post("/queues/q/jobs", {"data": 1, "jobId": "a:b/c"})
        for path in ("/jobs/a%3Ab%2Fc", "/jobs/custom/a:b%2Fc"):
            assert (await site.get(path))["job"]["id"] == "a:b/c"

    async def test_a_path_that_cannot_be_decoded(self, site: Site) -> None:
        for path in ("/jobs/%zz", "/queues/%ff/count"):
            assert await site.ask("GET", path) == (400, {"ok": False, "error": "URI error"})

    async def test_numbers_keep_their_kind(self, site: Site) -> None:
        data = {"whole": 2**53 + 1, "part": 0.5, "e": 1e3}
        added = await site.post("/queues/q/jobs", {"data": data})
        text = (await site.client.get(f"/jobs/{added['id']}")).text
        assert '"data":{"whole":9007199254740993,"part":0.5,"e":1000}' in text

    async def test_an_update_may_leave_the_data_out(self, site: Site) -> None:
        added = await site.post("/queues/q/jobs", {"data": 1})
        assert await site.ask("PUT", f"/jobs/{added['id']}/data", {}) == (200, {"ok": True})
        assert (await site.get(f"/jobs/{added['id']}"))["job"]["data"] is None


class TestPulling:
    async def test_a_poll_that_nobody_waits_for_takes_nothing(self, site: Site) -> None:
        wire = await site.wire()

        async def still_waiting() -> bool:
            return bool((await wire.cmd(cmd="GetJobCounts", queue="q"))["counts"]["waiting"])

        with pytest.raises(httpx.ReadTimeout):
            await site.client.get("/queues/q/jobs?timeout=20000", timeout=0.2)
        await site.post("/queues/q/jobs", {"data": 1})
        async with within():
            await until(still_waiting)
            assert (await site.get("/queues/q/jobs"))["job"]["data"] == 1

    async def test_a_poll_is_answered_by_the_next_job(self, site: Site) -> None:
        async with within():
            polling = asyncio.create_task(site.post("/queues/q/jobs/pull-batch", {"count": 5, "timeout": 20_000}))
            await asyncio.sleep(0)
            await site.post("/queues/q/jobs", {"data": "x"})
            assert [job["data"] for job in (await polling)["jobs"]] == ["x"]

    async def test_waiting_for_a_job_ends_with_it(self, site: Site) -> None:
        added = await site.post("/queues/q/jobs", {"data": 1})
        async with within():
            waiting = asyncio.create_task(site.post(f"/jobs/{added['id']}/wait", {"timeout": 20_000}))
            await site.get("/queues/q/jobs")
            await site.post(f"/jobs/{added['id']}/ack", {"result": {"n": 2**40}})
            assert await waiting == {"ok": True, "completed": True, "result": {"n": 2**40}}

    async def test_a_server_that_stops_answers_those_who_wait(self, site: Site) -> None:
        added = await site.post("/queues/other/jobs", {"data": 1})
        async with within(), site.events() as events:
            polling = asyncio.create_task(site.ask("GET", "/queues/q/jobs?timeout=60000"))
            waiting = asyncio.create_task(site.ask("POST", f"/jobs/{added['id']}/wait", {"timeout": 60_000}))
            await site.post("/queues/q/pause")
            await events.until("queue:paused")
            assert await site.server.stop()
            assert await polling == (200, {"ok": True, "job": None})
            assert await waiting == (503, {"ok": False, "error": "Server is shutting down"})


class TestLists:
    async def test_a_pause_does_not_change_the_summary(self, site: Site) -> None:
        await site.post("/queues/q/jobs", {"data": 1})
        await site.post("/queues/q/jobs", {"data": 1, "priority": 2})
        await site.post("/queues/q/pause")
        (queue,) = await site.get("/queues/summary")
        assert queue == {
            "name": "q",
            "paused": True,
            "counts": {"waiting": 1, "prioritized": 1, "active": 0, "completed": 0, "failed": 0, "delayed": 0},
        }
        (line,) = (await site.get("/dashboard/queues"))["queues"]
        assert line == {"name": "q", "waiting": 1, "delayed": 0, "active": 0, "dlq": 0, "paused": True}

    async def test_pages_of_queues(self, site: Site) -> None:
        for name in ("a", "b", "c"):
            await site.post(f"/queues/{name}/pause")
        page = await site.get("/dashboard/queues?limit=2&offset=1")
        assert [queue["name"] for queue in page["queues"]] == ["b", "c"]
        assert (page["total"], page["limit"], page["offset"]) == (3, 2, 1)

    async def test_useless_bounds_of_a_listing_count_as_none(self, site: Site) -> None:
        await site.post("/queues/q/jobs", {"data": 1})
        for query in ("limit=abc", "limit=-1&offset=-1", "offset="):
            assert len((await site.get(f"/queues/q/jobs/list?{query}"))["jobs"]) == 1

    async def test_bounds_beyond_all_numbers_are_the_largest(self, site: Site) -> None:
        endless = "9" * 300
        await site.post("/queues/q/jobs", {"data": 1})
        for query in (f"limit={endless}", f"offset={endless}", f"limit={endless}&offset={endless}", "limit=1e400"):
            assert (await site.get(f"/queues/q/dlq?{query}"))["entries"] == []
        assert (await site.post("/queues/q/clean", {"grace": int(endless), "limit": int(endless)}))["ids"] == []
        assert (await site.post("/queues/q/promote-jobs", {"count": int(endless)}))["count"] == 0

    async def test_only_active_workers_of_the_queue(self, site: Site) -> None:
        for id, queues in (("w1", ["q"]), ("w2", ["r"])):
            await site.post("/workers", {"workerId": id, "name": "n", "queues": queues})
        assert [worker["id"] for worker in (await site.get("/queues/q/workers"))["workers"]] == ["w1"]

    async def test_policies_take_numbers_as_text(self, site: Site) -> None:
        await site.ask("PUT", "/queues/q/dlq-config", {"config": {"maxEntries": "5", "maxAge": None, "other": 1}})
        config = (await site.get("/queues/q/dlq-config"))["config"]
        assert (config["maxEntries"], config["maxAge"]) == (5, None)
        assert "other" not in config


class Scripted:
    """The application over a scripted broker."""

    def __init__(self) -> None:
        self.broker = ScriptedBroker()
        self.sink = Sink()
        app = HttpApp(services_of(self.broker, sink=self.sink), HttpOptions(), lambda: {"tcp": 0})
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test")

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        content = None if body is None else json.dumps(body)
        answer = await self.client.request(method, path, content=content)
        return answer.status_code, answer.json()


class TestRefusals:
    @pytest.mark.parametrize(
        ("method", "path", "verb"),
        [("POST", "/queues/q/jobs", "push"), ("GET", "/queues/q/count", "counts"), ("GET", "/jobs/j", "job")],
    )
    @pytest.mark.parametrize(
        ("error", "text"),
        [
            (StorageUnavailable("disk full"), "Storage unavailable: disk full"),
            (BackendBusy("too much waits"), "Backend busy: too much waits; retry later"),
        ],
    )
    async def test_what_may_succeed_later_is_503(
        self, method: str, path: str, verb: str, error: Exception, text: str
    ) -> None:
        scripted = Scripted()
        scripted.broker.on(verb, error)
        body = {"data": 1} if method == "POST" else None
        assert await scripted.ask(method, path, body) == (503, {"ok": False, "error": text})

    async def test_what_went_wrong_inside_is_500_and_shows_nothing(self) -> None:
        scripted = Scripted()
        scripted.broker.on("pause", RuntimeError("at 10.0.0.1:5432"))
        assert await scripted.ask("POST", "/queues/q/pause") == (500, {"ok": False, "error": "Internal server error"})
        assert "RuntimeError" in scripted.sink.text

    async def test_a_refusal_keeps_its_members(self) -> None:
        scripted = Scripted()
        scripted.broker.on("ack", Acknowledged(["applied", "applied"], {1: StorageUnavailable("x")}))
        status, body = await scripted.ask("POST", "/jobs/ack-batch", {"ids": ["a", "b"]})
        assert status == 400
        assert body["data"] == {"failedIndices": [1], "failedIds": ["b"], "errors": ["Storage unavailable: x"]}

    async def test_what_a_driver_does_not_offer(self) -> None:
        scripted = Scripted()
        scripted.broker.on("queues", ["q"])
        scripted.broker.on("summaries", [QueueSummary("q", Counts(), False)], [QueueSummary("q", Counts(), False)])
        for verb in ("dead_letters", "schedules"):
            scripted.broker.on(verb, CapabilityError(verb, "scripted"))
        scripted.broker.on("queue_metrics", *[CapabilityError("queue_metrics", "scripted")] * 2)
        scripted.broker.on("counts_per_priority", {})
        status, body = await scripted.ask("GET", "/dashboard/queues/q")
        assert (status, body["dlqPreview"], body["counts"]["totalCompleted"]) == (200, [], 0)
        assert (await scripted.ask("GET", "/dashboard"))[1]["crons"] == {"total": 0, "list": [], "truncated": False}


class TestDashboard:
    async def test_long_lists_are_cut(self, site: Site) -> None:
        for number in range(101):
            await site.post("/workers", {"name": f"w{number}", "queues": ["q"]})
        await site.post("/crons", {"name": "c", "queue": "q", "schedule": "0 0 29 2 *"})
        shown = await site.get("/dashboard")
        assert (shown["workers"]["total"], len(shown["workers"]["list"]), shown["workers"]["truncated"]) == (
            101,
            100,
            True,
        )
        assert (shown["crons"]["total"], shown["crons"]["truncated"]) == (1, False)
        assert shown["crons"]["list"][0]["name"] == "c"

    async def test_schedulers_and_collections_are_counted(self, site: Site) -> None:
        await site.post("/crons", {"name": "c", "queue": "q", "schedule": "0 0 29 2 *"})
        added = await site.post("/queues/q/jobs", {"data": 1})
        await site.post(f"/jobs/{added['id']}/logs", {"message": "x"})
        shown = await site.get("/stats")
        assert (shown["stats"]["cronJobs"], shown["stats"]["cronPending"]) == (1, 1)
        assert (shown["collections"]["jobIndex"], shown["collections"]["jobLogs"]) == (1, 1)
        assert "bunqueue_cron_jobs_registered 1.0" in (await site.client.get("/prometheus")).text

    async def test_latencies(self, site: Site) -> None:
        assert (await site.get("/dashboard"))["latency"]["percentiles"]["push"] == {"p50": 0, "p95": 0, "p99": 0}
        await site.post("/queues/q/jobs", {"data": 1})
        assert (await site.get("/dashboard"))["latency"]["percentiles"]["push"]["p50"] > 0

    async def test_memory_and_heap(self, site: Site) -> None:
        collected = await site.post("/gc")
        assert collected["before"].keys() == collected["after"].keys() == {"heapUsed", "heapTotal", "rss"}
        heap = await site.get("/heapstats")
        counts = [kind["count"] for kind in heap["topObjectTypes"]]
        assert len(counts) == 20
        assert counts == sorted(counts, reverse=True)


class TestAccess:
    async def test_everything_but_health_and_metrics_is_behind_the_token(self, open_site: Open) -> None:
        site = await open_site(auth={"tokens": ("tok1",)})
        async with site.events() as told:
            assert told.answer.status_code == 401
        async with site.events(authorization="Bearer tok1") as watched:
            for method, path in (
                ("GET", "/queues"),
                ("POST", "/gc"),
                ("GET", "/heapstats"),
                ("GET", "/ws"),
                ("GET", "/nope"),
            ):
                assert await site.ask(method, path) == (401, {"ok": False, "error": "Unauthorized"})
            assert (await watched.until("auth:failed"))["data"] == {"transport": "http"}
        for path in ("/health", "/live", "/ready", "/prometheus"):
            assert (await site.ask("GET", path))[0] == 200
        assert (await site.ask("GET", "/queues", authorization="Bearer tok1"))[0] == 200
        assert (await site.ask("GET", "/nope", authorization="Bearer tok1"))[0] == 404

    async def test_a_page_of_one_of_several_origins_gets_its_own(self, open_site: Open) -> None:
        site = await open_site(cors={"origins": ("https://a", "https://b")}, auth={"tokens": ("tok1",)})
        for path, headers in (("/health", {}), ("/queues", {"authorization": "tok1"}), ("/queues", {})):
            answer = await site.client.get(path, headers={"origin": "https://b", **headers})
            assert answer.headers["access-control-allow-origin"] == "https://b"
            assert answer.headers["vary"] == "Origin"
        answer = await site.client.get("/health", headers={"origin": "https://c"})
        assert answer.headers["access-control-allow-origin"] == "https://a, https://b"

    async def test_the_request_limit_is_announced(self, open_site: Open) -> None:
        site = await open_site(limits={"rate_limit_max_requests": 1})
        async with site.events(x_real_ip="10.0.0.1") as events:
            assert (await site.ask("GET", "/queues"))[0] == 200
            assert await site.ask("GET", "/queues") == (429, {"ok": False, "error": "Rate limit exceeded"})
            assert (await events.until("ratelimit:hit"))["data"] == {"clientId": "unknown"}
