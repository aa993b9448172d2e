"""Pulls of one queue, with a claim that the test answers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

from bunqueue_postgres.pulls import PullDesk, Waiter

from bunqueue_core.model.requests import Delivery, PullRequest


class Desk:
    """A desk whose claims take what ``jobs`` holds, once ``open`` is set."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []
        self.open = asyncio.Event()
        self.open.set()
        self.given_back: list[Any] = []
        self.claims: list[int] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.desk = PullDesk("q", self._claim, self.given_back.extend, self._spawn, lambda _: None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _claim(self, _: PullDesk, waiters: list[Waiter]) -> list[list[Delivery]]:
        self.claims.append(sum(waiter.request.count for waiter in waiters))
        await self.open.wait()
        claimed = []
        for waiter in waiters:
            claimed.append(self.jobs[: waiter.request.count])
            del self.jobs[: waiter.request.count]
        return claimed

    def pull(self, count: int = 1, wait_ms: int = 10_000, session: str = "s") -> Any:
        return self.desk.pull(PullRequest("q", count=count, wait_ms=wait_ms, session=session))

    async def rest(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def _job(name: str) -> Any:
    return SimpleNamespace(name=name)


def test_who_waits_already_goes_before_a_newcomer() -> None:
    async def play() -> None:
        desk = Desk()
        first = desk.pull()
        await desk.rest()
        job = _job("a")
        desk.jobs = [job]
        second = desk.pull()
        assert await first == [job]
        await desk.rest()
        assert not second.ready
        third = desk.pull()
        desk.jobs = [_job("b"), _job("c")]
        assert [job.name for job in await second] == ["b"]
        assert [job.name for job in await third] == ["c"]

    asyncio.run(play())


def test_many_newcomers_are_served_although_many_wait() -> None:
    async def play() -> None:
        desk = Desk()
        waiting = [desk.pull() for _ in range(1_200)]
        await desk.rest()
        newcomers = [desk.pull(wait_ms=0) for _ in range(1_200)]
        assert await asyncio.gather(*newcomers) == [[]] * 1_200
        assert not any(pull.ready for pull in waiting)
        assert len(desk.claims) <= 10

    asyncio.run(play())


def test_closing_answers_pulls_that_are_being_claimed_for() -> None:
    async def play() -> None:
        desk = Desk()
        desk.open.clear()
        pull = desk.pull()
        await desk.rest()
        job = _job("a")
        desk.jobs = [job]
        desk.desk.close()
        assert await pull == []
        desk.open.set()
        await desk.rest()
        assert desk.given_back == [job]

    asyncio.run(play())


def test_a_session_that_goes_leaves_others_their_claims() -> None:
    async def play() -> None:
        desk = Desk()
        desk.open.clear()
        gone, stays = desk.pull(session="gone"), desk.pull(session="stays")
        await desk.rest()
        job, other = _job("a"), _job("b")
        desk.jobs = [job, other]
        desk.desk.release("gone")
        assert await gone == []
        desk.open.set()
        assert await stays == [other]
        assert desk.given_back == [job]

    asyncio.run(play())


def test_a_claim_that_fails_is_told_to_those_it_was_for() -> None:
    async def play() -> None:
        desk = Desk()
        failed: list[BaseException] = []

        async def fail(_: PullDesk, waiters: list[Waiter]) -> list[list[Delivery]]:
            raise OSError(len(waiters))

        desk.desk._claim = fail
        for pull in [desk.pull(), desk.pull()]:
            try:
                await pull
            except OSError as error:
                failed.append(error)
        assert [error.args for error in failed] == [(2,), (2,)]

    asyncio.run(play())
