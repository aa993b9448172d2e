"""Commands on single jobs: promote, move, change, update, discard, cancel, and what each state allows."""

from oracle import scenario

STATES = ("waiting", "prioritized", "delayed", "waiting-children", "active", "completed", "failed", "unknown")


def pick(job, *keys):
    return {k: (job or {}).get(k) for k in keys}


def in_state(s, state, tag=""):
    """A job in the wanted state, set up without recording; gives (id, token or None)."""
    q, c = s.q(f"{state}{tag}"), s.quiet
    opts = {"prioritized": {"priority": 5}, "delayed": {"delay": 600000}, "failed": {"maxAttempts": 1}}.get(state, {})
    if state == "unknown":
        return "no-such-job", None
    if state == "waiting-children":
        dep = c.cmd(cmd="PUSH", queue=s.q("dep"), name="d", data=1)["id"]
        opts = {"dependsOn": [dep]}
    i = c.cmd(cmd="PUSH", queue=q, name="n", data={"v": 1}, **opts)["id"]
    token = None
    if state in ("active", "completed", "failed"):
        token = c.cmd(cmd="PULL", queue=q, owner="w")["token"]
    if state == "completed":
        c.cmd(cmd="ACK", id=i, token=token, result=1)
    if state == "failed":
        c.cmd(cmd="FAIL", id=i, token=token, error="e")
    return i, token


def matrix(s, cmd, **more):
    """The answer of one command, and the state after it, for a job in each state."""
    for state in STATES:
        i, token = in_state(s, state)
        got = s.quiet.cmd(cmd=cmd, id=i, **({"token": token} if state == "active" else {}), **more)
        s.note([state, got["ok"], got.get("error") or got.get("data"), s.quiet.cmd(cmd="GetState", id=i)["state"]])


@scenario
def cancel_by_state(s):
    """Cancel removes jobs that have not started, and nothing else."""
    matrix(s, "Cancel")


@scenario
def promote_by_state(s):
    """Promote is for delayed jobs only."""
    matrix(s, "Promote")


@scenario
def change_priority_by_state(s):
    """ChangePriority is for queued jobs."""
    matrix(s, "ChangePriority", priority=7)


@scenario
def change_delay_by_state(s):
    """ChangeDelay is for queued and active jobs."""
    matrix(s, "ChangeDelay", delay=300000)


@scenario
def move_to_delayed_by_state(s):
    """MoveToDelayed is for queued and active jobs; its refusals name the state."""
    matrix(s, "MoveToDelayed", delay=300000)


@scenario
def move_to_wait_by_state(s):
    """MoveToWait requeues active, delayed and failed jobs, and leaves waiting ones alone."""
    matrix(s, "MoveToWait")


@scenario
def move_to_waiting_children_by_state(s):
    """MoveToWaitingChildren parks an active job."""
    matrix(s, "MoveToWaitingChildren")


@scenario
def discard_by_state(s):
    """Discard sends queued and active jobs to the dead letters."""
    matrix(s, "Discard")


@scenario
def update_by_state(s):
    """Update replaces the data of unfinished jobs."""
    matrix(s, "Update", data={"v": 2})


@scenario
def promoted_job_is_pulled(s):
    """A promoted job is due now; its other fields stay."""
    i = s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, delay=600000, priority=3)["id"]
    s.cmd(cmd="PULL", queue=s.q())
    s.cmd(cmd="Promote", id=i)
    s.cmd(cmd="GetState", id=i)
    s.note(pick(s.quiet.cmd(cmd="PULL", queue=s.q())["job"], "priority", "attempts", "data"))
    s.cmd(cmd="Promote", id=i)


@scenario
def promote_wakes_a_parked_pull(s):
    """A pull that waits gets the job as soon as it is promoted."""
    i = s.cmd(cmd="PUSH", queue=s.q(), name="n", data="due", delay=600000)["id"]
    s.send(cmd="PULL", queue=s.q(), timeout=15000)
    s.sleep(0.2)
    s.conn("b").cmd(cmd="Promote", id=i)
    s.note(s.a.wire.recv(10)["job"]["data"])


@scenario
def promote_many(s):
    """PromoteJobs: oldest first, up to count, all without one."""
    for n in range(6):
        s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data=n, delay=600000)
    s.cmd(cmd="PromoteJobs", queue=s.q(), count=2)
    s.note([j["data"] for j in s.quiet.cmd(cmd="PULLB", queue=s.q(), count=10)["jobs"]])
    s.cmd(cmd="PromoteJobs", queue=s.q(), count=0)
    s.cmd(cmd="PromoteJobs", queue=s.q(), count=-3)
    s.cmd(cmd="PromoteJobs", queue=s.q(), count=1.9)
    s.cmd(cmd="PromoteJobs", queue=s.q())
    s.cmd(cmd="PromoteJobs", queue=s.q())
    s.cmd(cmd="PromoteJobs", queue=s.q("never-used"))
    s.cmd(cmd="GetJobCounts", queue=s.q())


@scenario
def change_delay_sets_the_time(s):
    """The new delay counts from now; zero makes the job ready."""
    i = s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1)["id"]
    s.cmd(cmd="ChangeDelay", id=i, delay=500000)
    job = s.quiet.cmd(cmd="GetJob", id=i)["job"]
    s.note([job["state"], 500000 <= job["runAt"] - job["createdAt"] < 510000])
    s.cmd(cmd="ChangeDelay", id=i, delay=0)
    s.cmd(cmd="GetState", id=i)
    s.cmd(cmd="MoveToDelayed", id=i, delay=200)
    s.note(s.quiet.cmd(cmd="PULL", queue=s.q(), timeout=5000)["job"]["id"] == i)


@scenario
def active_job_moved_to_delayed(s):
    """An active job moved to delayed keeps its attempts and loses its lock."""
    i, token = in_state(s, "active")
    s.cmd(cmd="MoveToDelayed", id=i, delay=400000, token=token)
    job = s.quiet.cmd(cmd="GetJob", id=i)["job"]
    s.note(pick(job, "state", "attempts", "startedAt", "stallCount"))
    s.cmd(cmd="JobHeartbeat", id=i, token=token)
    s.cmd(cmd="ACK", id=i, token=token)
    s.cmd(cmd="Promote", id=i)
    got = s.quiet.cmd(cmd="PULL", queue=s.q("active"), owner="w")
    s.note([got["job"]["id"] == i, got["token"] != token])


@scenario
def active_job_moved_to_wait(s):
    """An active job moved to wait can be pulled again at once, with attempts unchanged."""
    i, token = in_state(s, "active")
    s.cmd(cmd="MoveToWait", id=i, token=token)
    s.cmd(cmd="GetState", id=i)
    s.cmd(cmd="ACK", id=i, token=token)
    s.note(pick(s.quiet.cmd(cmd="PULL", queue=s.q("active"))["job"], "attempts", "stallCount", "id"))


@scenario
def failed_job_moved_to_wait(s):
    """A dead job moved to wait starts over."""
    i, _ = in_state(s, "failed")
    s.cmd(cmd="MoveToWait", id=i)
    s.note(pick(s.quiet.cmd(cmd="GetJob", id=i)["job"], "state", "attempts", "stallCount"))
    s.cmd(cmd="GetJobCounts", queue=s.q("failed"))


@scenario
def discarded_job_in_the_dead_letters(s):
    """A discarded job has reason unknown and no error; it can be retried."""
    i = s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1)["id"]
    s.cmd(cmd="Discard", id=i)
    s.note(pick(s.quiet.cmd(cmd="Dlq", queue=s.q())["entries"][0], "reason", "error", "retryCount"))
    s.cmd(cmd="Discard", id=i)
    s.cmd(cmd="RetryDlq", queue=s.q(), jobId=i)
    s.cmd(cmd="GetState", id=i)


@scenario
def update_replaces_the_data(s):
    """Update puts any value in place of the old data, and the worker sees it."""
    i = s.cmd(cmd="PUSH", queue=s.q(), name="n", data={"a": 1, "b": 2})["id"]
    s.cmd(cmd="Update", id=i, data={"c": 3})
    s.cmd(cmd="Update", id=i, data=["list"])
    s.cmd(cmd="Update", id=i, data={"name": "not a job name", "d": 4})
    s.note(pick(s.quiet.cmd(cmd="PULL", queue=s.q())["job"], "name", "data"))


@scenario
def change_priority_reorders(s):
    """A new priority moves the job, delayed ones too; lifo may be changed along."""
    ids = [s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data=n)["id"] for n in range(4)]
    late = s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data="late", delay=600000)["id"]
    s.cmd(cmd="ChangePriority", id=ids[2], priority=10)
    s.cmd(cmd="GetState", id=ids[2])
    s.cmd(cmd="ChangePriority", id=ids[0], priority=-1)
    s.cmd(cmd="GetState", id=ids[0])
    s.cmd(cmd="ChangePriority", id=ids[3], priority=0, lifo=True)
    s.cmd(cmd="ChangePriority", id=late, priority=99)
    s.cmd(cmd="GetState", id=late)
    s.cmd(cmd="GetCountsPerPriority", queue=s.q())
    s.note([j["data"] for j in s.quiet.cmd(cmd="PULLB", queue=s.q(), count=10)["jobs"]])


@scenario
def cancelled_job_is_gone(s):
    """After Cancel the job has no state, no record and no place in the counts."""
    i = s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, jobId=s.uid("c"))["id"]
    s.cmd(cmd="Cancel", id=i)
    s.cmd(cmd="GetJob", id=i)
    s.cmd(cmd="GetState", id=i)
    s.cmd(cmd="Cancel", id=i)
    s.cmd(cmd="Count", queue=s.q())
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data=2, jobId=s.uid("c"))
    s.note(s.quiet.cmd(cmd="GetJob", id=i)["job"]["data"])
