"""Acknowledgement, failure, retry, backoff and removal at the end."""

from oracle import scenario


def pick(job, *keys):
    return {k: (job or {}).get(k) for k in keys}


def take(s, name="q", owner="w", **opts):
    s.quiet.cmd(cmd="PUSH", queue=s.q(name), name="n", data={"v": 1}, **opts)
    got = s.quiet.cmd(cmd="PULL", queue=s.q(name), owner=owner)
    return got["job"]["id"], got["token"]


def retake(s, i, name="q"):
    """Promote a job that waits for its retry and pull it again."""
    s.quiet.cmd(cmd="Promote", id=i)
    return s.quiet.cmd(cmd="PULL", queue=s.q(name), owner="w", timeout=5000)["token"]


def wait_of_retry(s, i):
    """Milliseconds between the last failure and the next run."""
    job = s.quiet.cmd(cmd="GetJob", id=i)["job"]
    failed = [t for t in job["timeline"] if t["state"] == "failed"][-1]["timestamp"]
    return job["runAt"] - failed


@scenario
def ack_and_its_answer(s):
    """A plain success carries no data member; state, counts and result follow."""
    i, token = take(s)
    got = s.cmd(cmd="ACK", id=i, token=token, result={"sum": 3})
    s.note("data" in got)
    s.cmd(cmd="GetState", id=i)
    s.cmd(cmd="GetResult", id=i)
    s.cmd(cmd="GetJobCounts", queue=s.q())
    job = s.cmd(cmd="PULL", queue=s.q())
    view = s.quiet.cmd(cmd="GetJob", id=i)["job"]
    s.note(
        [
            view["state"],
            view["returnvalue"],
            view["attempts"],
            [t["state"] for t in view["timeline"]],
            bool(view["completedAt"]),
        ]
    )


@scenario
def ack_of_jobs_that_are_not_active(s):
    """Unknown, waiting, delayed, completed and failed jobs cannot be acknowledged."""
    s.cmd(cmd="ACK", id="unknown-id")
    s.cmd(cmd="ACK", id="unknown-id", token="t")
    w = s.cmd(cmd="PUSH", queue=s.q("w"), name="n", data=1)["id"]
    s.cmd(cmd="ACK", id=w)
    d = s.cmd(cmd="PUSH", queue=s.q("w"), name="n", data=1, delay=60000)["id"]
    s.cmd(cmd="ACK", id=d, token="t")
    i, token = take(s)
    s.cmd(cmd="ACK", id=i, token=token)
    s.cmd(cmd="ACK", id=i, token=token)
    s.cmd(cmd="ACK", id=i)
    i, token = take(s, maxAttempts=1)
    s.cmd(cmd="FAIL", id=i, token=token, error="e")
    s.cmd(cmd="ACK", id=i, token=token)


@scenario
def null_result_is_a_result(s):
    """A stored null and no result at all differ on the wire."""
    for extra in ({}, {"result": None}, {"result": 0}, {"result": ""}, {"result": False}, {"result": [1, {"a": 2}]}):
        i, token = take(s)
        s.quiet.wire.send({"cmd": "ACK", "id": i, "token": token, "reqId": "z", **extra})
        s.quiet.wire.recv(5)
        s.quiet.wire.send({"cmd": "GetResult", "id": i, "reqId": "z"})
        raw = s.quiet.wire.recv(5)
        s.note(["stored", raw["result"]] if "result" in raw and type(raw["result"]).__name__ != "ExtType" else "none")


@scenario
def remove_on_complete(s):
    """By the job's option or by the ACK's: the job leaves no record."""
    i, token = take(s, removeOnComplete=True)
    s.cmd(cmd="ACK", id=i, token=token, result=5)
    j, token = take(s)
    s.cmd(cmd="ACK", id=j, token=token, result=5, removeOnComplete=True)
    k, token = take(s)
    s.cmd(cmd="ACK", id=k, token=token, result=5, removeOnComplete=False)
    for x in (i, j, k):
        s.cmd(cmd="GetState", id=x)
        s.cmd(cmd="GetResult", id=x)
    s.cmd(cmd="GetJob", id=i)
    s.cmd(cmd="GetJobCounts", queue=s.q())


@scenario
def job_option_wins_over_ack_false(s):
    """removeOnComplete false in the ACK does not undo the job's own flag."""
    i, token = take(s, removeOnComplete=True)
    s.cmd(cmd="ACK", id=i, token=token, removeOnComplete=False)
    s.cmd(cmd="GetState", id=i)


@scenario
def remove_on_fail(s):
    """A terminal failure with removeOnFail leaves nothing; a retry is not terminal."""
    i, token = take(s, removeOnFail=True, maxAttempts=2)
    s.cmd(cmd="FAIL", id=i, token=token, error="one")
    s.cmd(cmd="GetState", id=i)
    token = retake(s, i)
    s.cmd(cmd="FAIL", id=i, token=token, error="two")
    s.cmd(cmd="GetState", id=i)
    j, token = take(s, maxAttempts=1)
    s.cmd(cmd="FAIL", id=j, token=token, error="x", removeOnFail=True)
    s.cmd(cmd="GetState", id=j)
    s.cmd(cmd="Dlq", queue=s.q())
    s.cmd(cmd="GetJobCounts", queue=s.q())


@scenario
def ack_batch(s):
    """ACKB with tokens and results; each result lands at its own job."""
    jobs = [take(s) for _ in range(3)]
    ids, tokens = [j[0] for j in jobs], [j[1] for j in jobs]
    got = s.cmd(cmd="ACKB", ids=ids, tokens=tokens, results=[1, None, {"x": 2}])
    s.note("data" in got)
    for i in ids:
        s.cmd(cmd="GetState", id=i)
    s.note(
        [s.quiet.cmd(cmd="GetResult", id=ids[0]).get("result"), s.quiet.cmd(cmd="GetResult", id=ids[2]).get("result")]
    )
    s.cmd(cmd="ACKB", ids=[])
    s.cmd(cmd="ACKB", ids=[], tokens=[], results=[])


@scenario
def ack_batch_lengths(s):
    """Parallel lists must be as long as ids; nothing is applied otherwise."""
    i, t = take(s)
    j, u = take(s)
    s.cmd(cmd="ACKB", ids=[i, j], tokens=[t])
    s.cmd(cmd="ACKB", ids=[i, j], tokens=[t, u], results=[1])
    s.cmd(cmd="ACKB", ids=[i, j], tokens=[t, u], results=[1, 2], removeOnCompletes=[True, False, True])
    s.cmd(cmd="GetState", id=i)
    s.cmd(cmd="ACKB", ids=[i, j], tokens=[t, u], results=[1, 2], removeOnCompletes=[True, False])
    s.cmd(cmd="GetState", id=i)
    s.cmd(cmd="GetState", id=j)


@scenario
def ack_batch_checks_tokens_first(s):
    """One bad token refuses the whole batch before anything is applied."""
    i, t = take(s)
    j, u = take(s)
    s.cmd(cmd="ACKB", ids=[i, j], tokens=[t, "wrong"])
    s.cmd(cmd="GetState", id=i)
    s.cmd(cmd="ACKB", ids=[i, j])
    s.cmd(cmd="ACKB", ids=[i, j], tokens=[t, ""])
    s.cmd(cmd="GetJobCounts", queue=s.q())


@scenario
def ack_batch_with_a_stranger(s):
    """An id that is not active is named; the others of the batch are done."""
    i, t = take(s)
    s.cmd(cmd="ACKB", ids=[i, "unknown-id"], tokens=[t, "x"])
    s.cmd(cmd="GetState", id=i)


@scenario
def fail_then_retry(s):
    """A failure with attempts left: counters, state, timeline and reason."""
    i, token = take(s, backoff=60000)
    got = s.cmd(cmd="FAIL", id=i, token=token, error="boom", stack=["Error: boom", "  at x  ", "", "at y"])
    s.note("data" in got)
    view = s.quiet.cmd(cmd="GetJob", id=i)["job"]
    s.note(
        pick(
            view,
            "state",
            "attempts",
            "maxAttempts",
            "failedReason",
            "stacktrace",
            "startedAt",
            "stallCount",
            "progress",
        )
    )
    s.note([pick(t, "state", "error", "attempt") for t in view["timeline"]])
    s.cmd(cmd="GetJobCounts", queue=s.q())


@scenario
def fail_until_dead(s):
    """Attempts run out: dead letter, reason, and the attempt records."""
    i, token = take(s, maxAttempts=2, backoff=0)
    s.cmd(cmd="FAIL", id=i, token=token, error="one")
    token = s.quiet.cmd(cmd="PULL", queue=s.q(), owner="w", timeout=3000)["token"]
    s.cmd(cmd="FAIL", id=i, token=token, error="two")
    s.cmd(cmd="GetState", id=i)
    entry = s.quiet.cmd(cmd="Dlq", queue=s.q())["entries"][0]
    s.note(pick(entry, "reason", "error", "retryCount", "nextRetryAt", "lastRetryAt"))
    s.note([pick(a, "attempt", "reason", "error") for a in entry["attempts"]])
    view = s.quiet.cmd(cmd="GetJob", id=i)["job"]
    s.note([view["attempts"], view["failedReason"], [pick(t, "state", "attempt", "error") for t in view["timeline"]]])
    s.cmd(cmd="GetJobCounts", queue=s.q())


@scenario
def unrecoverable_failure(s):
    """unrecoverable skips the remaining attempts."""
    i, token = take(s, maxAttempts=5)
    s.cmd(cmd="FAIL", id=i, token=token, error="never", unrecoverable=True)
    s.cmd(cmd="GetState", id=i)
    s.note(pick(s.quiet.cmd(cmd="Dlq", queue=s.q())["entries"][0], "reason", "error"))
    s.note(s.quiet.cmd(cmd="GetJob", id=i)["job"]["attempts"])


@scenario
def fail_without_error_text(s):
    """No error text: no reason is kept."""
    i, token = take(s, maxAttempts=1)
    s.cmd(cmd="FAIL", id=i, token=token)
    s.note(pick(s.quiet.cmd(cmd="GetJob", id=i)["job"], "state", "failedReason", "stacktrace"))
    s.note(pick(s.quiet.cmd(cmd="Dlq", queue=s.q())["entries"][0], "reason", "error"))


@scenario
def fail_of_jobs_that_are_not_active(s):
    """Failing unknown, waiting and finished jobs is refused."""
    s.cmd(cmd="FAIL", id="unknown-id", error="e")
    w = s.cmd(cmd="PUSH", queue=s.q("w"), name="n", data=1)["id"]
    s.cmd(cmd="FAIL", id=w, error="e")
    i, token = take(s)
    s.cmd(cmd="ACK", id=i, token=token)
    s.cmd(cmd="FAIL", id=i, token=token, error="e")
    s.cmd(cmd="GetState", id=i)


@scenario
def repeated_fail(s):
    """Failing a job again while it waits for its retry changes nothing: answered as already decided with a token, refused without."""
    i, token = take(s, backoff=60000)
    s.cmd(cmd="FAIL", id=i, token=token, error="one")
    s.cmd(cmd="FAIL", id=i, token=token, error="again")
    s.cmd(cmd="FAIL", id=i, error="again")
    s.note(pick(s.quiet.cmd(cmd="GetJob", id=i)["job"], "attempts", "state", "failedReason"))


@scenario
def late_ack_completes_a_job_in_retry(s):
    """An ACK for a job that waits for its retry completes it."""
    i, token = take(s, backoff=60000)
    s.cmd(cmd="FAIL", id=i, token=token, error="one")
    s.cmd(cmd="ACK", id=i, token=token, result="done after all")
    s.cmd(cmd="GetState", id=i)
    s.cmd(cmd="GetResult", id=i)
    s.cmd(cmd="PULL", queue=s.q())


@scenario
def backoff_fixed(s):
    """Fixed backoff: the delay with at most 20 percent of jitter, the same at each attempt."""
    i, token = take(s, maxAttempts=4, backoff={"type": "fixed", "delay": 10000})
    for _ in range(3):
        s.cmd(cmd="FAIL", id=i, token=token, error="e")
        w = wait_of_retry(s, i)
        s.note(8000 <= w <= 12010)
        token = retake(s, i)


@scenario
def backoff_number_grows(s):
    """A number is an exponential base: base times 2^attempts, half to one and a half of it."""
    i, token = take(s, maxAttempts=5, backoff=10000)
    for n in (1, 2, 3):
        s.cmd(cmd="FAIL", id=i, token=token, error="e")
        w = wait_of_retry(s, i)
        s.note([n, 10000 * 2**n * 0.5 <= w <= 10000 * 2**n * 1.5 + 10])
        token = retake(s, i)


@scenario
def backoff_exponential_map(s):
    """The exponential form follows the same formula."""
    i, token = take(s, maxAttempts=5, backoff={"type": "exponential", "delay": 1000})
    for n in (1, 2, 3):
        s.cmd(cmd="FAIL", id=i, token=token, error="e")
        w = wait_of_retry(s, i)
        s.note([n, 1000 * 2**n * 0.5 <= w <= 1000 * 2**n * 1.5 + 10])
        token = retake(s, i)


@scenario
def backoff_default_and_cap(s):
    """Without backoff the base is 1000 ms; no wait is longer than an hour."""
    i, token = take(s)
    s.cmd(cmd="FAIL", id=i, token=token, error="e")
    s.note(1000 <= wait_of_retry(s, i) <= 3010)
    for b in (86400000, {"type": "fixed", "delay": 86400000}):
        i, token = take(s, name="cap", backoff=b)
        s.cmd(cmd="FAIL", id=i, token=token, error="e")
        s.note(3600000 <= wait_of_retry(s, i) <= 3600010)


@scenario
def zero_backoff_is_ready_at_once(s):
    """With backoff 0 the job can be pulled again right away, three times in all."""
    s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, backoff=0)
    for _ in range(3):
        got = s.quiet.cmd(cmd="PULL", queue=s.q(), owner="w", timeout=3000)
        s.note([got["job"]["attempts"], got["job"]["stallCount"]])
        s.cmd(cmd="FAIL", id=got["job"]["id"], token=got["token"], error="e")
    s.cmd(cmd="PULL", queue=s.q())
    s.cmd(cmd="GetJobCounts", queue=s.q())


@scenario
def progress_survives_a_retry(s):
    """Progress and its message stay when a job is retried."""
    i, token = take(s)
    s.cmd(cmd="Progress", id=i, progress=60, message="more than half")
    s.cmd(cmd="FAIL", id=i, token=token, error="e")
    s.note(pick(s.quiet.cmd(cmd="GetJob", id=i)["job"], "progress", "progressMessage", "attempts"))
