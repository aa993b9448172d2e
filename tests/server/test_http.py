"""The HTTP side: order of checks, health, metrics."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest
from fixtures.inprocess_server import Serve
from fixtures.scripted_broker import ScriptedBroker, Sink, services_of
from prometheus_client.parser import text_string_to_metric_families

from bunqueue_core.model.requests import Counts, Health, QueueSummary
from bunqueue_core.server.http.app import HttpApp, HttpOptions
from bunqueue_core.server.limits import RateLimiter
from bunqueue_core.testing import SettableClock


class Site:
    def __init__(self, *, tokens: tuple[str, ...] = (), limiter: RateLimiter | None = None, **options: Any) -> None:
        self.broker = ScriptedBroker()
        self.sink = Sink()
        self.services = services_of(self.broker, tokens=tokens, sink=self.sink)
        self.app = HttpApp(
            self.services, HttpOptions(**options), lambda: {"tcp": 3, "ws": 0, "sse": 0}, limiter=limiter
        )

    async def ask(self, method: str, path: str, **headers: str) -> httpx.Response:
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            return await client.request(method, path, headers=names)


@pytest.fixture
def site() -> Site:
    return Site()


class TestHealth:
    async def test_healthy(self, site: Site) -> None:
        site.broker.numbers = {"waiting": 1, "paused": 2, "active": 3, "delayed": 4, "completed": 5, "dlq": 6}
        answer = await site.ask("GET", "/health")
        body = answer.json()
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert list(body) == ["ok", "status", "uptime", "version", "queues", "connections", "memory"]
        assert (body["ok"], body["status"], body["version"]) == (True, "healthy", "9.9.9")
        assert body["queues"] == {"waiting": 3, "active": 3, "delayed": 4, "completed": 5, "dlq": 6}
        assert body["connections"] == {"tcp": 3, "ws": 0, "sse": 0}
        assert set(body["memory"]) == {"heapUsed", "heapTotal", "rss"}

    async def test_degraded(self, site: Site) -> None:
        site.broker.state = Health(False, True, "disk full", True, 5)
        answer = await site.ask("GET", "/health")
        storage = {"diskFull": True, "error": "disk full", "since": 5}
        assert (answer.status_code, answer.json()["status"], answer.json()["storage"]) == (503, "degraded", storage)
        ready = await site.ask("GET", "/ready")
        assert (ready.status_code, ready.json()) == (503, {"ok": False, "ready": False, "storage": storage})
        assert (await site.ask("GET", "/live")).status_code == 200

    async def test_a_draining_server_is_healthy_but_not_ready(self, site: Site) -> None:
        site.broker.state = Health(ready=False, problem="draining")
        assert (await site.ask("GET", "/health")).status_code == 200
        ready = await site.ask("GET", "/ready")
        assert (ready.status_code, ready.json()["storage"]["error"]) == (503, None)

    @pytest.mark.parametrize("path", ["/healthz", "/live"])
    @pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
    async def test_liveness(self, site: Site, path: str, method: str) -> None:
        answer = await site.ask(method, path)
        assert (answer.status_code, answer.text) == (200, "OK")
        assert answer.headers["content-type"] == "text/plain;charset=utf-8"

    async def test_ready(self, site: Site) -> None:
        assert (await site.ask("PUT", "/ready")).json() == {"ok": True, "ready": True}


class TestOrder:
    @pytest.mark.parametrize("path", ["/", "/health/", "/nope", "//health", "/Health", "/%68ealth"])
    async def test_unknown_paths(self, site: Site, path: str) -> None:
        answer = await site.ask("GET", path)
        assert (answer.status_code, answer.json()) == (404, {"ok": False, "error": "Not found"})

    async def test_a_wrong_method_is_not_found(self, site: Site) -> None:
        assert (await site.ask("POST", "/prometheus")).status_code == 404

    async def test_with_tokens_an_unknown_path_is_unauthorized(self) -> None:
        site = Site(tokens=("tok1",))
        answer = await site.ask("GET", "/nope")
        assert (answer.status_code, answer.json()) == (401, {"ok": False, "error": "Unauthorized"})
        assert "access-control-allow-origin" not in answer.headers
        for good in ("Bearer tok1", "tok1"):
            assert (await site.ask("GET", "/nope", authorization=good)).status_code == 404
        for bad in ("bearer tok1", "Bearer  tok1", "Basic tok1", "Bearer tok", ""):
            assert (await site.ask("GET", "/nope", authorization=bad)).status_code == 401
        for path in ("/health", "/healthz", "/live", "/ready"):
            assert (await site.ask("GET", path)).status_code == 200

    async def test_preflight(self) -> None:
        site = Site(tokens=("tok1",), cors_origins=("https://a", "https://b"))
        answer = await site.ask("OPTIONS", "/anything")
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["access-control-allow-origin"] == "https://a, https://b"
        assert answer.headers["access-control-allow-methods"] == "GET, POST, PUT, DELETE, OPTIONS"
        assert answer.headers["access-control-allow-headers"] == "Content-Type, Authorization"
        assert answer.headers["access-control-max-age"] == "86400"

    @pytest.mark.parametrize(("origins", "value"), [((), ""), (("*", "https://a"), "*"), (("https://a",), "https://a")])
    async def test_origins(self, origins: tuple[str, ...], value: str) -> None:
        answer = await Site(cors_origins=origins).ask("GET", "/health")
        assert answer.headers["access-control-allow-origin"] == value

    async def test_the_request_limit(self) -> None:
        site = Site(limiter=RateLimiter(1, 1000, SettableClock()))
        for _ in range(3):
            assert (await site.ask("GET", "/health")).status_code == 200
        assert (await site.ask("GET", "/nope")).status_code == 404
        answer = await site.ask("GET", "/nope")
        assert (answer.status_code, answer.json()) == (429, {"ok": False, "error": "Rate limit exceeded"})
        assert (await site.ask("GET", "/nope", x_forwarded_for="10.1.1.1, 10.2.2.2")).status_code == 404
        assert (await site.ask("GET", "/nope", x_forwarded_for="10.1.1.1")).status_code == 429
        assert (await site.ask("GET", "/nope", x_real_ip="10.3.3.3")).status_code == 404

    async def test_an_unexpected_error_shows_nothing(self, site: Site) -> None:
        site.broker.on("queues", RuntimeError("at 10.0.0.1:5432"))
        answer = await site.ask("GET", "/prometheus")
        assert (answer.status_code, answer.json()) == (500, {"ok": False, "error": "Internal server error"})
        assert "RuntimeError" in site.sink.text


GAUGES = {
    *(f"bunqueue_jobs_{state}" for state in ("waiting", "prioritized", "delayed", "active", "dlq", "completed")),
    *(
        "bunqueue_jobs_blocked",
        "bunqueue_uptime_seconds",
        "bunqueue_cron_jobs_registered",
        "bunqueue_workers_registered",
    ),
    *("bunqueue_workers_active", "bunqueue_worker_active_jobs", "bunqueue_worker_concurrency_slots"),
    *("bunqueue_webhooks_registered", "bunqueue_webhooks_enabled", "bunqueue_storage_degraded"),
    *("bunqueue_storage_disk_full", "bunqueue_process_heap_used_bytes", "bunqueue_process_heap_total_bytes"),
    *("bunqueue_process_resident_memory_bytes", "bunqueue_build_info", "process_start_time_seconds"),
    *("process_resident_memory_bytes", "process_heap_bytes", "bunqueue_connections"),
    *("bunqueue_queue_metrics_exported", "bunqueue_queue_metrics_omitted", "bunqueue_backup_enabled"),
    *("bunqueue_backup_scheduler_running", "bunqueue_backup_in_progress", "bunqueue_backup_interval_seconds"),
    *("bunqueue_backup_retention", "bunqueue_backup_consecutive_failures"),
    *("bunqueue_backup_last_success_timestamp_seconds", "bunqueue_backup_last_failure_timestamp_seconds"),
    *("bunqueue_backup_last_duration_seconds", "bunqueue_backup_last_size_bytes"),
    *("bunqueue_backup_last_verified_timestamp_seconds",),
}
COUNTERS = {
    *(f"bunqueue_jobs_{name}" for name in ("pushed", "pulled", "completed", "failed")),
    *("bunqueue_workers_processed", "bunqueue_workers_failed", "process_cpu_seconds", "bunqueue_cut_off_connections"),
    *(f"bunqueue_backup_{name}" for name in ("attempts", "successes", "failures", "overlap_rejections")),
    *("bunqueue_backup_verifications", "bunqueue_backup_verification_failures"),
}
BY_QUEUE = {f"bunqueue_queue_jobs_{state}" for state in ("waiting", "prioritized", "delayed", "active", "dlq")}
HISTOGRAMS = {f"bunqueue_{name}_duration_seconds" for name in ("push", "pull", "ack")}


class TestPrometheus:
    async def families(self, site: Site) -> dict[str, Any]:
        answer = await site.ask("GET", "/prometheus")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert "\n\n# HELP bunqueue_jobs_prioritized " in answer.text
        assert answer.text.endswith("\n")
        assert not answer.text.endswith("\n\n")
        return {family.name: family for family in text_string_to_metric_families(answer.text)}

    async def test_names_and_types(self, site: Site) -> None:
        site.broker.on("queues", [])
        text = (await site.ask("GET", "/prometheus")).text
        types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        assert {name for name, kind in types.items() if kind == "gauge"} == GAUGES
        assert {name for name, kind in types.items() if kind == "counter"} == {f"{name}_total" for name in COUNTERS}
        assert {name for name, kind in types.items() if kind == "histogram"} == HISTOGRAMS

    async def test_values(self) -> None:
        site = Site(metrics_queues=1)
        site.broker.numbers = {"waiting": 2, "paused": 1, "totalPushed": 7, "blockedJobs": 4}
        site.broker.on("queues", ["a", "b", "c"])
        counts = Counts(paused=5, paused_prioritized=1, failed=2)
        site.broker.on("summaries", [QueueSummary("a", counts, True)])
        site.services.meters.latencies["push"].observe(0.0004)
        site.services.meters.latencies["push"].observe(99)
        site.services.meters.cut_offs["unread answers"] += 1
        families = await self.families(site)

        def value(family: str, name: str | None = None, **labels: str) -> float:
            (sample,) = [
                sample
                for sample in families[family].samples
                if sample.name == (name or family) and labels.items() <= sample.labels.items()
            ]
            return float(sample.value)

        assert value("bunqueue_jobs_waiting") == 3
        assert value("bunqueue_jobs_blocked") == 4
        assert value("bunqueue_jobs_pushed", "bunqueue_jobs_pushed_total") == 7
        assert set(families) >= BY_QUEUE
        assert value("bunqueue_queue_jobs_waiting", queue="a") == 4
        assert value("bunqueue_queue_jobs_prioritized", queue="a") == 1
        assert value("bunqueue_queue_jobs_dlq", queue="a") == 2
        assert value("bunqueue_queue_metrics_exported") == 1
        assert value("bunqueue_queue_metrics_omitted") == 2
        assert value("bunqueue_connections", transport="tcp") == 3
        cut_off = "bunqueue_cut_off_connections"
        assert value(cut_off, f"{cut_off}_total", reason="unread answers") == 1
        assert value(cut_off, f"{cut_off}_total", reason="incomplete frame") == 0
        assert value("bunqueue_build_info", version="9.9.9", bun_version="none") == 1
        push = "bunqueue_push_duration_seconds"
        bounds = [sample.labels["le"] for sample in families[push].samples if sample.name == f"{push}_bucket"]
        assert bounds == [
            "0.0001",
            "0.0005",
            "0.001",
            "0.0025",
            "0.005",
            "0.01",
            "0.025",
            "0.05",
            "0.1",
            "0.25",
            "0.5",
            "1",
            "2.5",
            "5",
            "10",
            "+Inf",
        ]
        assert value(push, f"{push}_bucket", le="0.0001") == 0
        assert value(push, f"{push}_bucket", le="0.0005") == 1
        assert value(push, f"{push}_bucket", le="10") == 1
        assert value(push, f"{push}_count") == 2

    async def test_who_may_read_them(self) -> None:
        site = Site(tokens=("tok1",))
        site.broker.on("queues", [], [])
        assert (await site.ask("GET", "/prometheus")).status_code == 200
        site = Site(tokens=("tok1",), metrics_need_token=True)
        site.broker.on("queues", [])
        assert (await site.ask("GET", "/prometheus")).status_code == 401
        assert (await site.ask("GET", "/prometheus", authorization="Bearer tok1")).status_code == 200
        answer = await Site(metrics_need_token=True).ask("GET", "/prometheus")
        text = "Metrics authentication is enabled but no tokens are configured"
        assert (answer.status_code, answer.json()) == (503, {"ok": False, "error": text})


async def test_over_real_sockets(serve: Serve) -> None:
    server = await serve()
    wire = await server.connect()
    await wire.cmd(cmd="PUSH", queue="mail", data=1)
    async with httpx.AsyncClient(base_url=server.url) as client:
        health = (await client.get("/health")).json()
        assert health["queues"]["waiting"] == 1
        assert health["connections"]["tcp"] == 1
        assert (await client.head("/health")).content == b""
        metrics = (await client.get("/prometheus")).text
        over_tcp = (await wire.cmd(cmd="Prometheus"))["data"]["metrics"]
        assert re.findall("^# TYPE .*", over_tcp, re.MULTILINE) == re.findall("^# TYPE .*", metrics, re.MULTILINE)
        assert 'bunqueue_queue_jobs_waiting{queue="mail"} 1.0' in metrics
        assert (await client.get("/nope")).status_code == 404
        answers = await asyncio.gather(*(client.get("/ready") for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200}
