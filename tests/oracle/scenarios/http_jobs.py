"""HTTP routes of single jobs: adding, fetching, finishing and managing them."""

from oracle import scenario


def push(s, name="j", queue="q", **opts):
    """Push over TCP without recording; the id."""
    return s.quiet.cmd(cmd="PUSH", queue=s.q(queue), name=name, data=opts.pop("data", {"n": name}), **opts)["id"]


def take(s, queue="q", **more):
    """Pull over TCP without recording; no lock unless an owner is given."""
    return s.quiet.cmd(cmd="PULL", queue=s.q(queue), **more)


def jobs(s, tail="", queue="q"):
    return f"/queues/{s.q(queue)}/jobs{tail}"


def status(s, method, path, body=None, **more):
    """Status and the ok/error part of an answer, for a compact table."""
    n = len(s.transcript)
    code, got = s.http(method, path, body, **more)
    del s.transcript[n:]
    if isinstance(got, dict):
        return [code, got.get("error", got["ok"] if "ok" in got else sorted(got))]
    return [code, got]


@scenario
def add_and_get(s):
    """POST a job with many options, then read it back by id."""
    _, got = s.http(
        "POST",
        jobs(s),
        {
            "name": "send",
            "data": {"to": "x"},
            "priority": 3,
            "delay": 60000,
            "maxAttempts": 5,
            "backoff": 250,
            "timeout": 1000,
            "removeOnComplete": True,
            "removeOnFail": True,
            "durable": True,
            "ttl": 99999999,
            "uniqueKey": "k",
            "groupId": "g",
            "tags": ["t"],
            "lifo": True,
        },
        keep=["content-type"],
    )
    s.http("GET", "/jobs/" + got["id"])
    s.http("GET", "/jobs/" + s.uid("nobody"))


@scenario
def add_defaults_and_aliases(s):
    """attempts stands for maxAttempts; a name that is no text is default; data may be anything or missing."""
    for body in (
        {"data": 1, "attempts": 9},
        {"data": {"name": "inside"}},
        {"name": 5, "data": None},
        {},
        {"data": [1, "x"], "maxAttempts": 2, "attempts": 4},
        {"name": "", "data": {}},
    ):
        n = len(s.transcript)
        code, got = s.http("POST", jobs(s), body)
        del s.transcript[n:]
        if not got["ok"]:
            s.note([code, got["error"]])
            continue
        j = s.quiet.cmd(cmd="GetJob", id=got["id"])["job"]
        s.note([code, j["name"], j.get("data"), j["maxAttempts"]])


@scenario
def add_refusals(s):
    """Broken JSON, bad options and bad queue names answer 400 with the text of the command."""
    s.http("POST", jobs(s), body=b"{broken", headers={"content-type": "application/json"})
    s.http("POST", jobs(s), body=b"", headers={"content-type": "application/json"})
    s.http("POST", jobs(s), {"data": {}, "priority": "x"})
    s.http("POST", jobs(s), {"data": {}, "delay": -1})
    s.http("POST", jobs(s), {"data": {}, "dependsOn": [s.uid("nobody")]})
    s.http("POST", jobs(s), {"data": {}, "groupId": ""})
    s.http("POST", "/queues/a%20b/jobs", {"data": {}})
    s.http("POST", "/queues/" + "q" * 257 + "/jobs", {"data": {}})
    s.cmd(cmd="Count", queue=s.q())


@scenario
def add_with_custom_id(s):
    """jobId names the job; adding it again answers the same id; look-up by custom id."""
    s.http("POST", jobs(s), {"name": "a", "data": {"v": 1}, "jobId": s.uid("own")})
    s.http("POST", jobs(s), {"name": "b", "data": {"v": 2}, "jobId": s.uid("own")})
    s.http("GET", "/jobs/custom/" + s.uid("own"))
    s.http("GET", "/jobs/custom/" + s.uid("nobody"))
    s.cmd(cmd="Count", queue=s.q())


@scenario
def bulk_add(s):
    """Bulk add answers the ids in order; a bad entry refuses all; an empty or missing list adds nothing."""
    s.http(
        "POST",
        jobs(s, "/bulk"),
        {
            "jobs": [
                {"name": "a", "data": {"v": 1}},
                {"data": {"v": 2}, "priority": 4},
                {"name": "c", "data": {}, "customId": s.uid("c")},
            ]
        },
    )
    s.http("POST", jobs(s, "/bulk"), {"jobs": [{"name": "x", "data": {}}, {"name": "y", "data": {}, "delay": -1}]})
    s.http("POST", jobs(s, "/bulk"), {"jobs": []})
    s.http("POST", jobs(s, "/bulk"), {})
    s.http("POST", jobs(s, "/bulk"), body=b"[", headers={"content-type": "application/json"})
    s.note([[j["name"], j["priority"]] for j in s.quiet.cmd(cmd="GetJobs", queue=s.q())["jobs"]])


@scenario
def pull_one(s):
    """GET on the jobs of a queue pulls one without a lock; an empty queue answers null at once or after timeout."""
    push(s, "a")
    _, got = s.http("GET", jobs(s))
    s.note(sorted(got))
    s.http("GET", jobs(s))
    s.http("GET", jobs(s) + "?timeout=50")
    s.http("GET", jobs(s) + "?timeout=-5")
    s.http("GET", jobs(s) + "?timeout=60001")
    s.http("GET", "/queues/a%20b/jobs")
    s.cmd(cmd="GetJobCounts", queue=s.q())


@scenario
def long_poll(s):
    """GET with a timeout waits for a job that becomes due within it."""
    push(s, "late", delay=400)
    _, got = s.http("GET", jobs(s) + "?timeout=8000")
    s.note(got["job"]["name"] if got.get("job") else None)


@scenario
def pull_batch(s):
    """pull-batch with and without an owner, on an empty queue, and with a bad count."""
    for n in "abc":
        push(s, n)
    _, got = s.http("POST", jobs(s, "/pull-batch"), {"count": 2})
    s.note([[j["name"] for j in got["jobs"]], sorted(got)])
    _, got = s.http("POST", jobs(s, "/pull-batch"), {"count": 5, "owner": "w", "lockTtl": 30000})
    s.note([[j["name"] for j in got["jobs"]], len(got["tokens"])])
    s.http("POST", jobs(s, "/pull-batch"), {"count": 5, "owner": "w", "timeout": 0})
    s.http("POST", jobs(s, "/pull-batch"), {"count": 0})
    s.http("POST", jobs(s, "/pull-batch"), {"count": 1001})


@scenario
def acknowledge(s):
    """ACK over HTTP with result, state, result and children afterwards; a second one is 400."""
    i = push(s)
    s.http("POST", f"/jobs/{i}/ack", {"result": 1})
    take(s)
    s.http("POST", f"/jobs/{i}/ack", {"result": {"sent": [1, 2]}})
    s.http("GET", f"/jobs/{i}/state")
    s.http("GET", f"/jobs/{i}/result")
    s.http("GET", f"/jobs/{i}/children")
    s.http("POST", f"/jobs/{i}/ack", {})
    s.http("GET", f"/jobs/{s.uid('nobody')}/state")
    s.http("GET", f"/jobs/{s.uid('nobody')}/result")


@scenario
def locked_jobs_need_their_token(s):
    """ACK and FAIL of a locked job: no token, a wrong one, the right one."""
    i, k = push(s), push(s)
    a, b = take(s, owner="w"), take(s, owner="w")
    s.http("POST", f"/jobs/{i}/ack")
    s.http("POST", f"/jobs/{i}/ack", {"token": "wrong"})
    s.http("POST", f"/jobs/{i}/ack", {"token": a["token"]})
    s.http("POST", f"/jobs/{k}/fail", {"error": "x"})
    s.http("POST", f"/jobs/{k}/fail", {"error": "x", "token": b["token"], "unrecoverable": True, "stack": ["l1", "l2"]})
    s.http("GET", f"/jobs/{k}/state")
    s.http("POST", f"/jobs/{k}/ack", body=b"{oops", headers={"content-type": "application/json"})


@scenario
def batch_acknowledge(s):
    """ack-batch with results; unequal lengths; an id that is not active."""
    ids = [push(s) for _ in range(3)]
    for _ in ids:
        take(s)
    s.http("POST", "/jobs/ack-batch", {"ids": ids[:2], "results": ["a", {"b": 1}]})
    s.note([s.quiet.cmd(cmd="GetResult", id=i).get("result") for i in ids])
    s.http("POST", "/jobs/ack-batch", {"ids": ids[2:], "results": [1, 2]})
    s.http("POST", "/jobs/ack-batch", {"ids": ids[:1]})
    s.http("POST", "/jobs/ack-batch", {"ids": []})


@scenario
def cancel(s):
    """DELETE cancels a queued job; what cannot be cancelled answers 200 with ok false."""
    i = push(s)
    s.http("DELETE", f"/jobs/{i}")
    s.http("DELETE", f"/jobs/{i}")
    k = push(s)
    take(s)
    s.http("DELETE", f"/jobs/{k}")


@scenario
def data_priority_progress(s):
    """Changing data and priority of a queued job, and progress of an active one."""
    i = push(s)
    s.http("PUT", f"/jobs/{i}/data", {"data": {"fresh": True}})
    s.http("PUT", f"/jobs/{i}/data", body=b"nope")
    s.http("PUT", f"/jobs/{s.uid('nobody')}/data", {"data": 1})
    s.http("PUT", f"/jobs/{i}/priority", {"priority": 7, "lifo": True})
    s.http("GET", f"/jobs/{i}/progress")
    s.http("POST", f"/jobs/{i}/progress", {"progress": 5})
    j = take(s)["job"]
    s.note([j["data"], j["priority"], j["lifo"]])
    s.http("PUT", f"/jobs/{i}/priority", {"priority": 1})
    s.http("POST", f"/jobs/{i}/progress", {"progress": 250, "message": "nearly"})
    s.http("GET", f"/jobs/{i}/progress")
    s.http("GET", f"/jobs/{s.uid('nobody')}/progress")


@scenario
def moving_a_job(s):
    """promote, delay, move-to-delayed, move-to-wait and discard, each where it fits and where it does not."""
    i = push(s, delay=60000)
    s.http("POST", f"/jobs/{i}/promote")
    s.http("POST", f"/jobs/{i}/promote")
    s.http("PUT", f"/jobs/{i}/delay", {"delay": 60000})
    s.http("GET", f"/jobs/{i}/state")
    s.http("POST", f"/jobs/{i}/move-to-wait", {})
    s.http("GET", f"/jobs/{i}/state")
    take(s)
    s.http("POST", f"/jobs/{i}/move-to-delayed", {"delay": 60000})
    s.http("GET", f"/jobs/{i}/state")
    s.http("POST", f"/jobs/{i}/discard")
    s.http("GET", f"/jobs/{i}/state")
    s.http("POST", f"/jobs/{i}/discard")
    s.http("POST", f"/jobs/{i}/move-to-delayed", {"delay": 5})
    s.note(
        [
            status(s, m, f"/jobs/{s.uid('nobody')}{t}", {"delay": 1} if m == "PUT" or t == "/move-to-delayed" else {})
            for m, t in (
                ("POST", "/promote"),
                ("PUT", "/delay"),
                ("POST", "/move-to-delayed"),
                ("POST", "/move-to-wait"),
                ("POST", "/discard"),
            )
        ]
    )


@scenario
def logs(s):
    """Adding, reading and clearing a job's log lines."""
    i = push(s)
    s.http("GET", f"/jobs/{i}/logs")
    s.http("POST", f"/jobs/{i}/logs", {"message": "one"})
    s.http("POST", f"/jobs/{i}/logs", {"message": "two", "level": "warn"})
    s.http("GET", f"/jobs/{i}/logs")
    s.http("DELETE", f"/jobs/{i}/logs")
    s.http("GET", f"/jobs/{i}/logs")
    s.http("POST", f"/jobs/{s.uid('nobody')}/logs", {"message": "x"})
    s.http("GET", f"/jobs/{s.uid('nobody')}/logs")


@scenario
def heartbeats_and_locks(s):
    """heartbeat, extend-lock and their batch forms."""
    i = push(s)
    s.http("POST", f"/jobs/{i}/heartbeat", {})
    t = take(s, owner="w")["token"]
    s.http("POST", f"/jobs/{i}/heartbeat", {"token": t, "duration": 5000})
    s.http("POST", f"/jobs/{i}/heartbeat", {"token": "wrong"})
    s.http("POST", f"/jobs/{i}/extend-lock", {"token": t, "duration": 5000})
    s.http("POST", f"/jobs/{i}/extend-lock", {"token": "wrong", "duration": 5000})
    s.http("POST", "/jobs/heartbeat-batch", {"ids": [i, s.uid("nobody")], "tokens": [t, "x"]})
    s.http("POST", "/jobs/extend-locks", {"ids": [i, i], "tokens": [t, "wrong"], "durations": [1000, 1000]})


@scenario
def wait_for_a_job(s):
    """wait answers at once for a finished job, and false after the timeout otherwise."""
    i = push(s)
    s.http("POST", f"/jobs/{i}/wait", {"timeout": 100})
    take(s)
    s.quiet.cmd(cmd="ACK", id=i, result={"v": 1})
    s.http("POST", f"/jobs/{i}/wait", {"timeout": 5000})
    s.http("POST", f"/jobs/{s.uid('nobody')}/wait", {"timeout": 100})
    s.http("POST", f"/jobs/{i}/wait", {"timeout": -1})
    s.http("POST", f"/jobs/{i}/wait", {"timeout": 600001})


@scenario
def children_of_a_parent(s):
    """The children route gives the values of completed children."""
    c = push(s, "c", "c")
    p = push(s, "p", childrenIds=[c], dependsOn=[c])
    take(s, "c")
    s.quiet.cmd(cmd="ACK", id=c, result=5)
    s.http("GET", f"/jobs/{p}/children")
    s.http("GET", f"/jobs/{s.uid('nobody')}/children")


@scenario
def wrong_methods_and_paths(s):
    """A known path with another method, and unknown paths, answer 404."""
    i = push(s)
    s.note(
        [
            status(s, m, p)
            for m, p in (
                ("PUT", f"/jobs/{i}"),
                ("POST", f"/jobs/{i}"),
                ("GET", f"/jobs/{i}/ack"),
                ("GET", f"/jobs/{i}/nothing"),
                ("GET", "/jobs"),
                ("GET", "/jobs/"),
                ("DELETE", f"/jobs/{i}/state"),
                ("PUT", jobs(s)),
                ("GET", jobs(s, "/bulk")),
                ("PATCH", f"/jobs/{i}/data"),
            )
        ]
    )
