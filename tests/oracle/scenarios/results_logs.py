"""Progress, logs, results, children's values and WaitJob."""

from oracle import scenario


def pick(job, *keys):
    return {k: (job or {}).get(k) for k in keys}


def take(s, name="q", **opts):
    s.quiet.cmd(cmd="PUSH", queue=s.q(name), name="n", data={"v": 1}, **opts)
    got = s.quiet.cmd(cmd="PULL", queue=s.q(name), owner="w")
    return got["job"]["id"], got["token"]


@scenario
def progress_and_message(s):
    """Progress is clamped; the message stays until replaced or cleared with null."""
    i, _ = take(s)
    s.cmd(cmd="GetProgress", id=i)
    s.cmd(cmd="Progress", id=i, progress=25, message="quarter")
    s.cmd(cmd="GetProgress", id=i)
    s.cmd(cmd="Progress", id=i, progress=50.5)
    s.cmd(cmd="GetProgress", id=i)
    s.cmd(cmd="Progress", id=i, progress=250)
    s.cmd(cmd="GetProgress", id=i)
    s.cmd(cmd="Progress", id=i, progress=-7, message="back")
    s.cmd(cmd="GetProgress", id=i)
    s.quiet.wire.send({"cmd": "Progress", "id": i, "progress": 1, "message": None, "reqId": "z"})
    s.quiet.wire.recv(5)
    s.cmd(cmd="GetProgress", id=i)
    s.note(pick(s.quiet.cmd(cmd="GetJob", id=i)["job"], "progress", "progressMessage"))


@scenario
def progress_of_jobs_that_are_not_active(s):
    """Progress can be reported and read for active jobs only; refusals name the state."""
    w = s.cmd(cmd="PUSH", queue=s.q("w"), name="n", data=1)["id"]
    d = s.cmd(cmd="PUSH", queue=s.q("w"), name="n", data=1, delay=600000)["id"]
    p = s.cmd(cmd="PUSH", queue=s.q("w"), name="n", data=1, priority=1)["id"]
    i, token = take(s)
    s.quiet.cmd(cmd="ACK", id=i, token=token)
    f, token = take(s, maxAttempts=1)
    s.quiet.cmd(cmd="FAIL", id=f, token=token, error="e")
    for x in (w, d, p, i, f, "no-such-job"):
        s.cmd(cmd="Progress", id=x, progress=5)
        s.cmd(cmd="GetProgress", id=x)


@scenario
def logs_and_slices(s):
    """Log lines, their levels, and reading a part of them; count is always the total."""
    i = s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1)["id"]
    for n in range(5):
        s.cmd(cmd="AddLog", id=i, message=f"line {n}", **({"level": ("warn", "error", "custom")[n % 3]} if n else {}))
    s.cmd(cmd="GetLogs", id=i)
    for a, b in ((0, 1), (1, 3), (3, 99), (2, None), (None, 1), (7, 9), (-2, None)):
        got = s.quiet.cmd(cmd="GetLogs", id=i, start=a, end=b)["data"]
        s.note([a, b, [x["message"] for x in got["logs"]], got["count"]])


@scenario
def logs_cleared(s):
    """ClearLogs keeps the newest lines it is told to keep."""
    i = s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1)["id"]
    for n in range(6):
        s.quiet.cmd(cmd="AddLog", id=i, message=f"line {n}")
    for keep in (10, 4, 1):
        s.cmd(cmd="ClearLogs", id=i, keepLogs=keep)
        s.note([x["message"] for x in s.quiet.cmd(cmd="GetLogs", id=i)["data"]["logs"]])
    s.cmd(cmd="ClearLogs", id=i)
    s.cmd(cmd="GetLogs", id=i)
    s.cmd(cmd="ClearLogs", id="no-such-job")


@scenario
def logs_by_state(s):
    """Logs can be added in every state and outlive completion and failure."""
    i, token = take(s)
    s.cmd(cmd="AddLog", id=i, message="active")
    s.cmd(cmd="ACK", id=i, token=token)
    s.cmd(cmd="AddLog", id=i, message="completed")
    s.cmd(cmd="GetLogs", id=i)
    f, token = take(s, maxAttempts=1)
    s.cmd(cmd="FAIL", id=f, token=token, error="e")
    s.cmd(cmd="AddLog", id=f, message="failed")
    s.cmd(cmd="GetLogs", id=f)
    s.cmd(cmd="AddLog", id="no-such-job", message="x")
    s.cmd(cmd="GetLogs", id="no-such-job")


@scenario
def result_of_any_job(s):
    """GetResult never fails: it answers without a result for unfinished, failed and unknown jobs."""
    w = s.cmd(cmd="PUSH", queue=s.q("w"), name="n", data=1)["id"]
    f, token = take(s, maxAttempts=1)
    s.quiet.cmd(cmd="FAIL", id=f, token=token, error="e")
    for x in (w, f, "no-such-job"):
        s.cmd(cmd="GetResult", id=x)
    i, token = take(s)
    s.cmd(cmd="ACK", id=i, token=token, result={"deep": [1, {"x": "ü"}], "n": 1.5})
    s.cmd(cmd="GetResult", id=i)
    s.note(s.quiet.cmd(cmd="GetJob", id=i)["job"]["returnvalue"])


@scenario
def wait_for_completion(s):
    """WaitJob is answered when the job completes, with its result."""
    i, token = take(s)
    s.send(cmd="WaitJob", id=i, timeout=15000)
    s.sleep(0.2)
    s.conn("b").cmd(cmd="ACK", id=i, token=token, result={"r": 1})
    s.recv(10)
    s.cmd(cmd="WaitJob", id=i, timeout=15000)
    s.cmd(cmd="WaitJob", id=i, timeout=0)


@scenario
def wait_before_the_pull(s):
    """A wait may begin while the job is still queued."""
    i = s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1)["id"]
    s.send(cmd="WaitJob", id=i, timeout=15000)
    s.sleep(0.1)
    s.quiet.cmd(cmd="PULL", queue=s.q())
    s.conn("b").cmd(cmd="ACK", id=i, result="ok")
    s.recv(10)


@scenario
def wait_bounds_and_unknown(s):
    """Bounds of the wait; an unknown job is an error; a wait of zero answers at once."""
    i = s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1)["id"]
    for bad in (-1, 600001, "5", float("nan"), True):
        s.cmd(cmd="WaitJob", id=i, timeout=bad)
    s.cmd(cmd="WaitJob", id=i, timeout=0)
    s.cmd(cmd="WaitJob", id=i, timeout=150)
    s.cmd(cmd="WaitJob", id="no-such-job", timeout=1000)


@scenario
def wait_for_a_job_that_leaves_no_record(s):
    """A wait already running gets the completion of a job removed on completion, without result; a later one finds nothing."""
    i, token = take(s, removeOnComplete=True)
    s.send(cmd="WaitJob", id=i, timeout=15000)
    s.sleep(0.2)
    s.conn("b").cmd(cmd="ACK", id=i, token=token, result="gone")
    got = s.a.wire.recv(10)
    s.note([got["ok"], got["completed"]])
    s.cmd(cmd="WaitJob", id=i, timeout=500)


@scenario
def wait_does_not_end_on_failure(s):
    """A failure, even a terminal one, leaves the wait to its deadline."""
    i, token = take(s, maxAttempts=1)
    s.send(cmd="WaitJob", id=i, timeout=900)
    s.sleep(0.1)
    s.conn("b").cmd(cmd="FAIL", id=i, token=token, error="e")
    s.recv(10)
    s.cmd(cmd="WaitJob", id=i, timeout=200)


@scenario
def many_waiters(s):
    """Every waiter of a job is answered."""
    i, token = take(s)
    for name in "abc":
        s.conn(name).send(cmd="WaitJob", id=i, timeout=15000)
    s.send(cmd="WaitJob", id=i, timeout=15000)
    s.sleep(0.2)
    s.quiet.cmd(cmd="ACK", id=i, token=token, result=7)
    s.note([s.a.wire.recv(10)["result"] for _ in range(2)] + [s.conn(n).wire.recv(10)["result"] for n in "bc"])


@scenario
def children_values(s):
    """A parent reads its children's results by queue and id; children without result are left out."""
    kids = [s.cmd(cmd="PUSH", queue=s.q("kids"), name="n", data=n)["id"] for n in range(3)]
    p = s.cmd(cmd="PUSH", queue=s.q("parent"), name="p", data=1, dependsOn=kids, childrenIds=kids)["id"]
    s.cmd(cmd="GetChildrenValues", id=p)
    for n, k in enumerate(kids):
        s.quiet.cmd(cmd="PULL", queue=s.q("kids"))
        s.quiet.cmd(cmd="ACK", id=k, **({"result": {"n": n}} if n < 2 else {}))
    s.until(lambda c: c.cmd(cmd="GetState", id=p)["state"] == "waiting")
    s.cmd(cmd="GetChildrenValues", id=p)
    s.cmd(cmd="GetChildrenValues", id="no-such-job")
    s.cmd(cmd="GetFailedChildrenValues", id=p)
    s.cmd(cmd="GetIgnoredChildrenFailures", id=p)
