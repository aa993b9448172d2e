"""Job groups: admission, order and rotation, pausing, budgets, and every group command."""

from oracle import scenario


def push(s, name, group=None, **opts):
    if group is not None:
        opts["groupId"] = group
    return s.quiet.cmd(cmd="PUSH", queue=s.q(), name=name, data={}, **opts)


def fill(s, text):
    """Push the jobs named in a text: a capital letter is the group, others are ungrouped."""
    for name in text.split():
        push(s, name, name[0] if name[0].isupper() else None)


def take(s, n=1, **more):
    """Names of the next n jobs, one PULL each (None where nothing came); they stay active."""
    out = []
    for _ in range(n):
        job = s.quiet.cmd(cmd="PULL", queue=s.q(), **more)["job"]
        out.append(job and job["name"])
        if job:
            s.jobs = {**getattr(s, "jobs", {}), job["name"]: job["id"]}
    return out


def drain_order(s, **more):
    """Names in delivery order until nothing comes, each completed at once."""
    out = []
    while len(out) < 50:
        job = s.quiet.cmd(cmd="PULL", queue=s.q(), **more)["job"]
        if job is None:
            return out
        out.append(job["name"])
        s.quiet.cmd(cmd="ACK", id=job["id"])
    return out


def ack(s, name):
    return s.quiet.cmd(cmd="ACK", id=s.jobs[name])["ok"]


def g(s, cmd, group="A", record=True, **more):
    return (s.a if record else s.quiet).cmd(cmd=cmd, queue=s.q(), groupId=group, **more)


@scenario
def group_id_rules(s):
    """groupId on a push: a non-empty string of at most 256 characters without NUL."""
    for gid in (5, "", "g" * 257, "a\0b", True, ["g"]):
        got = s.quiet.cmd(cmd="PUSH", queue=s.q(), name="x", data={}, groupId=gid)
        s.note(got.get("error", "accepted"))
    for gid in ("g" * 256, " ", "é:/\n", "0"):
        s.note(push(s, "x", gid)["ok"])
    s.cmd(cmd="PUSHB", queue=s.q(), jobs=[{"name": "x", "data": {}}, {"name": "y", "data": {}, "groupId": ""}])
    s.cmd(cmd="GetGroupsJobsCount", queue=s.q())
    s.note(s.quiet.cmd(cmd="PULL", queue=s.q())["job"]["groupId"] == "g" * 256)


@scenario
def grouped_priority_rules(s):
    """The priority of a grouped job is an integer from 0 to 2097151."""
    for p in (-1, 2097152, 1.5, "1", 0, 2097151, 5.0):
        got = push(s, "x", "g", priority=p)
        s.note([p, got.get("error", "accepted")])
    s.cmd(cmd="PUSHB", queue=s.q(), jobs=[{"name": "y", "data": {}, "groupId": "g", "priority": -1}])
    s.note(push(s, "free", priority=-1)["ok"])
    s.cmd(cmd="GetJobCounts", queue=s.q())


@scenario
def group_size_limit(s):
    """groupMaxSize refuses a push when that many jobs of the group are queued; it binds only the push that carries it."""
    for size in (0, -1, 1.5, "2", 9007199254740993.0):
        got = push(s, "x", "g", groupMaxSize=size)
        s.note(got.get("error", "accepted"))
    got = push(s, "x", groupMaxSize=0)
    s.note(got.get("error", "accepted"))
    s.note([push(s, f"j{i}", "g", groupMaxSize=2).get("error", "ok") for i in range(3)])
    s.note(push(s, "unlimited", "g")["ok"])
    s.note(push(s, "elsewhere", "h", groupMaxSize=1)["ok"])
    s.note(push(s, "ungrouped", groupMaxSize=1)["ok"])
    s.note([push(s, f"k{i}", "g", groupMaxSize=4).get("error", "ok") for i in range(2)])


@scenario
def what_counts_towards_the_size(s):
    """Delayed jobs count, active and dependency-gated ones do not."""
    push(s, "d", "g", delay=60000)
    s.note(push(s, "x", "g", groupMaxSize=1).get("error"))
    s.quiet.cmd(cmd="Drain", queue=s.q())
    push(s, "a", "g"), take(s)
    s.note(push(s, "w", "g", groupMaxSize=1).get("error"))
    s.quiet.cmd(cmd="Drain", queue=s.q())
    push(s, "gated", "g", dependsOn=[s.jobs["a"]])
    g(s, "GetGroupJobsCount", "g")
    s.note(push(s, "y", "g", groupMaxSize=1).get("error"))


@scenario
def duplicates_pass_a_full_group(s):
    """Idempotent and deduplicated pushes succeed at capacity, and so does a replacement."""
    first = s.uid("one")
    s.note(push(s, "one", "g", jobId=first, uniqueKey="k", groupMaxSize=1)["id"] == first)
    s.note(push(s, "one", "g", jobId=first, groupMaxSize=1).get("id") == first)
    s.note(push(s, "two", "g", uniqueKey="k", groupMaxSize=1).get("id") == first)
    got = push(s, "three", "g", uniqueKey="k", dedup={"replace": True}, groupMaxSize=1)
    s.note([got["ok"], got.get("id") == first])
    s.note(push(s, "four", "g", groupMaxSize=1).get("error"))


@scenario
def rotation_is_fair(s):
    """Ungrouped jobs first by priority, then one job of each group in turn."""
    fill(s, "A0 B0 C0 A1 B1 C1 u0")
    push(s, "u1", priority=5)
    s.note(drain_order(s))
    fill(s, "A0 A1 A2 B0 C0")
    s.note(drain_order(s))
    fill(s, "A0 A1 A2 A3 B0 B1 C0")
    s.note(drain_order(s))


@scenario
def rotation_in_one_batch(s):
    """A batch pull follows the same rotation as single pulls."""
    fill(s, "A0 A1 A2 B0 u0 B1 C0")
    got = s.quiet.cmd(cmd="PULLB", queue=s.q(), count=4)["jobs"]
    s.note([j["name"] for j in got])
    got = s.quiet.cmd(cmd="PULLB", queue=s.q(), count=10)["jobs"]
    s.note([j["name"] for j in got])


@scenario
def newcomers_join_at_the_tail(s):
    """A group that becomes ready joins behind the others; one that emptied joins anew."""
    fill(s, "A0 B0 A1 B1 A2 B2")
    first = take(s)
    fill(s, "C0")
    s.note(first + drain_order(s))
    fill(s, "A0 B0 B1 B2")
    first = take(s, 2)
    fill(s, "A1")
    s.note(first + drain_order(s))


@scenario
def order_inside_a_group(s):
    """Inside a group the lower priority number goes first, then admission; lifo counts for nothing."""
    push(s, "A-p5", "A", priority=5), push(s, "A-p0", "A"), push(s, "A-p2", "A", priority=2)
    push(s, "A-p0b", "A", lifo=True), push(s, "A-p2b", "A", priority=2, lifo=True)
    s.cmd(cmd="GetJobCounts", queue=s.q())
    s.note(drain_order(s))


@scenario
def retry_returns_to_its_place(s):
    """A failed job goes back ahead of later jobs of its group."""
    push(s, "A0", "A", backoff={"type": "fixed", "delay": 0}), fill(s, "A1 A2")
    s.note(take(s))
    s.quiet.cmd(cmd="FAIL", id=s.jobs["A0"], error="x")
    s.sleep(0.05)
    s.note(drain_order(s))


@scenario
def due_jobs_regain_their_place(s):
    """A delayed job that has become due, or was promoted, comes at its admission position."""
    push(s, "A0", "A", delay=60000), push(s, "A1", "A", delay=100), fill(s, "A2 A3")
    s.sleep(0.3)
    s.quiet.cmd(cmd="Promote", id=s.quiet.cmd(cmd="GetJobs", queue=s.q(), state="delayed")["jobs"][0]["id"])
    s.note(drain_order(s))


@scenario
def paused_group(s):
    """A paused group is skipped, counted as waiting, and resumes where it was."""
    fill(s, "A0 B0 A1")
    g(s, "PauseGroup"), g(s, "PauseGroup"), g(s, "IsGroupPaused"), g(s, "IsGroupPaused", "B")
    s.note(take(s, 2))
    s.cmd(cmd="GetJobCounts", queue=s.q())
    g(s, "ResumeGroup"), g(s, "ResumeGroup"), g(s, "IsGroupPaused")
    s.note(take(s, 3))


@scenario
def resume_wakes_a_parked_pull(s):
    """Resuming a group answers a long poll that waits on its queue."""
    g(s, "PauseGroup", record=False)
    fill(s, "A0")
    w = s.conn("w")
    w.send(cmd="PULL", queue=s.q(), timeout=15000)
    s.sleep(0.3)
    g(s, "ResumeGroup", record=False)
    s.note((w.wire.recv(8).get("job") or {}).get("name"))


@scenario
def group_commands_validate(s):
    """Every group command checks queue, then groupId, then its own numbers."""
    commands = [
        "GetGroupJobsCount",
        "GetGroupActiveCount",
        "SetGroupRateLimit",
        "GetGroupRateLimit",
        "RemoveGroupRateLimit",
        "GetGroupRateLimitTtl",
        "SetGroupConcurrency",
        "GetGroupConcurrency",
        "RemoveGroupConcurrency",
        "PauseGroup",
        "ResumeGroup",
        "IsGroupPaused",
        "RateLimitGroup",
    ]
    bad = [
        {},
        {"queue": ""},
        {"queue": "a b", "groupId": ""},
        {"queue": "q" * 257, "groupId": "g"},
        {"queue": s.q()},
        {"queue": s.q(), "groupId": ""},
        {"queue": s.q(), "groupId": 5},
        {"queue": s.q(), "groupId": "g" * 257},
        {"queue": s.q(), "groupId": "a\0b"},
    ]
    for cmd in commands:
        s.note([cmd, [s.quiet.cmd(cmd=cmd, **b).get("error", "accepted")[:60] for b in bad]])
    s.note([s.quiet.cmd(cmd="GetGroupsJobsCount", **b).get("error", "accepted")[:60] for b in bad[:4]])


@scenario
def group_command_numbers(s):
    """Limits, durations and concurrency must be positive safe integers."""
    for n in (0, -1, 1.5, "5", None, 9007199254740993.0):
        s.note(
            [
                g(s, "SetGroupRateLimit", record=False, max=n, duration=1000).get("error", "ok"),
                g(s, "SetGroupRateLimit", record=False, max=1, duration=n).get("error", "ok"),
                g(s, "SetGroupConcurrency", record=False, concurrency=n).get("error", "ok"),
                g(s, "RateLimitGroup", record=False, duration=n).get("error", "ok"),
            ]
        )
    g(s, "SetGroupRateLimit")
    g(s, "GetGroupRateLimit"), g(s, "GetGroupConcurrency")


@scenario
def group_settings_round_trip(s):
    """Setting, reading, replacing and removing a group's overrides."""
    g(s, "GetGroupRateLimit"), g(s, "GetGroupConcurrency"), g(s, "IsGroupPaused")
    s.note(g(s, "GetGroupRateLimitTtl", record=False)["data"]["ttl"])
    g(s, "RemoveGroupRateLimit"), g(s, "RemoveGroupConcurrency")
    g(s, "SetGroupRateLimit", max=3, duration=60000), g(s, "SetGroupConcurrency", concurrency=2)
    s.note(g(s, "GetGroupRateLimit", record=False)["data"]["limit"]["duration"])
    g(s, "SetGroupRateLimit", max=4, duration=5000), g(s, "GetGroupRateLimit")
    s.note(g(s, "GetGroupRateLimit", record=False)["data"]["limit"]["duration"])
    g(s, "GetGroupConcurrency"), g(s, "GetGroupConcurrency", "B")
    g(s, "RemoveGroupRateLimit"), g(s, "RemoveGroupRateLimit"), g(s, "RemoveGroupConcurrency")
    g(s, "GetGroupRateLimit"), g(s, "GetGroupConcurrency")
    s.note(s.q() in s.quiet.cmd(cmd="ListQueues")["queues"])


@scenario
def group_counts(s):
    """Queued and active jobs of a group are counted apart; every way out of active lowers the active count."""
    fill(s, "A0 A1 A2 A3 B0 u0")
    push(s, "A4", "A", delay=60000)
    g(s, "GetGroupJobsCount"), g(s, "GetGroupJobsCount", "Z"), s.cmd(cmd="GetGroupsJobsCount", queue=s.q())
    s.note(take(s, 6))

    def active():
        return g(s, "GetGroupActiveCount", record=False)["data"]["count"]

    seen = [active()]
    ack(s, "A0"), seen.append(active())
    s.quiet.cmd(cmd="FAIL", id=s.jobs["A1"], error="x", unrecoverable=True), seen.append(active())
    s.quiet.cmd(cmd="MoveToDelayed", id=s.jobs["A2"], delay=60000), seen.append(active())
    s.quiet.cmd(cmd="MoveToWait", id=s.jobs["A3"]), seen.append(active())
    s.note(seen)
    g(s, "GetGroupJobsCount"), g(s, "GetGroupActiveCount", "B"), s.cmd(cmd="GetGroupsJobsCount", queue=s.q())


@scenario
def worker_concurrency_per_group(s):
    """A pull with group.concurrency takes at most that many active jobs of each group, and skips full groups."""
    fill(s, "A0 A1 A2 B0 B1 u0 u1")
    c1 = {"group": {"concurrency": 1}}
    s.note(take(s, 5, **c1))
    ack(s, "A0")
    s.note(take(s, 2, **c1))
    got = s.quiet.cmd(cmd="PULLB", queue=s.q(), count=10, group={"concurrency": 2})["jobs"]
    s.note([j["name"] for j in got])
    s.note(take(s))


@scenario
def concurrency_override(s):
    """A stored concurrency replaces the worker's, and means nothing to a pull that brings none."""
    fill(s, "A0 A1 A2 A3 B0 B1")
    g(s, "SetGroupConcurrency", concurrency=2)
    s.note(take(s, 5, group={"concurrency": 1}))
    s.note(take(s, 1, group={}))
    g(s, "RemoveGroupConcurrency")
    s.note(take(s, 2, group={"concurrency": 1}))
    s.note(take(s, 2))


@scenario
def freed_slot_wakes_a_parked_pull(s):
    """A long poll limited by group.concurrency is answered when a job of the group is acknowledged."""
    fill(s, "A0 A1")
    s.note(take(s, 1, group={"concurrency": 1}))
    w = s.conn("w")
    w.send(cmd="PULL", queue=s.q(), timeout=15000, group={"concurrency": 1})
    s.sleep(0.3)
    ack(s, "A0")
    s.note((w.wire.recv(8).get("job") or {}).get("name"))


@scenario
def worker_rate_limit_per_group(s):
    """A pull with group.limit takes max jobs of each group in a window; other groups have their own."""
    fill(s, "A0 A1 A2 B0 B1 B2 u0")
    limit = {"group": {"limit": {"max": 2, "duration": 60000}}}
    s.note(g(s, "GetGroupRateLimitTtl", record=False)["data"]["ttl"])
    s.note(take(s, 6, **limit))
    ttl = g(s, "GetGroupRateLimitTtl", record=False)["data"]["ttl"]
    s.note(50000 < ttl <= 60000)
    s.note([g(s, "GetGroupRateLimitTtl", record=False, maxJobs=m)["data"]["ttl"] > 0 for m in (1, 2, 3)])
    s.note(take(s, 1))


@scenario
def rate_override(s):
    """A stored rate limit replaces the worker's; setting it opens a new window; it binds only pulls with a limit."""
    fill(s, "A0 A1 A2 A3 A4 A5 A6")
    limit = {"group": {"limit": {"max": 5, "duration": 60000}}}
    g(s, "SetGroupRateLimit", max=1, duration=60000)
    s.note(take(s, 2, **limit))
    g(s, "SetGroupRateLimit", max=2, duration=60000)
    s.note(take(s, 3, **limit))
    g(s, "RemoveGroupRateLimit")
    s.note(take(s, 1, **limit))
    s.note(take(s, 2))


@scenario
def group_window_reopens_on_time(s):
    """A long poll waits exactly for the end of a group's window."""
    fill(s, "A0 A1")
    limit = {"limit": {"max": 1, "duration": 1200}}
    s.note(take(s, 2, group=limit))
    s.note(take(s, 1, group=limit, timeout=5000))


@scenario
def manual_group_limit(s):
    """RateLimitGroup stops one group for every pull; the latest call decides; others go on."""
    fill(s, "A0 A1 B0 u0")
    g(s, "RateLimitGroup", duration=60000)
    s.note(take(s, 3))
    ttl = g(s, "GetGroupRateLimitTtl", record=False)["data"]["ttl"]
    s.note(50000 < ttl <= 60000)
    g(s, "RateLimitGroup", duration=900)
    s.note(take(s, 1))
    s.note(take(s, 1, timeout=5000))
    s.note(take(s, 1))
    s.note(g(s, "GetGroupRateLimitTtl", record=False)["data"]["ttl"])


@scenario
def pull_group_argument(s):
    """The group argument of PULL and PULLB is checked before anything is taken."""
    fill(s, "A0")
    for group in (
        None,
        [],
        "x",
        5,
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"concurrency": "1"},
        {"limit": 5},
        {"limit": {}},
        {"limit": {"max": 0, "duration": 1}},
        {"limit": {"max": 1}},
        {"limit": {"max": 1, "duration": 0}},
        {"affinity": 5},
    ):
        got = [
            s.quiet.cmd(cmd="PULL", queue=s.q(), group=group),
            s.quiet.cmd(cmd="PULLB", queue=s.q(), count=1, group=group),
        ]
        s.note([r.get("error", "accepted") for r in got])
    s.note(take(s, 1, group={}))


@scenario
def affinity(s):
    """affinity restricts a pull to one group, null to the ungrouped jobs."""
    fill(s, "A0 B0 u0 A1 B1")
    s.note(take(s, 1, group={"affinity": "B"}))
    s.note(take(s, 2, group={"affinity": None}))
    s.note(take(s, 3, group={"affinity": "A"}))
    s.note(take(s, 1, group={"affinity": "Z"}))
    s.note(take(s, 2))


@scenario
def pausing_the_queue_outranks_groups(s):
    """A paused queue delivers no group; obliterating it forgets all group settings."""
    fill(s, "A0 B0")
    s.cmd(cmd="Pause", queue=s.q())
    s.note(take(s, 1))
    s.cmd(cmd="Resume", queue=s.q())
    g(s, "PauseGroup"), g(s, "SetGroupConcurrency", concurrency=3), g(s, "SetGroupRateLimit", max=1, duration=1000)
    s.cmd(cmd="Obliterate", queue=s.q())
    g(s, "IsGroupPaused"), g(s, "GetGroupConcurrency"), g(s, "GetGroupRateLimit"), g(s, "GetGroupJobsCount")
