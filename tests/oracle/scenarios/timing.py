"""What time and lost connections do: timeouts, ttl, lock expiry, stalls, release."""

from oracle import scenario, scenario_opts


def pick(job, *keys):
    return {k: (job or {}).get(k) for k in keys}


def push(s, **opts):
    return s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data={"v": 1}, **opts)["id"]


def gone_from_active(s, i, timeout=20):
    return s.until(lambda c: c.cmd(cmd="GetState", id=i)["state"] != "active", timeout=timeout)


@scenario
def ttl_in_the_queue(s):
    """A job whose ttl passed is never delivered and leaves no trace once a pull met it."""
    i = push(s, ttl=100)
    j = push(s, ttl=600000)
    s.sleep(0.4)
    s.note(s.quiet.cmd(cmd="PULL", queue=s.q())["job"]["id"] == j)
    s.cmd(cmd="PULL", queue=s.q())
    s.cmd(cmd="GetState", id=i)
    s.cmd(cmd="Dlq", queue=s.q())
    s.cmd(cmd="GetJobCounts", queue=s.q())


@scenario
def ttl_does_not_touch_active_jobs(s):
    """Once delivered, a job may outlive its ttl."""
    i = push(s, ttl=1000)
    s.quiet.cmd(cmd="PULL", queue=s.q())
    s.sleep(1.4)
    s.cmd(cmd="ACK", id=i, result="fine")
    s.cmd(cmd="GetState", id=i)


@scenario
def timeout_with_retry(s):
    """A job that runs too long fails like any other and is retried; a late outcome with its token is told so."""
    i = push(s, timeout=300, backoff=600000)
    got = s.quiet.cmd(cmd="PULL", queue=s.q(), owner="w")
    gone_from_active(s, i)
    s.note(pick(s.quiet.cmd(cmd="GetJob", id=i)["job"], "state", "attempts", "failedReason", "stallCount"))
    s.cmd(cmd="ACK", id=i, token=got["token"], result="late")
    s.cmd(cmd="FAIL", id=i, token=got["token"], error="late")
    s.cmd(cmd="GetState", id=i)


@scenario
def timeout_of_the_last_attempt(s):
    """The last timeout is a dead letter with its own reason."""
    s.cmd(cmd="SubscribeEvents", queue=s.q())
    i = push(s, timeout=200, maxAttempts=1)
    got = s.quiet.cmd(cmd="PULL", queue=s.q(), owner="w")
    gone_from_active(s, i)
    s.cmd(cmd="GetState", id=i)
    e = s.quiet.cmd(cmd="Dlq", queue=s.q())["entries"][0]
    s.note([e["reason"], e["error"], [pick(a, "attempt", "reason", "error") for a in e["attempts"]]])
    s.cmd(cmd="ACKB", ids=[i], tokens=[got["token"]], results=[1])
    s.events()


@scenario
def finished_in_time(s):
    """A job finished before its timeout stays finished."""
    i = push(s, timeout=1000)
    s.quiet.cmd(cmd="PULL", queue=s.q())
    s.cmd(cmd="ACK", id=i)
    s.sleep(1.4)
    s.cmd(cmd="GetState", id=i)


@scenario_opts(slow=True)
def lock_runs_out(s):
    """A lapsed lock puts the job back at once, with an attempt and a stall counted and no wait."""
    s.cmd(cmd="SubscribeEvents", queue=s.q())
    i = push(s, backoff=600000)
    got = s.quiet.cmd(cmd="PULL", queue=s.q(), owner="w", lockTtl=100)
    gone_from_active(s, i)
    job = s.quiet.cmd(cmd="GetJob", id=i)["job"]
    s.note(pick(job, "state", "attempts", "stallCount", "startedAt"))
    s.note([t["state"] for t in job["timeline"]])
    s.cmd(cmd="JobHeartbeat", id=i, token=got["token"])
    s.cmd(cmd="ACK", id=i, token=got["token"], result="after all")
    s.cmd(cmd="GetState", id=i)
    s.events()


@scenario_opts(slow=True)
def lock_runs_out_for_the_last_time(s):
    """With no attempt left a lapsed lock is a dead letter."""
    s.cmd(cmd="SubscribeEvents", queue=s.q())
    i = push(s, maxAttempts=1)
    got = s.quiet.cmd(cmd="PULL", queue=s.q(), owner="w", lockTtl=100)
    gone_from_active(s, i)
    s.cmd(cmd="GetState", id=i)
    e = s.quiet.cmd(cmd="Dlq", queue=s.q())["entries"][0]
    s.note([e["reason"], e["error"]])
    s.cmd(cmd="ACK", id=i, token=got["token"])
    s.events()


@scenario_opts(slow=True)
def renewed_lock_holds(s):
    """A lock renewed in time keeps the job active past its first term."""
    i = push(s)
    got = s.quiet.cmd(cmd="PULL", queue=s.q(), owner="w", lockTtl=2500)
    for _ in range(15):
        s.sleep(0.5)
        s.quiet.cmd(cmd="JobHeartbeat", id=i, token=got["token"])
    s.cmd(cmd="GetState", id=i)
    s.cmd(cmd="ACK", id=i, token=got["token"])


@scenario_opts(slow=True)
def stalled_job_is_retried(s):
    """Without heartbeats a job stalls: attempt and stall counted, backoff applied, told as stalled with retry."""
    s.cmd(cmd="SubscribeEvents", queue=s.q())
    s.cmd(cmd="SetStallConfig", queue=s.q(), config={"stallInterval": 200, "gracePeriod": 0})
    i = push(s, backoff=600000)
    s.quiet.cmd(cmd="PULL", queue=s.q())
    gone_from_active(s, i)
    job = s.quiet.cmd(cmd="GetJob", id=i)["job"]
    s.note(pick(job, "state", "attempts", "stallCount", "failedReason"))
    s.events()


@scenario_opts(slow=True)
def stalled_too_often(s):
    """At the stall limit the job is a dead letter with reason stalled, and no failed event is told."""
    s.cmd(cmd="SubscribeEvents", queue=s.q())
    s.cmd(cmd="SetStallConfig", queue=s.q(), config={"stallInterval": 200, "gracePeriod": 0, "maxStalls": 1})
    i = push(s)
    s.quiet.cmd(cmd="PULL", queue=s.q())
    gone_from_active(s, i)
    s.cmd(cmd="GetState", id=i)
    e = s.quiet.cmd(cmd="Dlq", queue=s.q())["entries"][0]
    s.note([e["reason"], e["error"]])
    s.events()


@scenario_opts(slow=True)
def heartbeats_prevent_a_stall(s):
    """Heartbeats without token and progress reports keep a job from stalling; so does a longer stallTimeout of its own."""
    s.cmd(cmd="SetStallConfig", queue=s.q(), config={"stallInterval": 2500, "gracePeriod": 0})
    i, j, k = push(s), push(s), push(s, stallTimeout=600000)
    s.quiet.cmd(cmd="PULLB", queue=s.q(), count=3)
    for n in range(26):
        s.sleep(0.5)
        s.quiet.cmd(cmd="JobHeartbeat", id=i)
        s.quiet.cmd(cmd="Progress", id=j, progress=n)
    for x in (i, j, k):
        s.cmd(cmd="GetState", id=x)


@scenario_opts(slow=True)
def stall_detection_switched_off(s):
    """With enabled false nothing stalls."""
    s.cmd(cmd="SetStallConfig", queue=s.q(), config={"enabled": False, "stallInterval": 100, "gracePeriod": 0})
    i = push(s)
    s.quiet.cmd(cmd="PULL", queue=s.q())
    s.sleep(12)
    s.cmd(cmd="GetState", id=i)


@scenario
def stall_configuration(s):
    """Defaults and partial changes of the stall settings."""
    s.cmd(cmd="GetStallConfig", queue=s.q())
    s.cmd(cmd="SetStallConfig", queue=s.q(), config={"stallInterval": 1000})
    s.cmd(cmd="GetStallConfig", queue=s.q())
    s.cmd(cmd="SetStallConfig", queue=s.q(), config={"enabled": False, "maxStalls": 9, "gracePeriod": 1})
    s.cmd(cmd="GetStallConfig", queue=s.q())
    s.cmd(cmd="SetStallConfig", queue=s.q(), config={})
    s.cmd(cmd="GetStallConfig", queue=s.q())
    s.cmd(cmd="GetStallConfig", queue=s.q("other"))


@scenario
def connection_lost(s):
    """Jobs of a lost connection return to their queue untouched: no attempt, no event, old token void."""
    s.cmd(cmd="SubscribeEvents", queue=s.q())
    i = push(s)
    j = push(s)
    got = s.conn("w").cmd(cmd="PULL", queue=s.q(), owner="w")
    s.conn("w").cmd(cmd="PULL", queue=s.q())
    s.conn("w").close()
    gone_from_active(s, i)
    gone_from_active(s, j)
    for x in (i, j):
        s.note(pick(s.quiet.cmd(cmd="GetJob", id=x)["job"], "state", "attempts", "stallCount", "startedAt"))
    s.cmd(cmd="ACK", id=i, token=got["token"])
    s.events()
    s.note([x["id"] == y for x, y in zip(s.quiet.cmd(cmd="PULLB", queue=s.q(), count=5)["jobs"], (i, j))])


@scenario
def connection_lost_after_a_renewal(s):
    """A lock that was renewed outlives the connection that pulled."""
    i, j = push(s), push(s)
    one = s.conn("w").cmd(cmd="PULL", queue=s.q(), owner="w")
    two = s.conn("w").cmd(cmd="PULL", queue=s.q(), owner="w")
    s.conn("b").cmd(cmd="JobHeartbeat", id=i, token=one["token"])
    s.conn("b").cmd(cmd="JobHeartbeat", id=j)
    s.conn("w").close()
    gone_from_active(s, j)
    s.sleep(0.3)
    s.cmd(cmd="GetState", id=i)
    s.cmd(cmd="GetState", id=j)
    s.cmd(cmd="ACK", id=i, token=one["token"])
    s.cmd(cmd="ACK", id=j, token=two["token"])
