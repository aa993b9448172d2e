"""HTTP routes of queues: control, counts, lists, dead letters, limits and configuration."""

from oracle import scenario


def push(s, name="j", **opts):
    return s.quiet.cmd(cmd="PUSH", queue=s.q(), name=name, data=opts.pop("data", {"n": name}), **opts)["id"]


def take(s, **more):
    return s.quiet.cmd(cmd="PULL", queue=s.q(), **more)


def complete(s, name="done", **opts):
    i = push(s, name, **opts)
    take(s)
    s.quiet.cmd(cmd="ACK", id=i, result={"r": 1})
    return i


def dead(s, name="dead", error="x"):
    i = push(s, name, maxAttempts=1)
    take(s)
    s.quiet.cmd(cmd="FAIL", id=i, error=error)
    return i


def path(s, tail):
    return f"/queues/{s.q()}/{tail}"


def silently(s, method, url, body=None, **more):
    """An HTTP exchange that is not recorded."""
    n = len(s.transcript)
    got = s.http(method, url, body, **more)
    del s.transcript[n:]
    return got


def names(s, query):
    got = silently(s, "GET", path(s, "jobs/list" + query))[1]
    return [j["name"] for j in got["jobs"]] if got["ok"] else got


@scenario
def counts_in_every_state(s):
    """counts, count and priority-counts of a queue with a job in each state."""
    complete(s), dead(s)
    push(s, "active"), take(s)
    push(s, "w"), push(s, "p", priority=5), push(s, "d", delay=60000)
    push(s, "g", dependsOn=[push(s, "w2")])
    s.http("GET", path(s, "counts"))
    s.http("GET", path(s, "count"))
    s.http("GET", path(s, "priority-counts"))
    s.http("GET", f"/queues/{s.uid('nobody')}/counts")
    s.http("GET", f"/queues/{s.uid('nobody')}/count")
    s.http("GET", f"/queues/{s.uid('nobody')}/priority-counts")


@scenario
def pause_and_resume(s):
    """pause, resume and paused; a paused queue shows its ready jobs as paused and delivers nothing."""
    push(s, "w"), push(s, "p", priority=1)
    s.http("GET", path(s, "paused"))
    s.http("POST", path(s, "pause"))
    s.http("POST", path(s, "pause"))
    s.http("GET", path(s, "paused"))
    s.http("GET", path(s, "counts"))
    s.http("GET", path(s, "jobs"))
    s.note([names(s, "?state=waiting"), names(s, "?state=paused"), names(s, "")])
    s.http("POST", path(s, "resume"))
    s.http("GET", path(s, "paused"))
    s.http("GET", f"/queues/{s.uid('nobody')}/paused")


@scenario
def drain_and_obliterate(s):
    """drain removes what is queued; obliterate everything, and also succeeds where there is nothing."""
    complete(s)
    push(s), push(s, delay=60000)
    s.http("POST", path(s, "drain"))
    s.http("POST", path(s, "drain"))
    s.http("GET", path(s, "counts"))
    s.http("POST", path(s, "obliterate"))
    s.http("GET", path(s, "counts"))
    s.http("POST", f"/queues/{s.uid('nobody')}/obliterate")


@scenario
def clean(s):
    """clean by state and limit; nothing younger than grace, no unknown state; a broken body is 400."""
    ids = []
    for _ in range(3):
        ids.append(complete(s))
        s.sleep(0.02)
    dead(s)
    s.sleep(0.05)
    s.http("POST", path(s, "clean"), {"grace": 3600000, "state": "completed"})
    s.http("POST", path(s, "clean"), {"state": "completed", "limit": 2})
    s.http("POST", path(s, "clean"), {"grace": 0, "state": "failed"})
    s.http("POST", path(s, "clean"), {"grace": 0, "state": "active"})
    s.http("POST", path(s, "clean"), {"grace": 0, "state": "nonsense"})
    push(s)
    s.sleep(0.05)
    _, got = s.http("POST", path(s, "clean"))
    s.http("POST", path(s, "clean"), body=b"{")
    s.note([s.quiet.cmd(cmd="GetState", id=i)["state"] for i in ids])


@scenario
def promote_jobs(s):
    """promote-jobs promotes the oldest delayed jobs, count of them or all."""
    for n in "abcd":
        push(s, n, delay=60000)
    s.http("POST", path(s, "promote-jobs"), {"count": 2})
    s.note(names(s, "?state=waiting"))
    s.http("POST", path(s, "promote-jobs"), {"count": 0})
    s.http("POST", path(s, "promote-jobs"))
    s.http("POST", path(s, "promote-jobs"), {})
    s.http("GET", path(s, "counts"))


@scenario
def retry_completed(s):
    """retry-completed runs finished jobs again, one by id or all."""
    a, b = complete(s, "a"), complete(s, "b")
    s.http("POST", path(s, "retry-completed"), {"id": a})
    s.note([s.quiet.cmd(cmd="GetState", id=i)["state"] for i in (a, b)])
    s.http("GET", f"/jobs/{a}/result")
    s.http("POST", path(s, "retry-completed"), {"id": s.uid("nobody")})
    s.http("POST", path(s, "retry-completed"), {})
    s.http("GET", path(s, "counts"))


@scenario
def job_list_filters(s):
    """state, status and states parameters, single, repeated and comma-separated; limit and offset."""
    complete(s, "done"), dead(s, "dead")
    push(s, "w1"), push(s, "w2"), push(s, "p", priority=2), push(s, "d", delay=60000)
    for q in (
        "",
        "?state=waiting",
        "?status=waiting",
        "?states=waiting,delayed",
        "?state=waiting&state=failed",
        "?state=%20waiting%20,,prioritized",
        "?state=nonsense",
        "?state=completed&limit=1",
        "?limit=2",
        "?limit=2&offset=1",
        "?offset=5",
        "?limit=0",
        "?state=waiting,waiting",
    ):
        s.note([q, names(s, q)])
    s.http("GET", path(s, "jobs/list?state=failed"))
    s.http("GET", f"/queues/{s.uid('nobody')}/jobs/list")


@scenario
def list_gives_results_and_reasons(s):
    """Listed jobs carry their state, and what they returned or why they failed."""
    complete(s, "done"), dead(s, "dead", error="broken")
    got = silently(s, "GET", path(s, "jobs/list"))[1]["jobs"]
    s.note([[j["name"], j["state"], j.get("returnvalue"), j.get("failedReason")] for j in got])


@scenario
def dead_letter_list(s):
    """The DLQ route gives whole entries with the total, pages with limit and offset, and ignores useless numbers."""
    for n in "abc":
        dead(s, n, error=n)
    s.http("GET", path(s, "dlq?limit=1"))
    for q in (
        "",
        "?limit=2",
        "?offset=1",
        "?limit=1&offset=1",
        "?offset=9",
        "?limit=x",
        "?limit=0",
        "?limit=-1",
        "?offset=-1",
        "?limit=1.9",
    ):
        got = silently(s, "GET", path(s, "dlq" + q))[1]
        s.note([q, [e["job"]["name"] for e in got["entries"]], got["total"]])
    s.http("GET", f"/queues/{s.uid('nobody')}/dlq")


@scenario
def dead_letter_stats(s):
    """Statistics by reason and queue, empty and filled."""
    s.http("GET", path(s, "dlq/stats"))
    dead(s), dead(s)
    s.quiet.cmd(cmd="Discard", id=push(s))
    s.http("GET", path(s, "dlq/stats"))


@scenario
def dead_letter_retry_and_purge(s):
    """retry of one, of an unknown id and of all; purge."""
    ids = [dead(s, n) for n in "abc"]
    s.http("POST", path(s, "dlq/retry"), {"jobId": ids[1]})
    s.note(names(s, "?state=waiting"))
    s.http("POST", path(s, "dlq/retry"), {"jobId": s.uid("nobody")})
    s.http("POST", path(s, "dlq/retry"))
    s.http("POST", path(s, "dlq/retry"), body=b"{")
    dead(s, "d"), s.http("GET", path(s, "counts"))
    s.quiet.cmd(cmd="Discard", id=push(s))
    s.http("POST", path(s, "dlq/purge"))
    s.http("POST", path(s, "dlq/purge"))


@scenario
def rate_limit_route(s):
    """PUT and DELETE of the rate limit; refusals answer 200 with ok false."""
    push(s), push(s)
    s.http("PUT", path(s, "rate-limit"), {"limit": 1, "duration": 60000})
    s.note(s.quiet.cmd(cmd="GetQueueLimits", queue=s.q())["data"]["limits"]["rateLimit"]["max"])
    s.note([take(s)["job"]["name"], take(s)["job"]])
    s.http("PUT", path(s, "rate-limit"), {})
    s.http("PUT", path(s, "rate-limit"), {"limit": "many"})
    s.http("PUT", path(s, "rate-limit"), body=b"{")
    s.http("DELETE", path(s, "rate-limit"))
    s.note(take(s)["job"]["name"])
    s.http("DELETE", path(s, "rate-limit"))


@scenario
def concurrency_route(s):
    """PUT takes concurrency or limit, the former first; DELETE removes it."""

    def now():
        return s.quiet.cmd(cmd="GetQueueLimits", queue=s.q())["data"]["limits"]["concurrencyLimit"]

    s.http("PUT", path(s, "concurrency"), {"concurrency": 3}), s.note(now())
    s.http("PUT", path(s, "concurrency"), {"limit": 4}), s.note(now())
    s.http("PUT", path(s, "concurrency"), {"limit": 5, "concurrency": 6}), s.note(now())
    s.http("PUT", path(s, "concurrency"), {})
    s.http("DELETE", path(s, "concurrency")), s.note(now())


@scenario
def stall_and_dlq_config(s):
    """Reading the defaults, changing some members (bare or under config), reading again."""
    s.http("GET", path(s, "stall-config"))
    s.http("PUT", path(s, "stall-config"), {"config": {"stallInterval": 1000, "maxStalls": 5}})
    s.http("PUT", path(s, "stall-config"), {"enabled": False})
    s.http("GET", path(s, "stall-config"))
    s.http("GET", path(s, "dlq-config"))
    s.http("PUT", path(s, "dlq-config"), {"config": {"autoRetry": True, "maxEntries": 7}})
    s.http("PUT", path(s, "dlq-config"), {"maxAge": None})
    s.http("GET", path(s, "dlq-config"))
    s.http("PUT", path(s, "dlq-config"), body=b"{")


@scenario
def queue_lists(s):
    """The list of names and the summary (a bare array), as far as this queue is concerned."""
    complete(s), dead(s), push(s), push(s, priority=2), push(s, delay=60000)
    code, got = silently(s, "GET", "/queues")
    s.note([code, got["ok"], s.q() in got["queues"], sorted(got)])
    code, got = silently(s, "GET", "/queues/summary")
    s.note([code, type(got).__name__, [q for q in got if q["name"] == s.q()]])


@scenario
def names_are_decoded(s):
    """A percent-encoded queue name is decoded; the path itself is matched literally."""
    push(s)
    enc = "".join(f"%{ord(c):02X}" for c in s.q())
    s.note(silently(s, "GET", f"/queues/{enc}/count")[1])
    s.note(
        [
            silently(s, m, p)[0]
            for m, p in (
                ("GET", f"/queues/{s.q()}"),
                ("DELETE", f"/queues/{s.q()}"),
                ("GET", path(s, "counts/")),
                ("GET", "/queues/"),
                ("GET", "/Queues"),
                ("POST", "/queues"),
                ("PUT", path(s, "pause")),
                ("GET", path(s, "pause")),
                ("POST", path(s, "counts")),
                ("GET", path(s, "rate-limit")),
                ("GET", path(s, "concurrency")),
                ("POST", path(s, "dlq")),
                ("GET", path(s, "nothing")),
            )
        ]
    )


@scenario
def dashboard_detail(s):
    """The dashboard page of one queue, with and without job lists, paused, unknown and with a bad name."""
    complete(s), dead(s), push(s), push(s, priority=2), push(s, delay=60000)
    s.http("GET", f"/dashboard/queues/{s.q()}")
    got = silently(s, "GET", f"/dashboard/queues/{s.q()}?includeJobs=true")[1]
    s.note({k: [len(v), sorted(v[0]) if v else []] for k, v in got["jobs"].items()})
    s.note("jobs" in silently(s, "GET", f"/dashboard/queues/{s.q()}?includeJobs=1")[1])
    s.quiet.cmd(cmd="Pause", queue=s.q())
    got = silently(s, "GET", f"/dashboard/queues/{s.q()}?includeJobs=true")[1]
    s.note([got["paused"], got["counts"]["paused"], {k: len(v) for k, v in got["jobs"].items()}])
    s.http("GET", f"/dashboard/queues/{s.uid('nobody')}")
    s.http("GET", "/dashboard/queues/a%20b")
