"""Per-queue metrics, the event journal's trimming, and the global figures."""

from oracle import scenario


def run(s, n, fail=0, queue="q", **opts):
    """Push and complete n jobs and dead-letter `fail` more."""
    for i in range(n + fail):
        s.quiet.cmd(cmd="PUSH", queue=s.q(queue), name="j", data={}, maxAttempts=1, **opts)
        job = s.quiet.cmd(cmd="PULL", queue=s.q(queue))["job"]
        if i < n:
            s.quiet.cmd(cmd="ACK", id=job["id"])
        else:
            s.quiet.cmd(cmd="FAIL", id=job["id"], error="x")


def figures(s, kind, queue="q", **more):
    """Count, sum over the minute buckets, and whether the last-event fields agree (the minute may change meanwhile)."""
    d = s.quiet.cmd(cmd="Metrics", queue=s.q(queue), type=kind, **more)["data"]
    return {
        "count": d["meta"]["count"],
        "sum": sum(d["data"]),
        "buckets": "some" if d["count"] else 0,
        "last": 0 if not d["meta"]["prevTS"] else "set",
        "prevCount ok": d["meta"]["prevCount"] == (d["data"] or [0])[0],
    }


@scenario
def queue_metrics_of_nothing(s):
    """A queue without finished jobs has zeros and no buckets."""
    s.cmd(cmd="Metrics", queue=s.q(), type="completed")
    s.cmd(cmd="Metrics", queue=s.q(), type="failed", start=0, end=-1)
    s.quiet.cmd(cmd="PUSH", queue=s.q(), name="j", data={})
    s.cmd(cmd="Metrics", queue=s.q(), type="completed")


@scenario
def queue_metrics_count(s):
    """Completed and finally failed jobs are counted apart, per queue."""
    run(s, 3, fail=2)
    run(s, 1, queue="other")
    s.note(
        [figures(s, "completed"), figures(s, "failed"), figures(s, "completed", "other"), figures(s, "failed", "other")]
    )


@scenario
def only_final_failures_count(s):
    """A failure that will be retried is not counted; jobs removed on finish are."""
    s.quiet.cmd(
        cmd="PUSH",
        queue=s.q(),
        name="j",
        data={},
        maxAttempts=2,
        backoff={"type": "fixed", "delay": 0},
        removeOnFail=True,
    )
    for _ in range(2):
        job = s.quiet.cmd(cmd="PULL", queue=s.q(), timeout=1000)["job"]
        s.quiet.cmd(cmd="FAIL", id=job["id"], error="x")
        s.note(figures(s, "failed")["count"])
    run(s, 2, removeOnComplete=True)
    s.note(figures(s, "completed")["count"])


@scenario
def counts_are_cumulative(s):
    """Cleaning finished jobs does not lower the counts; Obliterate clears them."""
    run(s, 2)
    s.sleep(0.05)
    s.quiet.cmd(cmd="Clean", queue=s.q(), grace=0, state="completed")
    s.note(figures(s, "completed"))
    s.quiet.cmd(cmd="Obliterate", queue=s.q())
    s.note(figures(s, "completed"))


@scenario
def slices(s):
    """start and end pick buckets, newest first and inclusive; count stays that of all buckets."""
    run(s, 2)
    far = s.quiet.cmd(cmd="Metrics", queue=s.q(), type="completed", start=1000)["data"]
    s.note([far["data"], far["count"] > 0, far["meta"]["count"]])
    one = s.quiet.cmd(cmd="Metrics", queue=s.q(), type="completed", start=0, end=0)["data"]
    s.note([len(one["data"]), one["data"][0] == one["meta"]["prevCount"]])


@scenario
def metrics_arguments(s):
    """The checks of the queue form, in order."""
    for m in (
        {"type": "completed"},
        {"queue": "", "type": "x"},
        {"queue": "a b", "type": "x"},
        {"queue": "q" * 257, "type": "x"},
        {"queue": s.q()},
        {"queue": s.q(), "type": "active"},
        {"queue": s.q(), "type": "completed", "start": -1},
        {"queue": s.q(), "type": "completed", "start": 1.5},
        {"queue": s.q(), "type": "completed", "start": "0"},
        {"queue": s.q(), "type": "completed", "end": -2},
        {"queue": s.q(), "type": "failed", "end": 0.5},
        {"queue": s.q(), "type": "failed", "start": -1, "end": -2},
    ):
        s.note(s.quiet.cmd(cmd="Metrics", **m).get("error", "accepted"))


@scenario
def trimming_the_journal(s):
    """TrimEvents keeps the newest entries of one queue and says how many went."""
    s.cmd(cmd="TrimEvents", queue=s.q(), maxLength=0)
    run(s, 4)
    s.cmd(cmd="TrimEvents", queue=s.q(), maxLength=100)
    s.cmd(cmd="TrimEvents", queue=s.q(), maxLength=5)
    s.cmd(cmd="TrimEvents", queue=s.q(), maxLength=5)
    s.cmd(cmd="TrimEvents", queue=s.q(), maxLength=0)
    s.cmd(cmd="TrimEvents", queue=s.q(), maxLength=0)


@scenario
def what_the_journal_holds(s):
    """One entry per job event: push, delivery, progress, failure and retry, pause; none for drained jobs."""

    def count():
        return s.quiet.cmd(cmd="TrimEvents", queue=s.q(), maxLength=0)["data"]["removed"]

    s.quiet.cmd(cmd="PUSHB", queue=s.q(), jobs=[{"name": "j", "data": {}} for _ in range(3)])
    seen = [count()]
    s.quiet.cmd(cmd="Drain", queue=s.q()), seen.append(count())
    s.quiet.cmd(cmd="Pause", queue=s.q()), s.quiet.cmd(cmd="Resume", queue=s.q()), seen.append(count())
    i = s.quiet.cmd(cmd="PUSH", queue=s.q(), name="j", data={})["id"]
    s.quiet.cmd(cmd="PULL", queue=s.q()), s.quiet.cmd(cmd="Progress", id=i, progress=5), seen.append(count())
    s.quiet.cmd(cmd="FAIL", id=i, error="x"), seen.append(count())
    s.quiet.cmd(cmd="Cancel", id=i), seen.append(count())
    s.note(seen)


@scenario
def trim_arguments(s):
    """Queue name first, then maxLength: a non-negative safe integer."""
    for m in (
        {},
        {"queue": ""},
        {"queue": "a b", "maxLength": -1},
        {"queue": s.q()},
        {"queue": s.q(), "maxLength": -1},
        {"queue": s.q(), "maxLength": 1.5},
        {"queue": s.q(), "maxLength": "5"},
        {"queue": s.q(), "maxLength": None},
    ):
        s.note(s.quiet.cmd(cmd="TrimEvents", **m).get("error", "accepted"))


@scenario
def global_figures(s):
    """The keys of Stats, Metrics, StorageStatus and Ping, and that totals grow with the work."""
    a = s.quiet.cmd(cmd="Metrics")["metrics"]
    run(s, 2, fail=1)
    b = s.quiet.cmd(cmd="Metrics")["metrics"]
    s.note(sorted(b))
    s.note(
        [
            b[k] - a[k] >= n
            for k, n in (("totalPushed", 3), ("totalPulled", 3), ("totalCompleted", 2), ("totalFailed", 1))
        ]
    )
    s.note(sorted(s.quiet.cmd(cmd="Stats")["stats"]))
    s.cmd(cmd="StorageStatus")
    s.note(s.quiet.cmd(cmd="Ping")["data"]["pong"])
    s.cmd(cmd="CompactMemory")


@scenario
def dashboard_of_a_queue(s):
    """DashboardQueue of a queue with jobs of several kinds."""
    run(s, 1, fail=1)
    (
        s.quiet.cmd(cmd="PUSH", queue=s.q(), name="w", data={}),
        s.quiet.cmd(cmd="PUSH", queue=s.q(), name="p", data={}, priority=5),
    )
    s.quiet.cmd(cmd="PUSH", queue=s.q(), name="d", data={}, delay=60000)
    s.cmd(cmd="DashboardQueue", queue=s.q())
    got = s.quiet.cmd(cmd="DashboardQueue", queue=s.q(), includeJobs=True)["data"]["jobs"]
    s.note({k: [sorted(j) for j in v][:1] + [len(v)] for k, v in got.items()})
    s.quiet.cmd(cmd="Pause", queue=s.q())
    d = s.quiet.cmd(cmd="DashboardQueue", queue=s.q())["data"]
    s.note([d["paused"], d["counts"]["waiting"], d["counts"]["prioritized"], d["counts"]["paused"]])


@scenario
def dashboard_overviews(s):
    """The keys of the global dashboards, and one queue's line in the list."""
    s.quiet.cmd(cmd="PUSH", queue=s.q(), name="w", data={})
    d = s.quiet.cmd(cmd="DashboardOverview")["data"]
    s.note(
        {
            k: sorted(v) if isinstance(v, dict) else type(v).__name__
            for k, v in d.items()
            if k not in ("memory", "collections", "timestamp")
        }
    )
    s.note([q for q in s.quiet.cmd(cmd="DashboardQueues")["data"]["queues"] if q["name"] == s.q()])


@scenario
def prometheus_over_tcp(s):
    """The Prometheus command answers text in exposition format: its metric names and kinds (the file size aside)."""
    run(s, 1, fail=1)
    text = s.quiet.cmd(cmd="Prometheus")["data"]["metrics"]
    s.note(
        sorted(
            " ".join(line.split()[2:4])
            for line in text.splitlines()
            if line.startswith("# TYPE") and "sqlite" not in line
        )
    )
