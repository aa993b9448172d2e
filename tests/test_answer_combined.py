"""Several answers as one."""

from __future__ import annotations

import pytest

from bunqueue_core.answer import Answer, combined


def test_ready_answers_combine_at_once() -> None:
    answer = combined([Answer.of(1), Answer.of(2)])
    assert answer.ready
    assert answer.value == [1, 2]


def test_nothing_combines_to_nothing() -> None:
    assert combined([]).value == []


def test_the_last_one_settles_all() -> None:
    first: Answer[int] = Answer()
    last: Answer[int] = Answer()
    answer = combined([first, Answer.of(2), last])
    last.settle(3)
    assert not answer.ready
    first.settle(1)
    assert answer.value == [1, 2, 3]


@pytest.mark.parametrize("late", [False, True])
def test_one_error_fails_all(late: bool) -> None:
    waiting: Answer[int] = Answer()
    failing: Answer[int] = Answer() if late else Answer.failed(ValueError("no"))
    answer = combined([waiting, failing])
    if late:
        failing.fail(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        answer.result(0)
    waiting.settle(1)


def test_cancelling_cancels_those_that_are_waited_for() -> None:
    cancelled: list[str] = []
    waiting: Answer[int] = Answer(on_cancel=lambda _: cancelled.append("waiting"))
    ready: Answer[int] = Answer.of(1)
    combined([ready, waiting]).cancel()
    assert cancelled == ["waiting"]
