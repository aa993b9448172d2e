"""The places for processes of a sandboxed worker."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from bunqueue_core.client._cancel_signal import CancelSignal
from bunqueue_core.client._sandbox import Slots

#: Nothing here takes longer, seconds.
PATIENCE = 60.0

SLOW_TO_END = """
import atexit, time
atexit.register(time.sleep, 1.0)

def processor(job):
    return job.data
"""


def result(slots: Slots, data: int) -> int:
    slot = slots.take()
    signal = CancelSignal()
    slot.begin({"id": "1", "name": "n", "data": data, "queue": "q", "attempts": 0, "parentId": None}, signal)
    message = slot.receive(time.monotonic() + PATIENCE, signal)
    slots.give_back(slot)
    assert message is not None
    assert message[0] == "result"
    return int(message[1])


@pytest.mark.parametrize("size", [1, 2])
def test_a_job_that_comes_while_processes_end_gets_a_place(tmp_path: Path, size: int) -> None:
    file = tmp_path / "processor.py"
    file.write_text(SLOW_TO_END)
    slots = Slots(str(file), size, None)
    try:
        assert result(slots, 1) == 1
        ending = threading.Thread(target=slots.recycle, args=(0.0, 0))
        ending.start()
        deadline = time.monotonic() + PATIENCE
        while slots.stats()["recycled"] == 0:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert slots.stats()["busy"] == 0
        assert result(slots, 2) == 2
        ending.join()
        assert slots.stats() == {"total": size, "busy": 0, "idle": size, "recycled": 1, "restarts": 0}
    finally:
        slots.end()
