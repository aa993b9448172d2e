"""Bad input on the wire: the server answers or closes as specified, stays up, and what it holds goes on to be consistent.

The longer campaign, with other seeds each day::

    FUZZ_SEED=$(date +%F) FUZZ_ROUNDS=200 pytest -m campaign tests/fuzz
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from fuzz_requests import Fuzzer, pack
from fuzz_server import Client, Target, shared

from bunqueue_core.commands import COMMANDS

#: Requests of each command in one round.
PER_ROUND = 4

#: Rounds of the suite.
ROUNDS = 6


@pytest.mark.parametrize("storage", ["memory", "sqlite"])
async def test_every_command_survives_bad_input(storage: str, tmp_path: Path) -> None:
    await fuzz(f"suite-{storage}", storage, tmp_path, ROUNDS)


@pytest.mark.campaign
@pytest.mark.timeout(0)
@pytest.mark.parametrize("storage", ["memory", "sqlite"])
async def test_every_command_survives_a_campaign(storage: str, tmp_path: Path) -> None:
    seed = os.environ.get("FUZZ_SEED", "campaign")
    await fuzz(f"{seed}-{storage}", storage, tmp_path, int(os.environ.get("FUZZ_ROUNDS", "100")))


async def fuzz(seed: str, storage: str, directory: Path, rounds: int) -> None:
    """Send ``rounds`` rounds of bad requests of every command, and look at what is left, before and after a restart."""
    target = Target(directory / "fuzz.db" if storage == "sqlite" else None)
    await target.start()
    fuzzer = Fuzzer(seed, target.receiver)
    clients = [await target.connect() for _ in range(3)]
    try:
        for round in range(rounds):
            await send_commands(fuzzer, target, clients)
            await send_frames(fuzzer, target)
            target.check_engine()
            at = round % len(clients)
            await clients[at].close()
            clients[at] = await target.connect()
        for client in clients:
            await client.close()
        await target.quiet()
        before = await target.check_state()
    finally:
        await target.stop()
    target.check_log("the stop")
    if storage == "sqlite":
        await target.start()
        try:
            after = await target.check_state()
        finally:
            await target.stop()
        target.check_log("the restart")
        assert sum(map(len, after.values())) > 0
        assert {id for jobs in after.values() for id in jobs} <= {id for jobs in before.values() for id in jobs}
    assert sum(map(len, before.values())) > 0


async def send_commands(fuzzer: Fuzzer, target: Target, clients: list[Client]) -> None:
    """Each command a few times, untouched or with parts that make no sense."""
    requests = []
    for name in list(COMMANDS) * PER_ROUND:
        request = fuzzer.mutated(fuzzer.request(name), fuzzer.pick((0, 0, 1, 1, 1, 2, 4)))
        if shared(fuzzer, request):
            requests.append(request)
        else:
            await target.send_and_leave(fuzzer, _frame(pack(request)))
    fuzzer.random.shuffle(requests)
    for start in range(0, len(requests), 20):
        client = fuzzer.pick(clients)
        await target.send_batch(fuzzer, client, fuzzer.feed())
        await target.send_batch(fuzzer, client, requests[start : start + 20])


async def send_frames(fuzzer: Fuzzer, target: Target) -> None:
    """Frames whose bytes are damaged, lengths that lie, connections that end in the middle."""
    for name in COMMANDS:
        body = pack(fuzzer.request(name))
        how = fuzzer.random.random()
        if how < 0.8:
            data = _frame(fuzzer.mangled(body))
        elif how < 0.9:
            data = (
                _frame(body) + struct.pack(">I", fuzzer.pick((0, 1, len(body) + 7, 2**26, 2**26 + 1, 2**32 - 1))) + body
            )
        else:
            data = fuzzer.mangled(_frame(body))
        await target.send_and_leave(fuzzer, data, reset=fuzzer.random.random() < 0.2)


def _frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body
