"""Server-sent events and WebSocket: first messages, filters, subscriptions, commands over the socket."""

import time

from oracle import scenario, scenario_opts


def push(s, name="j", queue="q", **opts):
    return s.quiet.cmd(cmd="PUSH", queue=s.q(queue), name=name, data={"n": name}, **opts)["id"]


def take(s, queue="q", **more):
    return s.quiet.cmd(cmd="PULL", queue=s.q(queue), **more)


def life(s, queue="q"):
    """One job's whole life with progress, then a failing one that is retried and cancelled."""
    i = push(s, queue=queue)
    take(s, queue)
    s.quiet.cmd(cmd="Progress", id=i, progress=40)
    s.quiet.cmd(cmd="ACK", id=i, result={"r": 1})
    k = push(s, queue=queue, backoff=60000)
    take(s, queue)
    s.quiet.cmd(cmd="FAIL", id=k, error="oops")
    s.quiet.cmd(cmd="Cancel", id=k)


def job_events(stream, last="job:removed", timeout=8.0):
    """The job events of a server-sent stream up to the last one of life()."""
    out, end = [], time.monotonic() + timeout
    while time.monotonic() < end:
        m = stream.next(end - time.monotonic())
        if m is None:
            break
        if str(m.get("event", "")).startswith("job:") and "timestamp" in (m.get("data") or {}):
            out.append(m)
            if m["event"] == last:
                break
    return out


@scenario
def sse_greeting(s):
    """The first message sets the retry time and names the client; it has neither event nor id."""
    for path in ("/events", "/events/queues/" + s.q()):
        e = s.sse(path)
        first = e.next()
        e.close()
        s.note(
            [
                e.status,
                e.headers.get("content-type"),
                e.headers.get("cache-control"),
                {k: v for k, v in first.items() if k != "data"},
                sorted(first["data"]),
                first["data"]["connected"],
            ]
        )


@scenario
def sse_job_events(s):
    """A queue's stream tells the life of its jobs, without data or results, under public event names."""
    e = s.sse("/events/queues/" + s.q())
    e.next()
    life(s)
    got = job_events(e)
    e.close()
    s.note([[m["event"], m["data"]] for m in got])
    ids = [int(m["id"]) for m in got]
    s.note([ids == sorted(ids), len(set(ids)) == len(ids), ids[0] > 0])


@scenario
def sse_filter(s):
    """A filtered stream carries no job events of other queues; an unfiltered one carries all."""
    one, every = s.sse("/events/queues/" + s.q()), s.sse("/events")
    one.next(), every.next()
    life(s, "other"), life(s)
    names = [[m["event"], m["data"]["queue"]] for m in job_events(one)]
    s.note([sorted({q for _, q in names}), len(names)])
    seen = []
    while len(seen) < 18 and (
        m := every.until(
            lambda m: (
                (m.get("data") or {}).get("queue") in (s.q(), s.q("other"))
                and m["event"].startswith("job:")
                and "timestamp" in m["data"]
            )
        )
    ):
        seen.append([m["event"], m["data"]["queue"]])
    s.note(seen)
    one.close(), every.close()


@scenario
def sse_queue_counts(s):
    """After a job event the counts of its queue follow."""
    e = s.sse("/events/queues/" + s.q())
    e.next()
    push(s), push(s, priority=2)
    m = e.until(
        lambda m: (
            m.get("event") == "queue:counts"
            and m["data"]["queue"] == s.q()
            and m["data"]["waiting"] == 1
            and m["data"]["prioritized"] == 1
        )
    )
    e.close()
    s.note(m and m["data"])


@scenario
def sse_replay(s):
    """Last-Event-ID replays the missed job events of the filter with their own ids; a useless header replays none."""
    keeper, e = s.sse("/events"), s.sse("/events/queues/" + s.q())
    e.next(), keeper.next()
    push(s, "a", delay=60000)
    first = e.until(lambda m: m.get("event") == "job:pushed")
    e.close()
    life(s)
    s.sleep(0.3)
    again = s.sse("/events/queues/" + s.q(), headers={"Last-Event-ID": first["id"]})
    again.next()
    got = job_events(again)
    s.note([m["event"] for m in got])
    s.note(all(int(m["id"]) > int(first["id"]) for m in got))
    again.close()
    none = s.sse("/events/queues/" + s.q(), headers={"Last-Event-ID": "abc"})
    none.next()
    m = none.until(lambda m: (m.get("data") or {}).get("queue") == s.q() and m.get("event") == "job:pushed", 0.7)
    s.note(m)
    none.close(), keeper.close()


@scenario
def sse_system_events(s):
    """System events reach a stream whatever its filter: pause, resume, drain, obliterate, workers, schedulers, limits."""
    e = s.sse("/events/queues/" + s.uid("filtered"))
    e.next()
    push(s), push(s, "x")
    s.quiet.cmd(cmd="Pause", queue=s.q()), s.quiet.cmd(cmd="Resume", queue=s.q()), s.quiet.cmd(cmd="Drain", queue=s.q())
    s.quiet.cmd(cmd="RateLimit", queue=s.q(), limit=5, duration=1000), s.quiet.cmd(cmd="RateLimitClear", queue=s.q())
    s.quiet.cmd(cmd="SetConcurrency", queue=s.q(), limit=5), s.quiet.cmd(cmd="ClearConcurrency", queue=s.q())
    s.quiet.cmd(cmd="Cron", name=s.uid("c"), queue=s.q(), data={}, repeatEvery=3600000)
    s.quiet.cmd(cmd="Cron", name=s.uid("c"), queue=s.q(), data={}, repeatEvery=1800000)
    s.quiet.cmd(cmd="CronDelete", name=s.uid("c"))
    s.quiet.cmd(cmd="RegisterWorker", name="w", queues=[s.q()], workerId=s.uid("w"), hostname="h", pid=1)
    s.quiet.cmd(cmd="Heartbeat", id=s.uid("w")), s.quiet.cmd(cmd="UnregisterWorker", workerId=s.uid("w"))
    s.quiet.cmd(cmd="Obliterate", queue=s.q())
    mine = (s.q(), s.uid("c"), s.uid("w"))
    seen = []
    while m := e.until(
        lambda m: (
            "event" in m
            and m["event"] != "queue:counts"
            and "snapshot" not in m["event"]
            and any((m.get("data") or {}).get(k) in mine for k in ("queue", "name", "workerId"))
        )
    ):
        seen.append([m["event"], m["data"]])
        if m["event"] in ("queue:obliterated",):
            break
    e.close()
    s.note(seen)


@scenario
def ws_commands(s):
    """A WebSocket takes commands as JSON text and echoes reqId; answers are those of TCP."""
    w = s.ws()
    s.note(w.status)
    s.note(w.ask({"cmd": "Ping", "reqId": "r1"})["reqId"])
    got = w.ask({"cmd": "PUSH", "queue": s.q(), "name": "j", "data": {"x": 1}, "reqId": 7})
    s.note([got["ok"], got["reqId"]])
    job = w.ask({"cmd": "PULL", "queue": s.q(), "reqId": "p"})["job"]
    s.note([job["name"], job["data"], job["id"] == got["id"]])
    s.note(w.ask({"cmd": "ACK", "id": job["id"], "result": [1]}))
    s.note(w.ask({"cmd": "GetResult", "id": job["id"], "reqId": "g"}))
    s.note(w.ask({"cmd": "GetJob", "id": s.uid("nobody"), "reqId": "n"}))
    s.note(w.ask({"cmd": "Hello", "reqId": "h"})["protocolVersion"])
    w.close()


@scenario
def ws_bad_messages(s):
    """Unparsable text, values that are no commands, unknown commands, and commands that exist on TCP alone."""
    w = s.ws()
    for text in (
        "{nope",
        "",
        "null",
        "5",
        "[]",
        "{}",
        '"x"',
        '{"cmd":""}',
        '{"cmd":"Nonsense","reqId":"a"}',
        '{"cmd":"SubscribeEvents","queue":"q","reqId":"b"}',
        '{"cmd":"UnsubscribeEvents"}',
    ):
        s.note([text, w.ask(text)])
    s.note(w.ask({"cmd": "Ping", "reqId": "still"})["ok"])
    w.close()


@scenario
def ws_subscriptions(s):
    """Subscribe adds patterns and refuses unknown ones whole; Unsubscribe removes some or all."""
    w = s.ws()
    s.note(w.ask({"cmd": "Unsubscribe", "reqId": "u0"}))
    for events in (
        None,
        [],
        "job:*",
        ["job:nope"],
        ["job:*", "what", "x:*"],
        ["job:completed"],
        ["queue:*", "job:completed"],
    ):
        s.note([events, w.ask({"cmd": "Subscribe", "events": events, "reqId": "s"})])
    s.note(w.ask({"cmd": "Unsubscribe", "events": ["queue:*", "never:added"]}))
    s.note(w.ask({"cmd": "Unsubscribe", "reqId": "u1"}))
    for p in (
        "*",
        "dlq:*",
        "flow:failed",
        "worker:connected",
        "ratelimit:rejected",
        "health:status",
        "server:shutdown",
        "memory:compacted",
        "config:dlq-changed",
        "job:duplicated",
        "flow:pushed",
        "job:waiting",
    ):
        s.note([p, w.ask({"cmd": "Subscribe", "events": [p]})["ok"]])
    w.close()


@scenario
def ws_subscribed_events(s):
    """A subscribed client gets {event, ts, data} for matching events only."""
    w = s.ws("/ws/queues/" + s.q())
    w.ask({"cmd": "Subscribe", "events": ["job:completed", "job:failed", "job:removed"]})
    life(s)
    seen = []
    while m := w.until(lambda m: isinstance(m, dict) and "event" in m):
        seen.append(m)
        if m["event"] == "job:removed":
            break
    w.close()
    s.note(seen)


@scenario
def ws_raw_events_without_subscription(s):
    """A client that never subscribed gets the job events of its filter as they are, and no system events."""
    w = s.ws("/ws/queues/" + s.q())
    w.ask({"cmd": "Ping"})
    life(s, "other")
    s.quiet.cmd(cmd="Pause", queue=s.q()), s.quiet.cmd(cmd="Resume", queue=s.q())
    life(s)
    seen = []
    while m := w.until(lambda m: isinstance(m, dict) and "ok" not in m):
        seen.append(m)
        if m.get("eventType") == "removed":
            break
    w.close()
    s.note(seen)


@scenario
def ws_silence_after_unsubscribing_all(s):
    """Having unsubscribed everything a client gets nothing, not the raw events."""
    w = s.ws("/ws/queues/" + s.q())
    w.ask({"cmd": "Subscribe", "events": ["job:*"]})
    w.ask({"cmd": "Unsubscribe"})
    life(s)
    s.note(w.until(lambda m: "ok" not in m, 0.8))
    s.note(w.ask({"cmd": "Ping", "reqId": "p"})["ok"])
    w.close()


@scenario
def ws_wildcards(s):
    """A family pattern covers its family; the star covers job and system events."""
    fam, star = s.ws("/ws/queues/" + s.q()), s.ws("/ws/queues/" + s.q())
    fam.ask({"cmd": "Subscribe", "events": ["job:*"]}), star.ask({"cmd": "Subscribe", "events": ["*"]})
    push(s)
    s.quiet.cmd(cmd="Pause", queue=s.q())
    push(s, "last")
    mine = lambda m: "event" in m and m["data"].get("queue") == s.q() and m["event"] != "queue:counts"
    s.note([(fam.until(mine) or {}).get("event") for _ in range(2)])
    seen = []
    while len([e for e in seen if e == "job:pushed"]) < 2 and (m := star.until(mine)):
        seen.append(m["event"])
    s.note([seen.count("job:pushed"), "queue:paused" in seen])
    fam.close(), star.close()


@scenario
def ws_owns_what_it_pulls(s):
    """Jobs pulled over a socket return to their queue, and its workers go, when it closes."""
    push(s)
    w = s.ws()
    job = w.ask({"cmd": "PULL", "queue": s.q(), "owner": "w", "reqId": 1})["job"]
    w.ask({"cmd": "RegisterWorker", "name": "n", "queues": [s.q()], "workerId": s.uid("w"), "reqId": 2})
    s.note(s.quiet.cmd(cmd="GetState", id=job["id"])["state"])
    w.close()
    s.until(lambda c: c.cmd(cmd="GetState", id=job["id"])["state"] == "waiting")
    s.note(
        [
            s.quiet.cmd(cmd="GetState", id=job["id"])["state"],
            [x for x in s.quiet.cmd(cmd="ListWorkers")["data"]["workers"] if x["id"] == s.uid("w")],
        ]
    )


@scenario
def upgrade_is_needed(s):
    """A plain request on the socket's path is refused."""
    code, text = s.http("GET", "/ws")
    s.note(s.ws("/ws/anything").status)


@scenario_opts(slow=True)
def periodic_snapshots(s):
    """Statistics come about every five seconds, health every ten, to streams and subscribed sockets."""
    e, w = s.sse("/events/queues/" + s.q()), s.ws()
    w.ask({"cmd": "Subscribe", "events": ["stats:snapshot", "health:status"]})
    m = e.until(lambda m: m.get("event") == "stats:snapshot", 12)
    s.note(sorted(m["data"]) if m else None)
    m = w.until(lambda m: m.get("event") == "stats:snapshot", 12)
    s.note([sorted(m), sorted(m["data"])] if m else None)
    m = w.until(lambda m: m.get("event") == "health:status", 15)
    s.note([sorted(m["data"]), sorted(m["data"]["connections"])] if m else None)
    m = e.until(lambda m: m.get("event") == "health:status", 15)
    s.note([sorted(m["data"]), sorted(m["data"]["connections"])] if m else None)
    e.close(), w.close()
