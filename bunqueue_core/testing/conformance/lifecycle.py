"""Start, stop, what is announced, and what is not offered (rules S-220 to S-239)."""

from __future__ import annotations

from typing import Any, Final

import pytest

from bunqueue_core.broker.protocol import Broker
from bunqueue_core.model.errors import BunqueueError, CapabilityError
from bunqueue_core.model.requests import Ack, DlqConfig, Event, Failure, Page, PullRequest, StallConfig
from bunqueue_core.testing.conformance.harness import Harness, job
from bunqueue_core.testing.conformance.rules import Kit, rule

#: Every verb with arguments that it would take.
VERBS: Final[dict[str, tuple[Any, ...]]] = {
    "push": ("q", ()),
    "pull": (PullRequest("q"),),
    "ack": ((),),
    "fail": ((),),
    "extend": ((),),
    "heartbeat": ((),),
    "progress": ("x", 1, None, True),
    "release": ("s",),
    "job": ("x",),
    "job_by_custom_id": ("x",),
    "jobs": ("q", (), Page()),
    "states": ((),),
    "results": ((),),
    "progress_of": ("x",),
    "counts": ("q",),
    "counts_per_priority": ("q",),
    "queues": (),
    "wait": ("x", 1),
    "pause": ("q",),
    "resume": ("q",),
    "is_paused": ("q",),
    "count": ("q",),
    "drain_queue": ("q",),
    "clean": ("q", 0, None, 1),
    "obliterate": ("q",),
    "cancel": ("x",),
    "discard": ("x",),
    "promote": ("x",),
    "promote_jobs": ("q",),
    "change_delay": ("x", 0),
    "move_to_wait": ("x",),
    "move_to_waiting_children": ("x",),
    "change_priority": ("x", 1),
    "update_data": ("x", b"\xc0"),
    "retry_completed": ("q",),
    "key_owner": ("q", "k"),
    "remove_key": ("q", "k"),
    "remove_job_key": ("x",),
    "add_log": ("x", "m", "info"),
    "logs": ("x",),
    "clear_logs": ("x",),
    "queue_metrics": ("q", "completed"),
    "push_flow": ((),),
    "update_parent": ("x", "y"),
    "remove_child_dependency": ("x",),
    "remove_unprocessed_children": ("x",),
    "children_values": ("x",),
    "children_failures": ("x", "ignore"),
    "set_rate_limit": ("q", 1),
    "clear_rate_limit": ("q",),
    "set_concurrency": ("q", 1),
    "clear_concurrency": ("q",),
    "queue_limits": ("q",),
    "group_jobs_count": ("q", "g"),
    "group_active_count": ("q", "g"),
    "set_group_rate_limit": ("q", "g", 1, 1),
    "group_rate_limit": ("q", "g"),
    "remove_group_rate_limit": ("q", "g"),
    "group_rate_limit_ttl": ("q", "g"),
    "set_group_concurrency": ("q", "g", 1),
    "group_concurrency": ("q", "g"),
    "remove_group_concurrency": ("q", "g"),
    "pause_group": ("q", "g"),
    "resume_group": ("q", "g"),
    "is_group_paused": ("q", "g"),
    "rate_limit_group": ("q", "g", 1),
    "upsert_schedule": ({"name": "s", "queue": "q", "repeatEvery": 86_400_000},),
    "schedule": ("s",),
    "schedules": (),
    "remove_schedule": ("s",),
    "preview_schedule": ({"name": "s", "queue": "q", "repeatEvery": 86_400_000}, 1),
    "webhooks": (),
    "dead_letters": ("q", None, None),
    "retry_dead_letters": ("q",),
    "remove_dead_letter": ("q", "x"),
    "purge_dead_letters": ("q",),
    "dlq_stats": ("q",),
    "dlq_config": ("q",),
    "set_dlq_config": ("q", DlqConfig()),
    "stall_config": ("q",),
    "set_stall_config": ("q", StallConfig()),
}


class LifecycleCases(Kit):
    """Start, health, close, and the announced capabilities."""

    @rule("S-220")
    @pytest.mark.parametrize("verb", sorted(VERBS))
    def test_what_is_announced_is_offered_and_the_rest_is_refused(self, h: Harness, verb: str) -> None:
        answer = h.world.call(lambda: getattr(h.broker, verb)(*VERBS[verb]))
        error: BunqueueError | None = None
        try:
            h.value(answer)
        except BunqueueError as caught:
            error = caught
        refused = isinstance(error, CapabilityError)
        assert refused != h.offers(verb), f"{verb}: what is announced and what is offered differ ({error!r})"
        assert not isinstance(error, CapabilityError) or error.driver == h.capabilities.driver

    @rule("S-220")
    def test_events_are_offered_or_refused(self, h: Harness) -> None:
        if h.offers("subscribe"):
            h.world.call(lambda: h.broker.subscribe(lambda _: None))()
        else:
            with pytest.raises(CapabilityError):
                h.world.call(lambda: h.broker.subscribe(lambda _: None))

    @rule("S-220")
    def test_snapshots_are_offered_or_not_there(self, h: Harness) -> None:
        assert (h.world.call(h.broker.snapshot_source) is not None) == h.capabilities.snapshots

    @rule("S-221")
    def test_a_started_broker_is_healthy(self, h: Harness) -> None:
        health = h.world.call(h.broker.health)
        assert (health.ready, health.problem, health.disk_full) == (True, None, False)

    @rule("S-221")
    def test_statistics_are_numbers(self, h: Harness) -> None:
        h.push_one()
        figures = h.world.call(h.broker.statistics)
        assert figures
        assert all(isinstance(name, str) and isinstance(figure, int | float) for name, figure in figures.items())

    @rule("S-222")
    def test_closing_twice_is_fine(self, h: Harness) -> None:
        h.push_one()
        h.stop(h.broker)
        h.stop(h.broker)

    @rule("S-223")
    @pytest.mark.parametrize("verb", ["push", "pull", "ack", "fail"])
    def test_a_closed_broker_takes_no_work(self, h: Harness, verb: str) -> None:
        broker: Broker = h.broker
        delivery = h.taken()
        arguments: dict[str, tuple[Any, ...]] = {
            "push": ("q", [job()]),
            "pull": (PullRequest("q"),),
            "ack": ([Ack(delivery.job.id, delivery.token)],),
            "fail": ([Failure(delivery.job.id, "e", delivery.token)],),
        }
        h.stop(broker)
        with pytest.raises(BunqueueError):
            h.value(h.world.call(lambda: getattr(broker, verb)(*arguments[verb])), 5)


class EventCases(Kit):
    """Events of jobs and queues."""

    @rule("S-240")
    def test_the_life_of_a_job(self, h: Harness) -> None:
        seen = self._seen(h)
        delivery = h.taken(backoff_ms=0)
        h.lose(delivery, "boom")
        h.complete(h.take(), {"ok": True})
        types = ["pushed", "pulled", "failed", "retried", "pulled", "completed"]
        h.until(lambda: len(seen) >= len(types), "six events")
        assert [event.type for event in seen] == types
        assert {event.job_id for event in seen} == {delivery.job.id}
        assert {event.queue for event in seen} == {"q"}
        assert [event.timestamp for event in seen] == sorted(event.timestamp for event in seen)

    @rule("S-240")
    def test_events_of_a_batch_are_in_its_order(self, h: Harness) -> None:
        seen = self._seen(h)
        ids = h.push("q", *(job(n) for n in range(5)))
        h.pull(count=5)
        h.until(lambda: len(seen) >= 10, "ten events")
        assert [(event.type, event.job_id) for event in seen] == [
            *(("pushed", id) for id in ids),
            *(("pulled", id) for id in ids),
        ]

    @rule("S-241")
    def test_pause_and_resume_name_no_job(self, h: Harness) -> None:
        seen = self._seen(h)
        h.call("pause", "q")
        h.call("resume", "q")
        h.until(lambda: len(seen) >= 2, "two events")
        assert [(event.type, event.job_id) for event in seen] == [("paused", ""), ("resumed", "")]

    @rule("S-242")
    def test_a_subscription_may_be_for_one_queue(self, h: Harness) -> None:
        seen = self._seen(h, "one")
        h.push("two", job())
        (id,) = h.push("one", job())
        h.until(lambda: len(seen) >= 1, "an event")
        assert [event.job_id for event in seen] == [id]

    @rule("S-242")
    def test_a_subscription_tells_nothing_of_the_past(self, h: Harness) -> None:
        others = self._seen(h)
        for n in range(20):  # whether anybody listened already or not, and whatever happened a moment ago
            queue = f"q{n % 3}"
            h.push(queue, job())
            seen = self._seen(h, queue)
            (id,) = h.push(queue, job())
            h.until(lambda seen=seen: seen, "an event")  # type: ignore[misc]
            assert [event.job_id for event in seen] == [id]
        h.until(lambda: len(others) >= 40, "all events")
        assert len(others) == 40

    @rule("S-242")
    def test_whoever_waits_for_listeners_is_told_after_them(self, h: Harness) -> None:
        seen = self._seen(h)
        for n in range(1, 21):
            h.push_one()
            h.call("heard")
            assert len(seen) == n

    @rule("S-242")
    def test_an_ended_subscription_gets_nothing(self, h: Harness) -> None:
        seen: list[Event] = []
        other = self._seen(h)
        end = h.world.call(lambda: h.broker.subscribe(seen.append))
        h.world.call(end)
        h.push_one()
        h.until(lambda: len(other) >= 1, "an event")
        assert seen == []

    @rule("S-243")
    def test_a_failing_listener_disturbs_nobody(self, h: Harness) -> None:
        if not h.offers("subscribe"):
            h.not_offered("subscribe")

        def failing(event: Event) -> None:
            raise RuntimeError("a fault in a listener")

        h.world.call(lambda: h.broker.subscribe(failing))
        seen = self._seen(h)
        delivery = h.taken()
        h.complete(delivery)
        h.until(lambda: len(seen) >= 3, "three events")
        assert h.state(delivery.job.id) == "completed"

    def _seen(self, h: Harness, queue: str | None = None) -> list[Event]:
        if not h.offers("subscribe"):
            h.not_offered("subscribe")
        seen: list[Event] = []
        h.world.call(lambda: h.broker.subscribe(seen.append, queue))
        return seen
