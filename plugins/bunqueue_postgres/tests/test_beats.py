"""Signs of life that wait for an outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bunqueue_postgres.beats import PatientBeats

from bunqueue_core.answer import Answer
from bunqueue_core.model.requests import Renewal


async def test_an_error_in_one_call_leaves_the_others_alone() -> None:
    written: list[list[str]] = []

    def send(beats: Sequence[Renewal]) -> Answer[list[bool]]:
        written.append([beat.id for beat in beats])
        return Answer.of([True] * len(beats))

    def fail(_: Answer[list[bool]]) -> None:
        raise ValueError("of whoever waits for it")

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    beats = PatientBeats(send)
    beats.hold([Renewal("a")]).add_callback(fail)
    async with asyncio.timeout(20):
        assert await beats.hold([Renewal("b")]) == [True]
        assert await beats.hold([Renewal("c"), Renewal("d")]) == [True, True]
    assert written == [["a"], ["b"], ["c", "d"]]


async def test_what_waits_is_written_at_the_end() -> None:
    written: list[str] = []

    def send(beats: Sequence[Renewal]) -> Answer[list[bool]]:
        written.extend(beat.id for beat in beats)
        return Answer.of([True] * len(beats))

    beats = PatientBeats(send)
    answer = beats.hold([Renewal("a", "t"), Renewal("b", "t")])
    beats.ended("a", "t")
    assert not answer.ready
    beats.close()
    assert answer.ready
    assert answer.value == [True, True]
    assert written == ["b"]
