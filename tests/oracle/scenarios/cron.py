"""Schedulers: records and refusals, the grammar of expressions, firing, limits, overlap, workers, and repeat jobs."""

from oracle import scenario, scenario_opts

NEVER = "0 0 29 2 *"  # a schedule that does not come due while a scenario runs


def add(s, name="c", record=True, **opts):
    opts.setdefault("queue", s.q())
    return (s.a if record else s.quiet).cmd(cmd="Cron", name=s.uid(name), **opts)


def drop(s, *names):
    for n in names or ("c",):
        s.quiet.cmd(cmd="CronDelete", name=s.uid(n))


def get(s, name="c"):
    return s.quiet.cmd(cmd="CronGet", name=s.uid(name)).get("cron")


def tried(s, *expressions, **more):
    """For each expression: the error, or that it was accepted."""
    for e in expressions:
        got = add(s, "t", record=False, schedule=e, **more)
        s.note([e, got.get("error") or "accepted"])
        drop(s, "t")


def count(s, queue="q"):
    return s.quiet.cmd(cmd="Count", queue=s.q(queue))["count"]


@scenario
def interval_record(s):
    """Create, read, list and delete an interval scheduler; every later look-up fails."""
    add(s, data={"x": 1}, repeatEvery=3600000)
    s.cmd(cmd="CronGet", name=s.uid("c"))
    s.note([c for c in s.quiet.cmd(cmd="CronList")["crons"] if c["name"] == s.uid("c")])
    s.cmd(cmd="CronDelete", name=s.uid("c"))
    s.cmd(cmd="CronDelete", name=s.uid("c"))
    s.cmd(cmd="CronGet", name=s.uid("c"))
    s.note([c for c in s.quiet.cmd(cmd="CronList")["crons"] if c["name"] == s.uid("c")])


@scenario
def full_record(s):
    """All fields: which of them come back, and that data, keys, flags and job options do not."""
    add(
        s,
        data={"secret": 1},
        jobName="report",
        schedule=NEVER,
        timezone="Europe/Rome",
        priority=4,
        maxLimit=3,
        uniqueKey="k",
        dedup={"ttl": 1000},
        skipMissedOnRestart=False,
        skipIfNoWorker=True,
        preventOverlap=False,
        jobOptions={"maxAttempts": 5},
    )
    s.note(sorted(get(s)))
    drop(s)


@scenario
def both_timings_and_useless_limits(s):
    """With both timings the schedule counts and the interval is echoed; a maxLimit of zero or less means none."""
    add(s, data={}, schedule=NEVER, repeatEvery=1000)
    s.sleep(1.2)
    s.note([count(s), get(s)["executions"]])
    for limit in (0, -1, None, 7):
        s.note(add(s, record=False, data={}, repeatEvery=3600000, maxLimit=limit)["cron"].get("maxLimit"))
    drop(s)


@scenario
def refused_records(s):
    """No timing, useless intervals and bad job names are refused and leave nothing behind."""
    add(s, data={})
    add(s, data={}, schedule="")
    for every in (0, -5, 1.5, "1000", True, 9007199254740993.0):
        s.note(add(s, record=False, data={}, repeatEvery=every).get("error", "accepted"))
    for name in ("", 5, "n" * 257):
        s.note(add(s, record=False, data={}, repeatEvery=60000, jobName=name).get("error", "accepted"))
    s.note(add(s, record=False, data={"name": ""}, repeatEvery=60000).get("error", "accepted"))
    s.note(add(s, record=False, data={}, schedule=NEVER, repeatEvery=0).get("error", "accepted"))
    s.cmd(cmd="CronGet", name=s.uid("c"))


@scenario
def failed_upsert_changes_nothing(s):
    """A refused update leaves the record as it was."""
    add(s, record=False, data={}, schedule=NEVER, priority=1)
    add(s, data={}, schedule="nonsense", priority=2)
    add(s, data={}, schedule=NEVER, timezone="Nowhere/City", priority=2)
    s.cmd(cmd="CronGet", name=s.uid("c"))
    drop(s)


@scenario
def number_of_fields(s):
    """Five fields, or six with seconds; blanks around and between do not matter."""
    tried(s, "* * * *", "* * * * * * *", "nonsense", "@", "0 0", "   ", "  0   0\t29 2  * ", "0 0 0 29 2 *")


@scenario
def aliases(s):
    """The @ aliases, in any case; others are refused; the text comes back as it was given."""
    tried(
        s,
        "@yearly",
        "@annually",
        "@monthly",
        "@weekly",
        "@daily",
        "@midnight",
        "@hourly",
        "@DAILY",
        "@reboot",
        "@minutely",
        "@every 5m",
    )
    s.note(add(s, record=False, data={}, schedule="@Yearly")["cron"]["schedule"])
    drop(s)


@scenario
def calendar_field_values(s):
    """Bounds and names of the five calendar fields."""
    tried(
        s,
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 0 *",
        "* * * 13 *",
        "* * * * 8",
        "-1 * * * *",
        "a * * * *",
        "1.5 * * * *",
        "* * * jan *",
        "* * * JANUARY *",
        "* * * * sun",
        "* * * * Saturday",
        "* * * * 7",
        "* * * sept *",
        "* * * * tues",
        "* * L * *",
        "* * ? * *",
        "* * * * 5#2",
        "* * 15W * *",
        "H * * * *",
        "05 007 * * *",
        "99999999999999999999 * * * *",
    )


@scenario
def ranges_lists_and_steps(s):
    """Lists, ranges and steps of the calendar fields, and what is wrong with the broken ones."""
    tried(
        s,
        "1,2,3 * * * *",
        "1-5,10-20/5 * * * *",
        "*/7 * * * *",
        "3/20 * * * *",
        "0 0 * jan-mar,dec mon-fri",
        "0-59/100 * * * *",
        "50-10 * * * *",
        "* * * * fri-mon",
        "* * * * 6-0",
        "1- * * * *",
        "1,,2 * * * *",
        ", * * * *",
        "*/0 * * * *",
        "*/-1 * * * *",
        "*/x * * * *",
        "*/ * * * *",
        "*/1.5 * * * *",
        "1/2/3 * * * *",
        "1-2-3 * * * *",
    )


@scenario
def seconds_field(s):
    """The leading seconds field has its own rules and texts, and is read before the others."""
    tried(
        s,
        "0 0 0 29 2 *",
        "*/15 * * * * *",
        "0,30 * * * * *",
        "10-20/5 * * * * *",
        "60 * * * * *",
        "-1 * * * * *",
        "1, * * * * *",
        ", * * * * *",
        "1/2/3 * * * * *",
        "*/0 * * * * *",
        "*/61 * * * * *",
        "*/x * * * * *",
        "5/10 * * * * *",
        "1- * * * * *",
        "1-2-3 * * * * *",
        "x-5 * * * * *",
        "1-x * * * * *",
        "x * * * * *",
        "20-10 * * * * *",
        "*/ * * * * *",
        "/5 * * * * *",
        "99 99 * * * *",
        "0 99 * * * *",
    )


@scenario
def schedules_without_a_date(s):
    """A valid expression that matches no day is refused; 29 February is found years ahead."""
    tried(s, "0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 31 2 *", "0 0 29 2 *", "0 0 31 12 *")


@scenario
def time_zone_names(s):
    """Zones are IANA names in any case; offsets and unknown names are refused; intervals do not look at them."""
    for tz in (
        "Europe/Rome",
        "europe/rome",
        "UTC",
        "Asia/Kolkata",
        "Etc/GMT+5",
        "Nowhere/City",
        "+02:00",
        "CEST2",
        "Europe",
        " UTC",
    ):
        got = add(s, "t", record=False, data={}, schedule=NEVER, timezone=tz)
        s.note([tz, got.get("error") or got["cron"]["timezone"]])
        drop(s, "t")
    got = add(s, "t", record=False, data={}, repeatEvery=60000, timezone="Nowhere/City")
    s.note(got.get("error") or got["cron"]["timezone"])
    drop(s, "t")


@scenario
def immediately_once(s):
    """immediately fires at creation, not at later updates; the job carries name, data and priority."""
    add(s, record=False, data={"x": 1}, jobName="tick", priority=6, repeatEvery=3600000, immediately=True)
    s.until(lambda c: count(s) > 0)
    job = s.quiet.cmd(cmd="PULL", queue=s.q())["job"]
    s.note({k: job[k] for k in ("name", "data", "priority", "uniqueKey", "maxAttempts", "tags")})
    s.quiet.cmd(cmd="ACK", id=job["id"])
    s.note(get(s)["executions"])
    add(s, record=False, data={"x": 2}, repeatEvery=3600000, immediately=True)
    s.sleep(0.5)
    s.note([count(s), get(s)["executions"]])
    drop(s)


@scenario
def legacy_name_in_data(s):
    """Without jobName a string data.name becomes the job's name and leaves its data; else the name is default."""
    for i, (data, more) in enumerate(
        (({"name": "old", "v": 1}, {}), ({"v": 1}, {}), ({"name": "kept"}, {"jobName": "own"}))
    ):
        got = add(
            s, f"c{i}", record=False, queue=s.q(f"q{i}"), data=data, repeatEvery=3600000, immediately=True, **more
        )
        s.note(got["cron"]["jobName"])
        s.until(lambda c: count(s, f"q{i}") > 0)
        job = s.quiet.cmd(cmd="PULL", queue=s.q(f"q{i}"))["job"]
        s.note([job["name"], job["data"]])
        drop(s, f"c{i}")


@scenario
def job_options(s):
    """Only some job options reach the spawned job."""
    add(
        s,
        record=False,
        data={},
        repeatEvery=3600000,
        immediately=True,
        priority=2,
        jobOptions={
            "maxAttempts": 7,
            "backoff": {"type": "fixed", "delay": 50},
            "timeout": 1234,
            "stallTimeout": 5678,
            "removeOnComplete": True,
            "removeOnFail": True,
            "priority": 9,
            "ttl": 5,
            "lifo": True,
            "tags": ["t"],
        },
    )
    s.until(lambda c: count(s) > 0)
    job = s.quiet.cmd(cmd="PULL", queue=s.q())["job"]
    s.note(
        {
            k: job[k]
            for k in (
                "maxAttempts",
                "backoff",
                "backoffConfig",
                "timeout",
                "stallTimeout",
                "removeOnComplete",
                "removeOnFail",
                "priority",
                "lifo",
                "tags",
            )
        }
    )
    s.note([job["ttl"]])
    drop(s)


@scenario
def delayed_spawn(s):
    """jobOptions.delay delays the spawned job."""
    add(s, record=False, data={}, repeatEvery=3600000, immediately=True, jobOptions={"delay": 60000})
    s.until(lambda c: count(s) > 0)
    s.note([j["state"] for j in s.quiet.cmd(cmd="GetJobs", queue=s.q())["jobs"]])
    drop(s)


@scenario_opts(slow=True)
def interval_fires_without_overlap(s):
    """By default one unfinished job per scheduler exists, while executions keep counting; after an ACK the next comes."""
    add(s, record=False, data={}, repeatEvery=400)
    s.until(lambda c: get(s)["executions"] >= 3)
    s.note(count(s))
    job = s.quiet.cmd(cmd="PULL", queue=s.q())["job"]
    s.note(job["uniqueKey"] == "cron:" + s.uid("c"))
    before = get(s)["executions"]
    s.until(lambda c: get(s)["executions"] >= before + 2)
    s.note(count(s))
    s.quiet.cmd(cmd="ACK", id=job["id"])
    s.until(lambda c: count(s) == 1)
    s.note(count(s))
    drop(s)


@scenario_opts(slow=True)
def interval_with_overlap(s):
    """preventOverlap false spawns a job per slot, without a unique key, in a steady rhythm."""
    t = s.quiet.cmd(cmd="Ping")["data"]["time"]
    first = add(s, record=False, data={}, repeatEvery=500, preventOverlap=False)["cron"]["nextRun"]
    s.note(400 <= first - t <= 900)
    s.until(lambda c: count(s) >= 3)
    drop(s)
    jobs = s.quiet.cmd(cmd="GetJobs", queue=s.q())["jobs"][:3]
    s.note([j.get("uniqueKey") for j in jobs])
    gaps = [b["createdAt"] - a["createdAt"] for a, b in zip(jobs, jobs[1:])]
    s.note([300 <= gap <= 900 for gap in gaps])


@scenario_opts(slow=True)
def max_limit_ends_a_scheduler(s):
    """A scheduler runs maxLimit times and then disappears."""
    add(s, record=False, data={}, repeatEvery=300, maxLimit=2, preventOverlap=False)
    s.until(lambda c: get(s) is None)
    s.sleep(0.7)
    s.note(count(s))
    s.cmd(cmd="CronGet", name=s.uid("c"))
    s.cmd(cmd="CronDelete", name=s.uid("c"))


@scenario_opts(slow=True)
def skip_without_worker(s):
    """skipIfNoWorker fires only while a worker for the queue is registered; skipped slots count no execution."""
    add(s, record=False, data={}, repeatEvery=300, skipIfNoWorker=True, preventOverlap=False)
    s.sleep(1.0)
    s.note([count(s), get(s)["executions"]])
    s.quiet.cmd(cmd="RegisterWorker", name="w", queues=[s.q("other")], workerId=s.uid("w0"))
    s.sleep(0.7)
    s.note([count(s), get(s)["executions"]])
    s.quiet.cmd(cmd="RegisterWorker", name="w", queues=[s.q()], workerId=s.uid("w1"))
    s.until(lambda c: count(s) > 0)
    s.note([count(s) > 0, get(s)["executions"] > 0])
    drop(s)


@scenario
def own_unique_key(s):
    """A given uniqueKey replaces the scheduler's own, and deduplicates against other jobs of the queue."""
    s.quiet.cmd(cmd="PUSH", queue=s.q(), name="already", data={}, uniqueKey="mine")
    add(s, record=False, data={}, repeatEvery=3600000, immediately=True, uniqueKey="mine")
    s.until(lambda c: (get(s) or {}).get("executions") == 1)
    s.sleep(0.1)
    s.note([j["name"] for j in s.quiet.cmd(cmd="GetJobs", queue=s.q())["jobs"]])
    drop(s)


@scenario
def deleting_leaves_the_job(s):
    """Deleting a scheduler keeps jobs it has spawned."""
    add(s, record=False, data={}, repeatEvery=3600000, immediately=True)
    s.until(lambda c: count(s) > 0)
    s.cmd(cmd="CronDelete", name=s.uid("c"))
    s.note(count(s))


@scenario
def upsert_keeps_executions(s):
    """An update under the same name replaces the record, keeps its executions and its place in the list."""
    add(s, "c", record=False, data={}, repeatEvery=3600000, immediately=True)
    s.until(lambda c: get(s)["executions"] == 1)
    add(s, "d", record=False, data={}, repeatEvery=3600000)
    add(s, "c", data={}, schedule=NEVER, queue=s.q("r"), jobName="new", priority=3)
    mine = [s.uid("c"), s.uid("d")]
    s.note([c["name"] for c in s.quiet.cmd(cmd="CronList")["crons"] if c["name"] in mine])
    drop(s, "c", "d")


@scenario
def explicit_overlap_rule_replaces_a_queued_job(s):
    """An update that says preventOverlap true removes a still queued job of the scheduler; one that is silent does not."""
    add(s, record=False, data={"v": 1}, repeatEvery=3600000, immediately=True)
    s.until(lambda c: count(s) > 0)
    add(s, record=False, data={"v": 2}, repeatEvery=3600000)
    s.note(count(s))
    add(s, record=False, data={"v": 3}, repeatEvery=3600000, preventOverlap=True)
    s.note(count(s))
    drop(s)


@scenario
def repeat_job_rules(s):
    """What a push with repeat must look like."""
    for repeat, more in (
        ({}, {}),
        ({"every": 1000, "pattern": "* * * * *"}, {}),
        ({"every": 0}, {}),
        ({"every": -1}, {}),
        ({"pattern": "nope"}, {}),
        ({"pattern": "60 * * * *"}, {}),
        ({"pattern": "  "}, {}),
        ({"pattern": NEVER, "tz": "Nowhere/City"}, {}),
        ({"every": 1000, "startDate": "x"}, {}),
        ({"every": 1000, "endDate": float("nan")}, {}),
        ({"every": 1000}, {"jobId": s.uid("j")}),
        ({"every": 1000}, {"parentId": s.uid("p")}),
        ({"every": 1000, "offset": 5}, {}),
    ):
        got = s.quiet.cmd(cmd="PUSH", queue=s.q(), name="r", data={}, repeat=repeat, **more)
        s.note(got.get("error", "accepted"))


@scenario
def repeat_job_chain(s):
    """Each successful run of a repeat job adds the next until limit successors have run; a final failure ends it."""
    s.cmd(cmd="PUSH", queue=s.q(), name="r", data={"x": 1}, priority=2, repeat={"every": 150, "limit": 2})
    runs = []
    for _ in range(4):
        job = s.quiet.cmd(cmd="PULL", queue=s.q(), timeout=1000)["job"]
        if job is None:
            runs.append(None)
            continue
        runs.append([job["name"], job["data"], job["priority"], job["repeat"]["count"]])
        s.quiet.cmd(cmd="ACK", id=job["id"])
    s.note(runs)
    s.quiet.cmd(cmd="PUSH", queue=s.q("f"), name="r", data={}, maxAttempts=1, repeat={"every": 100})
    job = s.quiet.cmd(cmd="PULL", queue=s.q("f"))["job"]
    s.quiet.cmd(cmd="FAIL", id=job["id"], error="x")
    s.sleep(0.2)
    s.cmd(cmd="GetJobCounts", queue=s.q("f"))
