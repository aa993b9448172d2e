"""Event subscriptions (frames, order, payloads) and the registry of workers."""

from oracle import scenario


def sub(s, name="q"):
    s.cmd(cmd="SubscribeEvents", queue=s.q(name))


@scenario
def life_of_a_job_in_events(s):
    """Pushed, pulled, progress, completed: frames and payloads in order."""
    sub(s)
    i = s.cmd(cmd="PUSH", queue=s.q(), name="n", data={"x": 1})["id"]
    s.quiet.cmd(cmd="PULL", queue=s.q())
    s.cmd(cmd="Progress", id=i, progress=40, message="m")
    s.cmd(cmd="Progress", id=i, progress=60)
    s.cmd(cmd="ACK", id=i, result={"r": 1})
    s.events()


@scenario
def failure_in_events(s):
    """A failure with a retry says so twice; the last one is terminal."""
    sub(s)
    i = s.cmd(cmd="PUSH", queue=s.q(), name="n", data={"x": 1}, maxAttempts=2, backoff=0)["id"]
    s.quiet.cmd(cmd="PULL", queue=s.q())
    s.cmd(cmd="FAIL", id=i, error="one")
    s.quiet.cmd(cmd="PULL", queue=s.q(), timeout=3000)
    s.cmd(cmd="FAIL", id=i, error="two")
    s.events()


@scenario
def unrecoverable_in_events(s):
    """An unrecoverable failure is terminal at once, also with removeOnFail."""
    sub(s)
    for opts in ({}, {"removeOnFail": True}):
        i = s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data={"x": 1}, **opts)["id"]
        s.quiet.cmd(cmd="PULL", queue=s.q())
        s.cmd(cmd="FAIL", id=i, error="never", unrecoverable=True)
    s.events()


@scenario
def event_comes_before_the_answer(s):
    """The event a command causes precedes that command's answer on the same connection."""
    sub(s)
    s.a.wire.send({"cmd": "PUSH", "queue": s.q(), "name": "n", "data": 1, "reqId": "p"})
    first, second = s.a.wire._frame(5), s.a.wire._frame(5)
    s.note([first.get("type"), sorted(k for k in first), second.get("reqId")])
    s.note([first["event"]["jobId"] == second["id"], "reqId" in first, "ok" in first])


@scenario
def only_the_subscribed_queue(s):
    """One queue per connection: other queues are silent, a new subscription replaces the old, none after unsubscribing."""
    sub(s, "one")
    s.quiet.cmd(cmd="PUSH", queue=s.q("one"), name="n", data=1)
    s.quiet.cmd(cmd="PUSH", queue=s.q("one:more"), name="n", data=1)
    s.events()
    sub(s, "two")
    s.quiet.cmd(cmd="PUSH", queue=s.q("one"), name="n", data=1)
    s.quiet.cmd(cmd="PUSH", queue=s.q("two"), name="n", data=1)
    s.events()
    s.cmd(cmd="UnsubscribeEvents")
    s.cmd(cmd="UnsubscribeEvents")
    s.quiet.cmd(cmd="PUSH", queue=s.q("two"), name="n", data=1)
    s.events()


@scenario
def subscription_needs_a_queue_name(s):
    """The queue name of a subscription is checked."""
    s.cmd(cmd="SubscribeEvents")
    for bad in ("", "a b", "*", "x" * 257):
        s.cmd(cmd="SubscribeEvents", queue=bad)


@scenario
def no_replay(s):
    """A subscription tells nothing of the past."""
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1)
    sub(s)
    s.events()


@scenario
def several_subscribers(s):
    """Every subscriber of a queue gets each event."""
    for name in "abc":
        s.conn(name).cmd(cmd="SubscribeEvents", queue=s.q())
    s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data=1)
    s.quiet.cmd(cmd="PULL", queue=s.q())
    for name in "abc":
        s.conn(name).events()


@scenario
def duplicate_in_events(s):
    """A unique-key duplicate is told with the owner's id; a repeated custom id is not told."""
    sub(s)
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, uniqueKey="k")
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data=2, uniqueKey="k")
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, jobId=s.uid("c"))
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data=2, jobId=s.uid("c"))
    s.events()


@scenario
def pause_and_resume_in_events(s):
    """Pause and resume carry an empty job id."""
    sub(s)
    s.cmd(cmd="Pause", queue=s.q())
    s.cmd(cmd="Resume", queue=s.q())
    s.events()


@scenario
def moves_of_an_active_job_in_events(s):
    """Moving an active job to delayed, to waiting or to waiting for children is told, cancelling too."""
    sub(s)
    i = s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data=1)["id"]
    s.quiet.cmd(cmd="PULL", queue=s.q())
    s.cmd(cmd="MoveToDelayed", id=i, delay=500)
    s.quiet.cmd(cmd="Promote", id=i)
    s.quiet.cmd(cmd="PULL", queue=s.q())
    s.cmd(cmd="MoveToWait", id=i)
    s.quiet.cmd(cmd="PULL", queue=s.q())
    s.cmd(cmd="MoveToWaitingChildren", id=i)
    j = s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, delay=600000)["id"]
    s.cmd(cmd="Cancel", id=j)
    s.events()


@scenario
def silent_commands(s):
    """What is told to nobody: promotion, changes of queued jobs, discard, drain, clean, dead letter work."""
    ids = [
        s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data=n, **o)["id"]
        for n, o in enumerate(({"delay": 600000}, {}, {}, {}, {"timestamp": 1000}))
    ]
    sub(s)
    s.cmd(cmd="Promote", id=ids[0])
    s.cmd(cmd="ChangeDelay", id=ids[1], delay=600000)
    s.cmd(cmd="MoveToDelayed", id=ids[1], delay=700000)
    s.cmd(cmd="ChangePriority", id=ids[2], priority=4)
    s.cmd(cmd="Update", id=ids[2], data="new")
    s.cmd(cmd="Discard", id=ids[3])
    s.cmd(cmd="RetryDlq", queue=s.q())
    s.cmd(cmd="Clean", queue=s.q(), grace=600000)
    s.cmd(cmd="Drain", queue=s.q())
    s.events()


@scenario
def register_a_worker(s):
    """Registration: the answer, defaults, and what a second registration changes."""
    w = s.uid("w1")
    s.cmd(cmd="RegisterWorker", workerId=w, name="first", queues=[s.q()])
    s.cmd(
        cmd="RegisterWorker",
        workerId=w,
        name="second",
        queues=[s.q(), s.q("b")],
        concurrency=7,
        hostname="host",
        pid=42,
    )
    got = s.quiet.cmd(cmd="RegisterWorker", name="no-id", queues=[s.q()], concurrency=2)
    s.note([len(got["data"]["workerId"]) == 36, got["data"]["concurrency"], got["data"]["status"]])
    me = [x for x in s.quiet.cmd(cmd="ListWorkers")["data"]["workers"] if x["id"] == w][0]
    s.note([me["name"], me["hostname"], me["pid"], me["concurrency"], me["uptime"] >= 0])
    s.cmd(cmd="UnregisterWorker", workerId=w)
    s.cmd(cmd="UnregisterWorker", workerId=w)


@scenario
def worker_heartbeat(s):
    """Heartbeats set the counters they carry and keep the others."""
    w = s.uid("w1")
    s.cmd(cmd="Heartbeat", id=w)
    s.cmd(cmd="RegisterWorker", workerId=w, name="first", queues=[s.q()], startedAt=1700000000000.0)
    s.cmd(cmd="Heartbeat", id=w)
    s.cmd(cmd="Heartbeat", id=w, activeJobs=2, processed=10, failed=1)
    s.cmd(cmd="Heartbeat", id=w, processed=11)
    me = [x for x in s.quiet.cmd(cmd="ListWorkers")["data"]["workers"] if x["id"] == w]
    s.note(
        [
            len(me),
            {
                k: me[0].get(k)
                for k in (
                    "name",
                    "activeJobs",
                    "processedJobs",
                    "failedJobs",
                    "status",
                    "concurrency",
                    "currentJob",
                    "hostname",
                    "queues",
                )
            },
            me[0]["registeredAt"] == 1700000000000,
        ]
    )


@scenario
def worker_leaves_with_its_connection(s):
    """A worker vanishes from the registry when the connection that registered it closes; others stay."""
    w, x = s.uid("w1"), s.uid("w2")
    s.conn("b").cmd(cmd="RegisterWorker", workerId=w, name="n", queues=[s.q()])
    s.cmd(cmd="RegisterWorker", workerId=x, name="n", queues=[s.q()])
    there = lambda c: [v["id"] for v in c.cmd(cmd="ListWorkers")["data"]["workers"] if v["id"] in (w, x)]
    s.note(sorted(there(s.quiet)))
    s.conn("b").close()
    s.until(lambda c: w not in there(c))
    s.note(there(s.quiet))
    s.cmd(cmd="Heartbeat", id=w)
    s.cmd(cmd="Heartbeat", id=x)
