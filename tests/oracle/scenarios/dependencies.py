"""dependsOn: what meets a dependency, what releases a waiting job, and what a waiting job allows."""

from oracle import scenario


def push(s, queue, name, **opts):
    return s.quiet.cmd(cmd="PUSH", queue=s.q(queue), name=name, data={"n": name}, **opts)["id"]


def finish(s, queue, result=None, on=None):
    """Pull the next job of a queue without recording and complete it; its name."""
    c = on or s.quiet
    job = c.cmd(cmd="PULL", queue=s.q(queue))["job"]
    if job is None:
        return None
    more = {} if result is None else {"result": result}
    c.cmd(cmd="ACK", id=job["id"], **more)
    return job["name"]


def state(s, *ids):
    return [s.quiet.cmd(cmd="GetState", id=i)["state"] for i in ids]


@scenario
def chain_runs_in_order(s):
    """A chain of three jobs is delivered one at a time, each after its predecessor completed."""
    a = push(s, "q", "a")
    b = push(s, "q", "b", dependsOn=[a])
    c = push(s, "q", "c", dependsOn=[b])
    s.note(state(s, a, b, c))
    got = s.cmd(cmd="PULLB", queue=s.q(), count=10)
    s.note([j["name"] for j in got["jobs"]])
    s.cmd(cmd="ACK", id=a)
    s.note(state(s, a, b, c))
    s.note([finish(s, "q"), finish(s, "q"), finish(s, "q")])
    s.note(state(s, a, b, c))


@scenario
def fan_in_waits_for_all(s):
    """A job with three dependencies is released by the last one only, and keeps its dependsOn list."""
    deps = [push(s, "d", f"d{i}") for i in range(3)]
    end = push(s, "q", "end", dependsOn=deps)
    got = s.quiet.cmd(cmd="PULLB", queue=s.q("d"), count=3)["jobs"]
    for i in (2, 0, 1):
        s.cmd(cmd="ACK", id=got[i]["id"], result=i)
        s.cmd(cmd="GetState", id=end)
    s.cmd(cmd="GetJob", id=end)


@scenario
def fan_out_releases_all_at_once(s):
    """One completion releases every dependent; they come in the order of their admission."""
    a = push(s, "q", "a")
    ids = [push(s, "q", f"w{i}", dependsOn=[a]) for i in range(5)]
    s.cmd(cmd="Count", queue=s.q())
    s.cmd(cmd="GetJobCounts", queue=s.q())
    finish(s, "q")
    s.note(state(s, *ids))
    got = s.quiet.cmd(cmd="PULLB", queue=s.q(), count=10)["jobs"]
    s.note([j["name"] for j in got])


@scenario
def completed_dependency_is_met_at_once(s):
    """A dependency that has completed already gates nothing, whether it is kept or removed on completion."""
    kept = push(s, "q", "kept")
    gone = push(s, "q", "gone", removeOnComplete=True)
    finish(s, "q"), finish(s, "q")
    s.cmd(cmd="GetState", id=gone)
    x = push(s, "r", "x", dependsOn=[kept])
    y = push(s, "r", "y", dependsOn=[gone, kept])
    s.note(state(s, x, y))
    s.note([finish(s, "r"), finish(s, "r")])


@scenario
def removed_on_complete_still_releases(s):
    """A dependency with removeOnComplete releases its dependents and then is unknown."""
    a = push(s, "q", "a", removeOnComplete=True)
    b = push(s, "r", "b", dependsOn=[a])
    finish(s, "q", {"v": 1})
    s.note(state(s, a, b))
    s.cmd(cmd="GetJob", id=a)
    s.cmd(cmd="GetResult", id=a)


@scenario
def unknown_dependency_is_refused(s):
    """PUSH and PUSHB refuse ids that do not exist, PUSHB with the position and without adding anything."""
    a = push(s, "q", "a")
    s.cmd(cmd="PUSH", queue=s.q(), name="x", data={}, dependsOn=[a, s.uid("nope"), s.uid("nope2")])
    s.cmd(
        cmd="PUSHB",
        queue=s.q(),
        jobs=[{"name": "p", "data": {}}, {"name": "q", "data": {}, "dependsOn": [s.uid("nope")]}],
    )
    s.cmd(cmd="Count", queue=s.q())
    s.cmd(cmd="Cancel", id=a)
    s.cmd(cmd="PUSH", queue=s.q(), name="x", data={}, dependsOn=[a])


@scenario
def batch_may_name_its_own_custom_ids(s):
    """Inside PUSHB a dependency may be the custom id of any job of the batch, before or after; not its own."""
    a, b, c = s.uid("a"), s.uid("b"), s.uid("c")
    s.cmd(
        cmd="PUSHB",
        queue=s.q(),
        jobs=[
            {"name": "c", "data": {}, "customId": c, "dependsOn": [a, b]},
            {"name": "a", "data": {}, "customId": a},
            {"name": "b", "data": {}, "customId": b, "dependsOn": [a]},
        ],
    )
    s.note(state(s, a, b, c))
    s.note([finish(s, "q") for _ in range(4)])
    s.cmd(cmd="PUSHB", queue=s.q(), jobs=[{"name": "d", "data": {}, "customId": s.uid("d"), "dependsOn": [s.uid("d")]}])
    s.cmd(cmd="GetState", id=s.uid("d"))


@scenario
def repeated_and_empty_dependencies(s):
    """Doubled ids count once; an empty list and null mean no dependency."""
    a = push(s, "d", "a")
    b = push(s, "q", "b", dependsOn=[a, a])
    c = push(s, "q", "c", dependsOn=[])
    d = push(s, "q", "d", dependsOn=None)
    s.note(state(s, b, c, d))
    finish(s, "d")
    s.note(state(s, b, c, d))


@scenario
def dead_lettered_dependency(s):
    """A job in the DLQ may be named; the dependent stays gated until that job is retried and completes."""
    a = push(s, "q", "a", maxAttempts=1)
    s.quiet.cmd(cmd="PULL", queue=s.q())
    s.quiet.cmd(cmd="FAIL", id=a, error="x")
    b = s.cmd(cmd="PUSH", queue=s.q("r"), name="b", data={}, dependsOn=[a])["id"]
    s.note(state(s, a, b))
    s.cmd(cmd="RetryDlq", queue=s.q(), jobId=a)
    s.note(state(s, a, b))
    finish(s, "q")
    s.note(state(s, a, b))


@scenario
def failing_dependency_releases_nothing(s):
    """Neither an active, a failed, nor a retried dependency releases; only its completion does."""
    a = push(s, "q", "a", maxAttempts=2, backoff={"type": "fixed", "delay": 0})
    b = push(s, "r", "b", dependsOn=[a])
    seen = []
    s.quiet.cmd(cmd="PULL", queue=s.q())
    seen += state(s, a, b)
    s.quiet.cmd(cmd="FAIL", id=a, error="x")
    seen += state(s, b)
    s.quiet.cmd(cmd="PULL", queue=s.q(), timeout=1000)
    s.quiet.cmd(cmd="ACK", id=a)
    seen += state(s, a, b)
    s.note(seen)


@scenario
def released_into_the_right_state(s):
    """Released jobs become prioritized, delayed or waiting, and their timeline says so."""
    a = push(s, "d", "a")
    p = push(s, "q", "p", dependsOn=[a], priority=7)
    d = push(s, "q", "d", dependsOn=[a], delay=60000)
    w = push(s, "q", "w", dependsOn=[a])
    s.note(state(s, p, d, w))
    finish(s, "d")
    s.note(state(s, p, d, w))
    for i in (p, d, w):
        job = s.quiet.cmd(cmd="GetJob", id=i)["job"]
        s.note(
            {
                "name": job["name"],
                "timeline": [t["state"] for t in job["timeline"]],
                "dependsOn": job["dependsOn"],
                "delay kept": job["runAt"] - job["createdAt"],
            }
        )


@scenario
def commands_on_a_waiting_job(s):
    """Which management commands a job with unmet dependencies accepts, and the errors of the others."""
    a = push(s, "d", "a")
    b = push(s, "q", "b", dependsOn=[a])
    s.cmd(cmd="Promote", id=b)
    s.cmd(cmd="ChangePriority", id=b, priority=3)
    s.cmd(cmd="ChangeDelay", id=b, delay=1000)
    s.cmd(cmd="MoveToDelayed", id=b, delay=1000)
    s.cmd(cmd="MoveToWait", id=b)
    s.cmd(cmd="MoveToWaitingChildren", id=b)
    s.cmd(cmd="Discard", id=b)
    s.cmd(cmd="Progress", id=b, progress=5)
    s.cmd(cmd="GetProgress", id=b)
    s.cmd(cmd="ACK", id=b)
    s.cmd(cmd="FAIL", id=b, error="x")
    s.cmd(cmd="WaitJob", id=b, timeout=0)
    s.cmd(cmd="AddLog", id=b, message="hello")
    s.cmd(cmd="Update", id=b, data={"n": "new"})
    s.note(s.quiet.cmd(cmd="GetJob", id=b)["job"]["data"])
    s.cmd(cmd="Cancel", id=b)
    s.cmd(cmd="GetState", id=b)
    finish(s, "d")
    s.cmd(cmd="PULL", queue=s.q())


@scenario
def waiting_jobs_in_counts_and_lists(s):
    """Gated jobs show as waiting-children in counts and lists and are left alone by Drain, Clean and PromoteJobs."""
    a = push(s, "d", "a")
    b = push(s, "q", "b", dependsOn=[a])
    push(s, "q", "free")
    s.cmd(cmd="Count", queue=s.q())
    s.cmd(cmd="GetJobCounts", queue=s.q())
    s.cmd(cmd="GetCountsPerPriority", queue=s.q())
    s.note([j["name"] for j in s.quiet.cmd(cmd="GetJobs", queue=s.q(), state="waiting-children")["jobs"]])
    s.note([[j["name"], j["state"]] for j in s.quiet.cmd(cmd="GetJobs", queue=s.q())["jobs"]])
    s.cmd(cmd="Clean", queue=s.q(), grace=0, state="waiting-children")
    s.cmd(cmd="PromoteJobs", queue=s.q())
    s.cmd(cmd="Drain", queue=s.q())
    s.cmd(cmd="GetState", id=b)
    s.cmd(cmd="Obliterate", queue=s.q())
    s.cmd(cmd="GetState", id=b)
    s.cmd(cmd="GetJobCounts", queue=s.q())


@scenario
def cancelling_a_dependency_strands_nothing_else(s):
    """Cancelling a dependency does not release, fail or remove its dependents."""
    a = push(s, "q", "a")
    b = push(s, "r", "b", dependsOn=[a])
    s.cmd(cmd="Cancel", id=a)
    s.note(state(s, a, b))
    s.cmd(cmd="GetJobCounts", queue=s.q("r"))
    s.cmd(cmd="Cancel", id=b)
    s.note(state(s, b))


@scenario
def release_wakes_a_parked_pull(s):
    """A long poll on the dependents' queue is answered as soon as the last dependency completes."""
    a = push(s, "d", "a")
    push(s, "q", "b", dependsOn=[a])
    w = s.conn("w")
    w.send(cmd="PULL", queue=s.q(), timeout=15000)
    s.sleep(0.3)
    finish(s, "d")
    got = w.recv(8)
    s.note((got.get("job") or {}).get("name"))


@scenario
def events_of_a_waiting_job(s):
    """A gated job is announced with pushed; its release adds no job event; then pulled and completed follow."""
    a = push(s, "d", "a")
    e = s.conn("e")
    e.cmd(cmd="SubscribeEvents", queue=s.q())
    b = push(s, "q", "b", dependsOn=[a])
    finish(s, "d")
    s.note(state(s, b))
    finish(s, "q", 5)
    e.events(0.5)


@scenario
def dependency_across_queues_and_paused_queue(s):
    """Dependencies cross queues; release into a paused queue shows as paused and is not delivered."""
    a = push(s, "d", "a")
    b = push(s, "q", "b", dependsOn=[a])
    s.cmd(cmd="Pause", queue=s.q())
    s.cmd(cmd="GetJobCounts", queue=s.q())
    finish(s, "d")
    s.cmd(cmd="GetJobCounts", queue=s.q())
    s.cmd(cmd="PULL", queue=s.q())
    s.cmd(cmd="Resume", queue=s.q())
    s.note([state(s, b), finish(s, "q")])


@scenario
def reused_custom_id_with_waiting_consumers(s):
    """A completed-and-removed custom id stays reserved while a dependent still waits for something else too."""
    a = s.uid("a")
    s.quiet.cmd(cmd="PUSH", queue=s.q("d"), name="a", data={}, jobId=a, removeOnComplete=True)
    o = push(s, "o", "other")
    b = push(s, "q", "b", dependsOn=[a, o])
    finish(s, "d")
    s.note(state(s, a, b))
    s.cmd(cmd="PUSH", queue=s.q("d"), name="again", data={}, jobId=a)
    finish(s, "o")
    s.note(state(s, b))
    s.cmd(cmd="PUSH", queue=s.q("d"), name="again", data={}, jobId=a)
    s.cmd(cmd="GetState", id=a)


@scenario
def clean_spares_completed_dependencies(s):
    """Clean of completed jobs leaves those that a waiting job still names."""
    a = push(s, "d", "a")
    x = push(s, "d", "x")
    o = push(s, "o", "other")
    b = push(s, "q", "b", dependsOn=[a, o])
    finish(s, "d"), finish(s, "d")
    s.sleep(0.05)
    s.cmd(cmd="Clean", queue=s.q("d"), grace=0, state="completed")
    s.note(state(s, a, x))
    finish(s, "o")
    s.note(state(s, b))


@scenario
def replacing_a_job_others_wait_for(s):
    """A dedup replacement is refused while a live job depends on the one to be replaced."""
    a = s.quiet.cmd(cmd="PUSH", queue=s.q("d"), name="a", data={}, uniqueKey="k", dedup={"replace": True})["id"]
    b = push(s, "q", "b", dependsOn=[a])
    s.cmd(cmd="PUSH", queue=s.q("d"), name="a2", data={}, uniqueKey="k", dedup={"replace": True})
    s.note(state(s, a, b))
    s.cmd(cmd="Cancel", id=b)
    s.cmd(cmd="PUSH", queue=s.q("d"), name="a3", data={}, uniqueKey="k", dedup={"replace": True})
    s.note(state(s, a))
