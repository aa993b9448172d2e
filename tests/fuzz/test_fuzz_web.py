"""Bad input over HTTP and WebSocket: refused with a status that was foreseen, and nothing of it left behind.

The longer campaign::

    FUZZ_SEED=$(date +%F) FUZZ_ROUNDS=200 pytest -m campaign tests/fuzz
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fuzz_requests import Fuzzer
from fuzz_server import Target, shared
from fuzz_web import Site, send_messages, send_routes, socket

from bunqueue_core.commands import COMMANDS

#: Rounds of the suite.
ROUNDS = 4


async def test_every_route_and_message_survives_bad_input(tmp_path: Path) -> None:
    await fuzz("suite", tmp_path, ROUNDS)


@pytest.mark.campaign
@pytest.mark.timeout(0)
async def test_every_route_and_message_survives_a_campaign(tmp_path: Path) -> None:
    await fuzz(os.environ.get("FUZZ_SEED", "campaign"), tmp_path, int(os.environ.get("FUZZ_ROUNDS", "100")))


async def fuzz(seed: str, directory: Path, rounds: int) -> None:
    """Send ``rounds`` rounds of bad requests of every route and every command, and look at what is left."""
    target = Target(directory / "fuzz.db")
    await target.start()
    fuzzer = Fuzzer(f"{seed}-web", target.receiver)
    site, client = Site(target, fuzzer), await socket(target)
    try:
        for _ in range(rounds):
            await send_routes(fuzzer, target, site)
            requests = [fuzzer.mutated(fuzzer.request(name), fuzzer.pick((0, 1, 1, 2, 4))) for name in COMMANDS]
            requests = [request for request in requests if shared(fuzzer, request)]
            fuzzer.random.shuffle(requests)
            for start in range(0, len(requests), 20):
                await send_messages(fuzzer, target, client, fuzzer.feed())
                await send_messages(fuzzer, target, client, requests[start : start + 20])
            target.check_engine()
        await target.quiet()
        states = await target.check_state()
    finally:
        await client.close()
        await site.close()
        await target.stop()
    target.check_log("the stop")
    assert sum(map(len, states.values())) > 0
