"""Order of delivery, custom ids, unique keys and deduplication."""

from oracle import scenario


def pick(job, *keys):
    return {k: (job or {}).get(k) for k in keys}


def push(s, data, name="q", **opts):
    return s.quiet.cmd(cmd="PUSH", queue=s.q(name), name="n", data=data, **opts)["id"]


def drain_order(s, name="q"):
    return [j["data"] for j in s.quiet.cmd(cmd="PULLB", queue=s.q(name), count=100)["jobs"]]


@scenario
def first_in_first_out(s):
    """Equal jobs leave in the order they came, singly or in batches."""
    for n in range(5):
        push(s, n)
    s.quiet.cmd(cmd="PUSHB", queue=s.q(), jobs=[{"name": "n", "data": n} for n in range(5, 30)])
    s.note([s.quiet.cmd(cmd="PULL", queue=s.q())["job"]["data"] for _ in range(7)])
    s.note(drain_order(s))


@scenario
def higher_priority_first(s):
    """Higher numbers first, negative ones last, ties in order of arrival."""
    for n, p in enumerate((0, 5, -1, 5, 100, 0, -1000000, 1000000, 1)):
        push(s, [n, p], priority=p)
    s.note(drain_order(s))


@scenario
def lifo_within_a_priority(s):
    """LIFO jobs precede the others of their priority, newest first."""
    for data, opts in (
        ("a", {}),
        ("p5", {"priority": 5}),
        ("neg", {"priority": -1}),
        ("l1", {"lifo": True}),
        ("b", {}),
        ("l2", {"lifo": True}),
        ("p5l", {"priority": 5, "lifo": True}),
        ("old", {"timestamp": 1000}),
    ):
        push(s, data, **opts)
    s.note(drain_order(s))


@scenario
def retried_job_goes_behind(s):
    """A retried job queues by its new due time, behind jobs that were ready before."""
    push(s, "first", backoff=0)
    push(s, "second")
    got = s.quiet.cmd(cmd="PULL", queue=s.q())
    s.sleep(0.02)
    s.cmd(cmd="FAIL", id=got["job"]["id"], error="e")
    s.sleep(0.02)
    s.note(drain_order(s))


@scenario
def queues_do_not_mix(s):
    """Names that share a prefix are different queues."""
    push(s, "one", name="x")
    push(s, "two", name="x:y")
    s.note(drain_order(s, "x:y"))
    s.note(drain_order(s, "x"))


@scenario
def custom_id_is_the_id(s):
    """A custom id becomes the id and can be looked up as such."""
    c = s.uid("c")
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data={"v": 1}, jobId=c)
    s.cmd(cmd="GetJobByCustomId", customId=c)
    s.cmd(cmd="GetState", id=c)
    s.cmd(cmd="GetJobByCustomId", customId="no-such-id")
    got = s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, jobId="")
    s.note(got["id"] != "")


@scenario
def custom_id_of_a_live_job(s):
    """While the job lives, pushing its id again returns it and changes nothing, in whatever state, from whatever queue."""
    c = s.uid("c")
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data="old", jobId=c, delay=600000)
    s.cmd(cmd="PUSH", queue=s.q(), name="other", data="new", jobId=c, priority=5)
    s.cmd(cmd="PUSH", queue=s.q("elsewhere"), name="n", data="new", jobId=c)
    s.note(pick(s.quiet.cmd(cmd="GetJob", id=c)["job"], "data", "priority", "queue", "name", "state"))
    s.cmd(cmd="Promote", id=c)
    got = s.quiet.cmd(cmd="PULL", queue=s.q(), owner="w")
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data="new", jobId=c)
    s.cmd(cmd="GetState", id=c)
    s.cmd(cmd="Count", queue=s.q())
    s.cmd(cmd="ACK", id=c, token=got["token"])


@scenario
def custom_id_after_completion(s):
    """After completion the id starts a new life without the old result; before that the record is still found by id."""
    c = s.uid("c")
    s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data="one", jobId=c)
    token = s.quiet.cmd(cmd="PULL", queue=s.q(), owner="w")["token"]
    s.cmd(cmd="AddLog", id=c, message="old log")
    s.cmd(cmd="ACK", id=c, token=token, result="r1")
    s.cmd(cmd="GetJobByCustomId", customId=c)
    s.cmd(cmd="GetState", id=c)
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data="two", jobId=c)
    s.cmd(cmd="GetState", id=c)
    s.cmd(cmd="GetResult", id=c)
    s.cmd(cmd="GetLogs", id=c)
    s.cmd(cmd="GetJobCounts", queue=s.q())
    s.note(s.quiet.cmd(cmd="GetJob", id=c)["job"]["data"])


@scenario
def custom_id_after_failure(s):
    """After a terminal failure the id starts anew and its dead letter is gone."""
    c = s.uid("c")
    s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data="one", jobId=c, maxAttempts=1)
    token = s.quiet.cmd(cmd="PULL", queue=s.q(), owner="w")["token"]
    s.cmd(cmd="FAIL", id=c, token=token, error="e")
    s.cmd(cmd="GetJobByCustomId", customId=c)
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data="two", jobId=c)
    s.note(pick(s.quiet.cmd(cmd="GetJob", id=c)["job"], "data", "state", "attempts", "failedReason"))
    s.cmd(cmd="Dlq", queue=s.q())
    s.cmd(cmd="GetJobCounts", queue=s.q())


@scenario
def custom_id_during_retry(s):
    """A job waiting for its retry still holds its id."""
    c = s.uid("c")
    s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data="one", jobId=c)
    token = s.quiet.cmd(cmd="PULL", queue=s.q(), owner="w")["token"]
    s.cmd(cmd="FAIL", id=c, token=token, error="e")
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data="two", jobId=c)
    s.note(pick(s.quiet.cmd(cmd="GetJob", id=c)["job"], "data", "attempts"))


@scenario
def unique_key_returns_the_owner(s):
    """A second push with the key of an unfinished job gets that job's id."""
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data="first", uniqueKey="k")
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data="second", uniqueKey="k", priority=9)
    s.cmd(cmd="PUSH", queue=s.q("other"), name="n", data="third", uniqueKey="k")
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data="fourth", uniqueKey="K")
    s.cmd(
        cmd="PUSHB",
        queue=s.q(),
        jobs=[
            {"name": "n", "data": 5, "uniqueKey": "k"},
            {"name": "n", "data": 6, "uniqueKey": "m"},
            {"name": "n", "data": 7, "uniqueKey": "m"},
        ],
    )
    s.cmd(cmd="Count", queue=s.q())
    s.cmd(cmd="GetDeduplicationJobId", queue=s.q(), deduplicationId="k")
    s.cmd(cmd="GetDeduplicationJobId", queue=s.q(), deduplicationId="none")
    got = s.quiet.cmd(cmd="PULL", queue=s.q())
    s.note(got["job"]["data"])
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data="while active", uniqueKey="k")


@scenario
def unique_key_is_freed(s):
    """Completion, failure with or without retry, cancel and discard free the key."""
    for n, end in enumerate(("ACK", "FAIL", "FAIL-retry", "Cancel", "Discard")):
        q, c = s.q(f"u{n}"), s.quiet
        i = c.cmd(cmd="PUSH", queue=q, name="n", data=1, uniqueKey="k", maxAttempts=1 if end == "FAIL" else 3)["id"]
        token = c.cmd(cmd="PULL", queue=q, owner="w")["token"] if end not in ("Cancel", "Discard") else None
        c.cmd(cmd=end.split("-")[0], id=i, token=token)
        s.note([end, c.cmd(cmd="PUSH", queue=q, name="n", data=2, uniqueKey="k")["id"] != i])


@scenario
def dedup_ttl(s):
    """With a ttl the key is held only that long."""
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, uniqueKey="k", dedup={"ttl": 300})
    s.cmd(cmd="PUSH", queue=s.q("long"), name="n", data=1, uniqueKey="k", dedup={"ttl": 600000})
    s.sleep(0.6)
    s.cmd(cmd="GetDeduplicationJobId", queue=s.q(), deduplicationId="k")
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data=2, uniqueKey="k")
    s.cmd(cmd="PUSH", queue=s.q("long"), name="n", data=2, uniqueKey="k")
    s.cmd(cmd="Count", queue=s.q())


@scenario
def dedup_extend(s):
    """extend restarts the ttl on a duplicate and returns the owner, which must be queued."""
    d = {"ttl": 1200, "extend": True}
    i = s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, uniqueKey="k", dedup=d)["id"]
    s.sleep(0.8)
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data=2, uniqueKey="k", dedup=d)
    s.sleep(0.8)
    s.note(s.quiet.cmd(cmd="GetDeduplicationJobId", queue=s.q(), deduplicationId="k")["data"]["jobId"] == i)
    s.quiet.cmd(cmd="PULL", queue=s.q())
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data=3, uniqueKey="k", dedup={"ttl": 60000, "extend": True})


@scenario
def dedup_replace(s):
    """replace removes the queued owner in favour of the new job; it wins over extend."""
    i = s.cmd(cmd="PUSH", queue=s.q(), name="n", data="old", uniqueKey="k")["id"]
    j = s.cmd(cmd="PUSH", queue=s.q(), name="n", data="new", uniqueKey="k", dedup={"ttl": 60000, "replace": True})["id"]
    s.cmd(cmd="GetState", id=i)
    s.cmd(cmd="GetDeduplicationJobId", queue=s.q(), deduplicationId="k")
    s.cmd(
        cmd="PUSH",
        queue=s.q(),
        name="n",
        data="newest",
        uniqueKey="k",
        dedup={"ttl": 60000, "replace": True, "extend": True},
    )
    s.cmd(cmd="GetState", id=j)
    s.note(drain_order(s))


@scenario
def dedup_keys_removed_by_command(s):
    """Keys can be removed by name or by job."""
    i = s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, uniqueKey="k")["id"]
    s.cmd(cmd="RemoveDeduplicationKey", queue=s.q(), deduplicationId="none")
    s.cmd(cmd="RemoveDeduplicationKey", queue=s.q(), deduplicationId="k")
    s.cmd(cmd="RemoveDeduplicationKey", queue=s.q(), deduplicationId="k")
    s.cmd(cmd="RemoveJobDeduplicationKey", id=i)
    j = s.cmd(cmd="PUSH", queue=s.q(), name="n", data=2, uniqueKey="k")["id"]
    s.cmd(cmd="RemoveJobDeduplicationKey", id=j)
    s.cmd(cmd="RemoveJobDeduplicationKey", id=j)
    s.cmd(cmd="RemoveJobDeduplicationKey", id="no-such-job")
    s.cmd(cmd="Count", queue=s.q())


@scenario
def debounce_fields_do_nothing(s):
    """debounceId alone deduplicates nothing on the server."""
    a = s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, debounceId="d", debounceTtl=5000)["id"]
    b = s.cmd(cmd="PUSH", queue=s.q(), name="n", data=2, debounceId="d", debounceTtl=5000)["id"]
    s.note([a != b, drain_order(s)])
