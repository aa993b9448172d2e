"""Waiting for the end of a job."""

from __future__ import annotations

import math
from typing import Any

from bunqueue_core.client._acompat import asettled
from bunqueue_core.client._verbs import Verbs
from bunqueue_core.model.errors import CommandError, CommandTimeoutError
from bunqueue_core.model.payload import widen

#: How long a wait lasts that names no time, ms.
DEFAULT_WAIT_MS = 30_000

#: Longest wait that a broker takes, ms.
MAX_WAIT_MS = 600_000

#: The client's own deadline comes so much later than the broker's, seconds.
GRACE_S = 5.0


async def wait_for_result(verbs: Verbs, job_id: str, timeout_ms: float | None) -> Any:
    """Let the broker wait for the end of job ``job_id`` and return its result.

    Args:
        verbs: the broker.
        job_id: the job.
        timeout_ms: ms, held within 0..600,000; None and NaN mean 30,000.

    Raises:
        CommandError: the job failed, or is not known.
        CommandTimeoutError: it did not end in time.
    """
    if timeout_ms is None or math.isnan(timeout_ms):
        timeout_ms = DEFAULT_WAIT_MS
    wait_ms = int(min(max(timeout_ms, 0), MAX_WAIT_MS))
    response = await asettled(
        verbs.command("WaitJob", {"id": job_id, "timeout": wait_ms}, timeout=wait_ms / 1000 + GRACE_S)
    )
    if response.get("completed") is True:
        return widen(response.get("result"))
    state = (await asettled(verbs.command("GetState", {"id": job_id}))).get("state")
    if state == "failed":
        failure = CommandError(f"job {job_id} failed before completion")
        reason = (await asettled(verbs.command("GetJob", {"id": job_id}))).get("job", {}).get("failedReason")
        if reason:
            failure.add_note(f"its last error: {reason}")
        raise failure
    if state == "completed":
        return widen((await asettled(verbs.command("GetResult", {"id": job_id}))).get("result"))
    raise CommandTimeoutError(f"waitUntilFinished timed out after {wait_ms}ms")
