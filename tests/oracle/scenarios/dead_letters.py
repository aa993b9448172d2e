"""The dead letter queue: listing, filters, statistics, retry, purge, removal and configuration."""

from oracle import scenario


def pick(job, *keys):
    return {k: (job or {}).get(k) for k in keys}


def die(s, n=1, name="q", **opts):
    """n jobs that failed for good, in order."""
    ids = []
    for k in range(n):
        c = s.quiet
        i = c.cmd(cmd="PUSH", queue=s.q(name), name="n", data={"k": k}, maxAttempts=1, **opts)["id"]
        c.cmd(cmd="PULL", queue=s.q(name))
        c.cmd(cmd="FAIL", id=i, error=f"err {k}")
        ids.append(i)
    return ids


def letters(s, name="q", **more):
    got = s.quiet.cmd(cmd="Dlq", queue=s.q(name), **more)
    return [[j["data"]["k"], e["error"]] for j, e in zip(got["jobs"], got["entries"])]


@scenario
def one_entry_in_full(s):
    """The whole answer for one dead job."""
    s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data={"k": 0}, maxAttempts=1)
    got = s.quiet.cmd(cmd="PULL", queue=s.q(), owner="w")
    s.cmd(cmd="FAIL", id=got["job"]["id"], token=got["token"], error="boom", stack=["at a"])
    s.cmd(cmd="Dlq", queue=s.q())
    e = s.quiet.cmd(cmd="Dlq", queue=s.q())["entries"][0]
    s.note(e["expiresAt"] - e["enteredAt"])


@scenario
def empty_and_unknown(s):
    """A queue without dead jobs, or that never existed."""
    s.cmd(cmd="Dlq", queue=s.q())
    s.cmd(cmd="GetDlqStats", queue=s.q())
    s.cmd(cmd="RetryDlq", queue=s.q())
    s.cmd(cmd="PurgeDlq", queue=s.q())
    s.cmd(cmd="RemoveDlqJob", queue=s.q(), jobId="no-such-job")


@scenario
def listing_and_count(s):
    """Oldest first; count cuts the list."""
    die(s, 4)
    s.note(letters(s))
    for count in (2, 0, -1, 100):
        s.note([count, letters(s, count=count)])


@scenario
def filters(s):
    """Filters by reason, age, retriability, expiry, with offset and limit."""
    die(s, 4)
    i = s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data={"k": 9})["id"]
    s.quiet.cmd(cmd="Discard", id=i)
    for f in (
        {},
        {"reason": "max_attempts_exceeded"},
        {"reason": "unknown"},
        {"reason": "stalled"},
        {"olderThan": 1000},
        {"newerThan": 1000},
        {"olderThan": 4102444800000.0},
        {"newerThan": 4102444800000.0},
        {"retriable": True},
        {"expired": True},
        {"limit": 2},
        {"offset": 3},
        {"offset": 1, "limit": 2},
        {"offset": 99},
        {"reason": "max_attempts_exceeded", "offset": 1, "limit": 1},
    ):
        s.note([sorted(f.items()), [x[0] for x in letters(s, filter=f)]])


@scenario
def statistics(s):
    """Counts by reason and queue; all reasons are named."""
    die(s, 2)
    i = s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data={"k": 9})["id"]
    s.quiet.cmd(cmd="Discard", id=i)
    s.cmd(cmd="GetDlqStats", queue=s.q())
    st = s.quiet.cmd(cmd="GetDlqStats", queue=s.q())["data"]["stats"]
    s.note(st["oldestEntry"] <= st["newestEntry"])


@scenario
def retry_one(s):
    """One dead job retried: counters reset, error history kept in its timeline, entry gone."""
    ids = die(s, 2)
    s.cmd(cmd="RetryDlq", queue=s.q(), jobId=ids[0])
    s.cmd(cmd="RetryDlq", queue=s.q(), jobId=ids[0])
    s.cmd(cmd="RetryDlq", queue=s.q(), jobId="no-such-job")
    job = s.quiet.cmd(cmd="GetJob", id=ids[0])["job"]
    s.note(pick(job, "state", "attempts", "stallCount", "maxAttempts", "startedAt"))
    s.note([t["state"] for t in job["timeline"]])
    s.note(letters(s))
    s.note(s.quiet.cmd(cmd="PULL", queue=s.q())["job"]["id"] == ids[0])


@scenario
def retry_all(s):
    """Without selection every dead job is retried."""
    die(s, 3)
    s.cmd(cmd="RetryDlq", queue=s.q())
    s.cmd(cmd="GetJobCounts", queue=s.q())
    s.note(letters(s))
    s.note([j["data"]["k"] for j in s.quiet.cmd(cmd="PULLB", queue=s.q(), count=10)["jobs"]])


@scenario
def retry_some(s):
    """By count, oldest first, and by filter, which wins over the rest."""
    ids = die(s, 5)
    s.cmd(cmd="RetryDlq", queue=s.q(), count=0)
    s.cmd(cmd="RetryDlq", queue=s.q(), count=-2)
    s.cmd(cmd="RetryDlq", queue=s.q(), count=1.7)
    s.note(letters(s))
    s.cmd(cmd="RetryDlq", queue=s.q(), jobId=ids[4], filter={"reason": "stalled"})
    s.cmd(cmd="RetryDlq", queue=s.q(), filter={"limit": 2})
    s.note(letters(s))


@scenario
def retry_refused_while_the_key_is_taken(s):
    """A dead job is not retried while another holds its unique key."""
    die(s, 1, uniqueKey="k")
    j = s.cmd(cmd="PUSH", queue=s.q(), name="n", data={"k": 1}, uniqueKey="k")["id"]
    s.cmd(cmd="RetryDlq", queue=s.q())
    s.cmd(cmd="Cancel", id=j)
    s.cmd(cmd="RetryDlq", queue=s.q())
    s.cmd(cmd="GetDeduplicationJobId", queue=s.q(), deduplicationId="k")


@scenario
def purge_and_remove(s):
    """Removal of one or all; what was removed is unknown afterwards."""
    ids = die(s, 3)
    s.cmd(cmd="RemoveDlqJob", queue=s.q(), jobId=ids[1])
    s.cmd(cmd="RemoveDlqJob", queue=s.q(), jobId=ids[1])
    s.cmd(cmd="RemoveDlqJob", queue=s.q("other"), jobId=ids[0])
    s.cmd(cmd="GetState", id=ids[1])
    s.note(letters(s))
    s.cmd(cmd="PurgeDlq", queue=s.q())
    s.cmd(cmd="PurgeDlq", queue=s.q())
    s.cmd(cmd="GetState", id=ids[0])
    s.cmd(cmd="GetJob", id=ids[0])
    s.cmd(cmd="GetJobCounts", queue=s.q())


@scenario
def configuration(s):
    """Defaults, partial changes, rounding and values that are ignored."""
    s.cmd(cmd="GetDlqConfig", queue=s.q())
    for c in (
        {"autoRetry": True, "autoRetryInterval": 5000, "maxAutoRetries": 2, "maxAge": 86400000, "maxEntries": 50},
        {"autoRetryInterval": 1500.9, "maxAutoRetries": 1.5, "maxEntries": 7.9},
        {"autoRetryInterval": -5, "maxAutoRetries": -1, "maxAge": -1, "maxEntries": 0},
        {"autoRetry": "yes", "maxEntries": "many", "maxAutoRetries": "x", "unknown": 1},
        {"autoRetry": False},
        {},
    ):
        s.cmd(cmd="SetDlqConfig", queue=s.q(), config=c)
        s.cmd(cmd="GetDlqConfig", queue=s.q())
    s.cmd(cmd="GetDlqConfig", queue=s.q("other"))


@scenario
def bounded_entries(s):
    """Beyond maxEntries the oldest go, also when the bound is lowered."""
    s.cmd(cmd="SetDlqConfig", queue=s.q(), config={"maxEntries": 3})
    ids = die(s, 5)
    s.note(letters(s))
    s.cmd(cmd="GetState", id=ids[0])
    s.cmd(cmd="SetDlqConfig", queue=s.q(), config={"maxEntries": 1})
    s.note(letters(s))
    s.cmd(cmd="GetJobCounts", queue=s.q())


@scenario
def auto_retry_schedules(s):
    """With auto retry on, an entry carries the time of its next retry."""
    s.cmd(cmd="SetDlqConfig", queue=s.q(), config={"autoRetry": True, "autoRetryInterval": 600000})
    die(s)
    e = s.quiet.cmd(cmd="Dlq", queue=s.q())["entries"][0]
    s.note([e["nextRetryAt"] - e["enteredAt"], e["retryCount"], e["lastRetryAt"]])
    s.note(letters(s, filter={"retriable": True}))


@scenario
def completed_jobs_retried(s):
    """RetryCompleted: one, some or all completed jobs run again without their result."""
    ids = []
    for k in range(4):
        i = s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data={"k": k})["id"]
        s.quiet.cmd(cmd="PULL", queue=s.q())
        s.quiet.cmd(cmd="ACK", id=i, result=k)
        s.sleep(0.01)
        ids.append(i)
    s.cmd(cmd="RetryCompleted", queue=s.q(), id=ids[2])
    s.cmd(cmd="GetState", id=ids[2])
    s.cmd(cmd="GetResult", id=ids[2])
    s.note(pick(s.quiet.cmd(cmd="GetJob", id=ids[2])["job"], "attempts", "progress", "completedAt", "returnvalue"))
    s.cmd(cmd="RetryCompleted", queue=s.q(), id=ids[2])
    s.cmd(cmd="RetryCompleted", queue=s.q(), id="no-such-job")
    s.cmd(cmd="RetryCompleted", queue=s.q(), count=1)
    s.cmd(cmd="GetState", id=ids[0])
    s.cmd(cmd="RetryCompleted", queue=s.q())
    s.cmd(cmd="GetJobCounts", queue=s.q())
