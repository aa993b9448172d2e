"""Deduplication keys (rules S-250 to S-259)."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue_core.model.errors import Conflict
from bunqueue_core.model.job import REMOVE
from bunqueue_core.testing.conformance.harness import Harness, job, unpack
from bunqueue_core.testing.conformance.rules import Kit, rule


class KeyCases(Kit):
    """Unique keys: who owns one, for how long, and what a duplicate does."""

    @rule("S-250")
    def test_a_duplicate_finds_the_owner(self, h: Harness) -> None:
        first = h.call("push", "q", [job("first", unique_key="k")])
        second = h.call("push", "q", [job("second", unique_key="k"), job("other", unique_key="l")])
        assert second.outcomes == ["found", "created"]
        assert second.ids[0] == first.ids[0]
        assert h.drain_order() == ["first", "other"]

    @rule("S-250")
    def test_a_batch_may_repeat_a_key(self, h: Harness) -> None:
        pushed = h.call("push", "q", [job(1, unique_key="k"), job(2, unique_key="k")])
        assert (pushed.outcomes, pushed.ids[0]) == (["created", "found"], pushed.ids[1])

    @rule("S-250")
    def test_keys_belong_to_a_queue(self, h: Harness) -> None:
        h.push("one", job(unique_key="k"))
        assert h.call("push", "two", [job(unique_key="k")]).outcomes == ["created"]

    @rule("S-251")
    @pytest.mark.parametrize("way", ["complete", "fail", "bury", "cancel", "discard"])
    def test_a_key_is_free_when_its_owner_has_ended_or_failed_once(self, h: Harness, way: str) -> None:
        settings: dict[str, Any] = {"backoff": {"type": "fixed", "delay": 100 * h.unit}}
        id = h.push_one(unique_key="k", max_attempts=1 if way == "bury" else 3, **settings)
        if way == "cancel":
            h.call("cancel", id)
        elif way == "discard":
            h.call("discard", id)
        elif way == "complete":
            h.complete(h.take())
        else:
            h.lose(h.take())
        assert h.call("push", "q", [job(unique_key="k")]).outcomes == ["created"]

    @rule("S-251")
    def test_an_active_owner_keeps_its_key(self, h: Harness) -> None:
        owner = h.taken(unique_key="k").job.id
        again = h.call("push", "q", [job(unique_key="k")])
        assert (again.ids, again.outcomes) == ([owner], ["found"])

    @rule("S-252")
    def test_a_key_may_expire_before_its_owner_ends(self, h: Harness) -> None:
        first = h.push_one(unique_key="k", dedup_ttl_ms=h.unit)
        assert h.push_one(unique_key="k") == first
        h.elapse(1.5 * h.unit)
        assert h.push_one(unique_key="k") != first

    @rule("S-253")
    def test_extending_starts_the_time_anew(self, h: Harness) -> None:
        settings: dict[str, Any] = {"unique_key": "k", "dedup_ttl_ms": 2 * h.unit, "dedup_extend": True}
        first = h.push_one(**settings)
        h.elapse(1.2 * h.unit)
        assert h.push_one(**settings) == first
        h.elapse(1.2 * h.unit)
        assert h.push_one(**settings) == first
        h.elapse(3 * h.unit)
        assert h.push_one(**settings) != first

    @rule("S-253")
    def test_an_active_owner_cannot_be_extended(self, h: Harness) -> None:
        settings: dict[str, Any] = {"unique_key": "k", "dedup_ttl_ms": 100 * h.unit, "dedup_extend": True}
        h.taken(**settings)
        h.refused("push", "q", [job(**settings)], error=Conflict, text="Duplicate unique_key (extended TTL)")

    @rule("S-254")
    def test_a_replacement_takes_the_place_of_a_queued_owner(self, h: Harness) -> None:
        first = h.push_one(data="old", unique_key="k")
        pushed = h.call("push", "q", [job("new", unique_key="k", dedup_replace=True)])
        assert pushed.outcomes == ["replaced"]
        assert h.states(first, pushed.ids[0]) == ["unknown", "waiting"]
        assert h.drain_order() == ["new"]

    @rule("S-254")
    def test_a_replacement_leaves_an_active_owner_alone(self, h: Harness) -> None:
        active = h.taken(data="old", unique_key="k")
        (id,) = h.push("q", job("new", unique_key="k", dedup_replace=True))
        h.complete(active)
        assert h.push_one(unique_key="k") == id

    @rule("S-254")
    def test_an_owner_that_others_wait_for_is_not_replaced(self, h: Harness) -> None:
        owner = h.push_one(unique_key="k")
        h.push_one(depends_on=(owner,))
        text = f"Cannot replace deduplicated job {owner} because live jobs depend on it"
        h.refused("push", "q", [job(unique_key="k", dedup_replace=True)], error=Conflict, text=text)
        assert h.state(owner) == "waiting"

    @rule("S-255")
    def test_a_key_can_be_looked_up_and_freed(self, h: Harness) -> None:
        owner = h.push_one(unique_key="k")
        assert h.call("key_owner", "q", "k") == owner
        assert h.call("key_owner", "q", "none") is None
        assert h.call("remove_key", "q", "none") == 0
        assert h.call("remove_key", "q", "k") == 1
        assert h.call("key_owner", "q", "k") is None
        assert h.push_one(unique_key="k") != owner

    @rule("S-255")
    def test_a_jobs_own_key_can_be_freed(self, h: Harness) -> None:
        owner, other = h.push("q", job(unique_key="k"), job())
        assert h.call("remove_job_key", other) is False
        assert h.call("remove_job_key", "never-existed") is False
        assert h.call("remove_job_key", owner) is True
        assert h.call("remove_job_key", owner) is False

    @rule("S-256")
    def test_a_dead_letter_is_not_retried_while_another_job_has_its_key(self, h: Harness) -> None:
        dead = h.taken(unique_key="k", max_attempts=1)
        h.lose(dead)
        (id,) = h.push("q", job(unique_key="k"))
        assert h.call("retry_dead_letters", "q") == 0
        assert h.state(dead.job.id) == "failed"
        h.call("cancel", id)
        assert h.call("retry_dead_letters", "q") == 1
        assert h.push_one(unique_key="k") == dead.job.id

    @rule("S-257")
    @pytest.mark.parametrize(
        ("scope", "outcomes"),
        [("waiting", ["created", "created"]), ("unfinished", ["found", "created"])],
    )
    def test_a_scope_says_how_long_a_key_is_held(self, h: Harness, scope: str, outcomes: list[str]) -> None:
        settings: dict[str, Any] = {"unique_key": "k", "dedup_scope": scope, "backoff_ms": 0}
        h.push_one(**settings)
        delivery = h.take()
        active = h.call("push", "q", [job(**settings)])
        assert active.outcomes[0] == outcomes[0]
        h.complete(delivery)
        ended = h.call("push", "q", [job(unique_key="l", dedup_scope=scope)])
        assert ended.outcomes[0] == outcomes[1]

    @rule("S-257")
    @pytest.mark.parametrize("scope", ["waiting", "unfinished", "window"])
    @pytest.mark.parametrize(
        "verb",
        [("cancel",), ("drain_queue", "q"), ("clean", "q", 0, "waiting", 10), ("obliterate", "q")],
        ids=lambda verb: verb[0],
    )
    def test_a_job_that_is_removed_frees_its_key(self, h: Harness, scope: str, verb: tuple[Any, ...]) -> None:
        settings: dict[str, Any] = {"unique_key": "k", "dedup_scope": scope}
        removed = h.push_one(**settings)
        h.call(*verb, *([removed] if verb == ("cancel",) else []))
        assert h.call("key_owner", "q", "k") is None
        again = h.call("push", "q", [job(**settings)])
        assert again.outcomes == ["created"]
        assert h.state(again.ids[0]) == "waiting"

    @rule("S-258")
    def test_keys_survive_a_restart(self, h: Harness) -> None:
        h.require("persistent")
        owner = h.push_one(data="first", unique_key="k")
        h.reopen()
        again = h.call("push", "q", [job("second", unique_key="k")])
        assert (again.ids, again.outcomes) == ([owner], ["found"])
        assert unpack(h.take().job.data) == "first"

    @rule("S-259")
    def test_a_window_goes_on_without_its_job(self, h: Harness) -> None:
        settings: dict[str, Any] = {"unique_key": "k", "dedup_scope": "window", "dedup_ttl_ms": 30 * h.unit}
        first = h.push_one(remove_on_complete=REMOVE, **settings)
        h.complete(h.take())
        again = h.call("push", "q", [job(**settings)])
        assert (again.ids, again.outcomes) == ([first], ["found"])
        h.elapse(31 * h.unit)
        assert h.call("push", "q", [job(**settings)]).outcomes == ["created"]

    @rule("S-259")
    def test_a_window_survives_a_restart(self, h: Harness) -> None:
        h.require("persistent")
        settings: dict[str, Any] = {"unique_key": "k", "dedup_scope": "window", "dedup_ttl_ms": 10_000_000}
        first = h.push_one(remove_on_complete=REMOVE, **settings)
        h.complete(h.take())
        h.reopen()
        again = h.call("push", "q", [job(**settings)])
        assert (again.ids, again.outcomes) == ([first], ["found"])
        assert h.call("remove_key", "q", "k") == 1
        h.reopen()
        assert h.call("push", "q", [job(**settings)]).outcomes == ["created"]
