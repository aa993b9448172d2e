"""Queue control, counts, listings and pages."""

from oracle import scenario

ALL = ("waiting", "prioritized", "delayed", "active", "completed", "failed", "waiting-children", "paused")


def pick(job, *keys):
    return {k: (job or {}).get(k) for k in keys}


def zoo(s, name="q"):
    """One queue holding jobs in every state; the data names the state. Unrecorded. Gives ids by state."""
    q, c, ids = s.q(name), s.quiet, {}

    def push(state, n, **opts):
        return c.cmd(cmd="PUSH", queue=q, name="n", data=f"{state}{n}", timestamp=1_000_000_000_000.0 + n, **opts)["id"]

    for n, state in enumerate(("completed", "failed", "active", "active")):
        i = push(state, n, maxAttempts=1)
        c.cmd(cmd="PULL", queue=q)
        if state == "completed":
            c.cmd(cmd="ACK", id=i, result="r")
        elif state == "failed":
            c.cmd(cmd="FAIL", id=i, error="e")
        ids[state] = i
    ids["waiting"] = push("waiting", 10)
    push("waiting", 11)
    push("waiting", 12)
    ids["prioritized"] = push("prioritized", 13, priority=3)
    push("prioritized", 14, priority=8)
    ids["delayed"] = c.cmd(cmd="PUSH", queue=q, name="n", data="delayed15", delay=900000)["id"]
    c.cmd(cmd="PUSH", queue=q, name="n", data="delayed16", delay=600000)
    dep = c.cmd(cmd="PUSH", queue=s.q("dep"), name="n", data="dep")["id"]
    ids["waiting-children"] = c.cmd(cmd="PUSH", queue=q, name="n", data="waiting-children17", dependsOn=[dep])["id"]
    return ids


def names(s, name="q", **more):
    return [j["data"] for j in s.quiet.cmd(cmd="GetJobs", queue=s.q(name), **more)["jobs"]]


@scenario
def pause_and_resume(s):
    """Pause and resume are idempotent; a paused queue hands out nothing but takes jobs."""
    s.cmd(cmd="IsPaused", queue=s.q())
    s.cmd(cmd="Pause", queue=s.q())
    s.cmd(cmd="Pause", queue=s.q())
    s.cmd(cmd="IsPaused", queue=s.q())
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1)
    s.cmd(cmd="PULL", queue=s.q(), owner="w")
    s.cmd(cmd="PULLB", queue=s.q(), count=5)
    s.cmd(cmd="Resume", queue=s.q())
    s.cmd(cmd="Resume", queue=s.q())
    s.cmd(cmd="IsPaused", queue=s.q())
    s.note(s.quiet.cmd(cmd="PULL", queue=s.q())["job"]["data"])


@scenario
def pause_leaves_active_jobs_alone(s):
    """Jobs already running can be finished while the queue is paused."""
    s.quiet.cmd(cmd="PUSHB", queue=s.q(), jobs=[{"name": "n", "data": n} for n in range(2)])
    a = s.quiet.cmd(cmd="PULL", queue=s.q(), owner="w")
    b = s.quiet.cmd(cmd="PULL", queue=s.q(), owner="w")
    s.cmd(cmd="Pause", queue=s.q())
    s.cmd(cmd="ACK", id=a["job"]["id"], token=a["token"])
    s.cmd(cmd="FAIL", id=b["job"]["id"], token=b["token"], error="e")
    s.cmd(cmd="GetState", id=a["job"]["id"])
    s.cmd(cmd="GetState", id=b["job"]["id"])


@scenario
def counts_of_a_paused_queue(s):
    """While paused, ready jobs count as paused; single states do not change."""
    ids = zoo(s)
    s.cmd(cmd="GetJobCounts", queue=s.q())
    s.cmd(cmd="Pause", queue=s.q())
    s.cmd(cmd="GetJobCounts", queue=s.q())
    for state in ("waiting", "prioritized", "delayed"):
        s.note(s.quiet.cmd(cmd="GetState", id=ids[state])["state"])
    for state in ("waiting", "prioritized", "delayed", "paused"):
        s.note([state, names(s, state=state)])
    s.note(names(s))
    s.cmd(cmd="Count", queue=s.q())


@scenario
def counts_per_state_and_priority(s):
    """Count, GetJobCounts and GetCountsPerPriority over jobs in every state."""
    zoo(s)
    s.cmd(cmd="Count", queue=s.q())
    s.cmd(cmd="GetJobCounts", queue=s.q())
    s.cmd(cmd="GetCountsPerPriority", queue=s.q())
    for cmd in ("Count", "GetJobCounts", "GetCountsPerPriority"):
        s.cmd(cmd=cmd, queue=s.q("never-used"))


@scenario
def listing_by_state(s):
    """Each state lists its own jobs; several can be asked at once; unknown ones list nothing."""
    zoo(s)
    for state in ALL + ("wait", "nonsense"):
        s.note([state, names(s, state=state)])
    for states in (["waiting", "delayed"], ["failed", "completed"], ["nonsense"], ["active", "nonsense"]):
        s.note([states, names(s, state=states)])
    s.note(sorted(names(s)))
    s.note(sorted(names(s, state=[])))
    s.note(names(s, name="never-used"))


@scenario
def listing_shows_state_and_outcome(s):
    """Listed jobs carry their state, result and reason."""
    zoo(s)
    for j in s.quiet.cmd(cmd="GetJobs", queue=s.q())["jobs"]:
        s.note(pick(j, "data", "state", "returnvalue", "failedReason", "attempts"))


@scenario
def pages(s):
    """Offset, limit and direction; reversal comes before the cut."""
    for n in range(7):
        s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data=n, timestamp=1_000_000_000_000.0 + n)
    for more in (
        {},
        {"limit": 3},
        {"offset": 5},
        {"offset": 2, "limit": 2},
        {"asc": False},
        {"asc": False, "limit": 2},
        {"asc": False, "offset": 1, "limit": 2},
        {"limit": 0},
        {"offset": 99},
        {"asc": True, "limit": 1},
    ):
        s.note([sorted(more.items()), names(s, **more), names(s, state="waiting", **more)])


@scenario
def single_job_views(s):
    """GetJob and GetState for each state."""
    ids = zoo(s)
    for state, i in sorted(ids.items()):
        s.cmd(cmd="GetState", id=i)
        s.note(
            pick(
                s.quiet.cmd(cmd="GetJob", id=i)["job"],
                "state",
                "data",
                "attempts",
                "returnvalue",
                "failedReason",
                "priority",
            )
        )
    s.cmd(cmd="GetJob", id="no-such-job")
    s.cmd(cmd="GetState", id="no-such-job")


@scenario
def drain(s):
    """Drain removes queued jobs and leaves active, finished and gated ones."""
    ids = zoo(s)
    s.cmd(cmd="Drain", queue=s.q())
    s.cmd(cmd="GetJobCounts", queue=s.q())
    s.cmd(cmd="GetState", id=ids["waiting"])
    s.cmd(cmd="GetState", id=ids["delayed"])
    s.cmd(cmd="Drain", queue=s.q())
    s.cmd(cmd="Drain", queue=s.q("never-used"))


@scenario
def obliterate(s):
    """Obliterate removes everything, running jobs and settings included."""
    ids = zoo(s)
    s.cmd(cmd="Pause", queue=s.q())
    s.cmd(cmd="SetDlqConfig", queue=s.q(), config={"maxEntries": 5})
    s.cmd(cmd="Obliterate", queue=s.q())
    s.cmd(cmd="GetJobCounts", queue=s.q())
    for state in sorted(ids):
        s.note([state, s.quiet.cmd(cmd="GetState", id=ids[state])["state"]])
    s.cmd(cmd="ACK", id=ids["active"])
    s.cmd(cmd="IsPaused", queue=s.q())
    s.cmd(cmd="GetDlqConfig", queue=s.q())
    s.cmd(cmd="GetResult", id=ids["completed"])
    s.cmd(cmd="Obliterate", queue=s.q("never-used"))
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1)
    s.cmd(cmd="GetJobCounts", queue=s.q())


@scenario
def queue_names_listed(s):
    """ListQueues names queues that were pushed to or paused, as strings."""
    s.quiet.cmd(cmd="PUSH", queue=s.q("a"), name="n", data=1)
    s.quiet.cmd(cmd="Pause", queue=s.q("b"))
    s.quiet.cmd(cmd="PULL", queue=s.q("c"))
    mine = [n for n in s.quiet.cmd(cmd="ListQueues")["queues"] if n.startswith(s.run)]
    s.note(sorted(mine))
    s.quiet.cmd(cmd="Obliterate", queue=s.q("a"))
    s.note(s.q("a") in s.quiet.cmd(cmd="ListQueues")["queues"])


@scenario
def clean_queued_jobs(s):
    """Clean without a state removes queued jobs at least as old as the grace, oldest first, up to the limit."""
    for n in range(5):
        s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data=n, timestamp=1000 + n)
    s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data="young")
    got = s.quiet.cmd(cmd="Clean", queue=s.q(), grace=3600000, limit=2)
    s.note([got["count"], len(got["ids"]), names(s)])
    got = s.quiet.cmd(cmd="Clean", queue=s.q(), grace=3600000, state="waiting")
    s.note([got["count"], names(s)])
    s.cmd(cmd="Clean", queue=s.q(), grace=3600000)
    s.cmd(cmd="Clean", queue=s.q(), grace=0, limit=0)
    s.cmd(cmd="Clean", queue=s.q(), grace=0, limit=-5)
    s.sleep(0.05)
    s.note(s.quiet.cmd(cmd="Clean", queue=s.q(), grace=0)["count"])
    s.cmd(cmd="Clean", queue=s.q("never-used"), grace=0)


@scenario
def clean_finished_jobs(s):
    """Clean of completed and failed jobs; active and unknown states clean nothing."""
    ids = zoo(s)
    s.sleep(0.05)
    for state in ("completed", "failed"):
        s.cmd(cmd="Clean", queue=s.q(), grace=600000, state=state)
        got = s.cmd(cmd="Clean", queue=s.q(), grace=0, state=state)
        s.note(got["ids"] == [ids[state]])
        s.cmd(cmd="GetState", id=ids[state])
        s.cmd(cmd="GetResult", id=ids[state])
    for state in ("active", "nonsense"):
        s.cmd(cmd="Clean", queue=s.q(), grace=0, state=state)
    s.cmd(cmd="GetJobCounts", queue=s.q())
