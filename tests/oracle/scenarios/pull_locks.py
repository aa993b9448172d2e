"""Delivery: PULL, PULLB, long polls, lock tokens, heartbeats and lock extension."""

from oracle import scenario


def take(s, name="q", **opts):
    """Push one job and pull it with a lock, unrecorded; gives (id, token)."""
    s.quiet.cmd(cmd="PUSH", queue=s.q(name), name="n", data={"v": 1}, **opts)
    got = s.quiet.cmd(cmd="PULL", queue=s.q(name), owner="w")
    return got["job"]["id"], got["token"]


@scenario
def pull_without_owner(s):
    """No owner: the job, active, and no lock on it."""
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data={"v": 1})
    got = s.cmd(cmd="PULL", queue=s.q())
    s.cmd(cmd="PULL", queue=s.q())
    s.cmd(cmd="GetState", id=got["job"]["id"])
    s.cmd(cmd="ACK", id=got["job"]["id"])


@scenario
def pull_with_owner(s):
    """An owner gets a token with each job, and none when there is no job."""
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data={"v": 1})
    got = s.cmd(cmd="PULL", queue=s.q(), owner="w1")
    s.cmd(cmd="PULL", queue=s.q(), owner="w1")
    s.note([t["state"] for t in got["job"]["timeline"]])
    s.note(got["job"]["startedAt"] >= got["job"]["createdAt"])


@scenario
def pull_timeout_bounds(s):
    """The wait is a number from 0 to 60000."""
    for bad in ("5", float("nan"), float("inf"), -1, 60001, True, [1]):
        s.cmd(cmd="PULL", queue=s.q(), timeout=bad)
        s.cmd(cmd="PULLB", queue=s.q(), count=1, timeout=bad)
    s.cmd(cmd="PULL", queue=s.q(), timeout=0)
    s.cmd(cmd="PULL", queue=s.q(), timeout=None)


@scenario
def pullb_count_bounds(s):
    """A batch pull takes 1 to 1000 jobs."""
    s.cmd(cmd="PUSHB", queue=s.q(), jobs=[{"name": "n", "data": i} for i in range(3)])
    for bad in ("5", float("nan"), 0, -1, 1001, True):
        s.cmd(cmd="PULLB", queue=s.q(), count=bad)
    s.cmd(cmd="Count", queue=s.q())


@scenario
def pullb_shapes(s):
    """Tokens run parallel to jobs; without owner there are none; a short batch is returned at once."""
    s.quiet.cmd(cmd="PUSHB", queue=s.q(), jobs=[{"name": "n", "data": i} for i in range(6)])
    got = s.quiet.cmd(cmd="PULLB", queue=s.q(), count=2, owner="w")
    s.note([[j["data"] for j in got["jobs"]], len(got["tokens"]), len(set(got["tokens"])), all(got["tokens"])])
    got = s.quiet.cmd(cmd="PULLB", queue=s.q(), count=2)
    s.note([[j["data"] for j in got["jobs"]], got.get("tokens")])
    got = s.quiet.cmd(cmd="PULLB", queue=s.q(), count=10, owner="w", timeout=5000)
    s.note([[j["data"] for j in got["jobs"]], len(got["tokens"])])
    s.cmd(cmd="PULLB", queue=s.q(), count=10, owner="w")
    s.cmd(cmd="PULLB", queue=s.q(), count=10)


@scenario
def long_poll_gets_a_later_push(s):
    """A parked pull is answered by a push that comes later."""
    s.send(cmd="PULL", queue=s.q(), owner="w", timeout=15000)
    s.sleep(0.2)
    s.conn("b").cmd(cmd="PUSH", queue=s.q(), name="n", data={"late": 1})
    got = s.a.wire.recv(10)
    s.note([got["ok"], got["job"]["data"], bool(got["token"])])


@scenario
def long_poll_batch_gets_a_later_push(s):
    """A parked batch pull returns with what there is instead of waiting for its count."""
    s.send(cmd="PULLB", queue=s.q(), owner="w", count=10, timeout=15000)
    s.sleep(0.2)
    s.conn("b").cmd(cmd="PUSH", queue=s.q(), name="n", data=1)
    got = s.a.wire.recv(10)
    s.note([got["ok"], [j["data"] for j in got["jobs"]], len(got["tokens"])])


@scenario
def long_poll_waits_for_a_delayed_job(s):
    """A parked pull wakes when a delayed job comes due, pushed before or after it."""
    s.cmd(cmd="PUSH", queue=s.q("before"), name="n", data="before", delay=500)
    got = s.quiet.cmd(cmd="PULL", queue=s.q("before"), timeout=15000)
    s.note(got["job"]["data"])
    s.send(cmd="PULL", queue=s.q("after"), timeout=15000)
    s.sleep(0.1)
    s.conn("b").cmd(cmd="PUSH", queue=s.q("after"), name="n", data="after", delay=500)
    s.note(s.a.wire.recv(10)["job"]["data"])


@scenario
def long_poll_ends_empty(s):
    """At its deadline a parked pull answers with nothing."""
    s.cmd(cmd="PULL", queue=s.q(), owner="w", timeout=150)
    s.cmd(cmd="PULLB", queue=s.q(), count=3, owner="w", timeout=150)


@scenario
def waiters_are_served_in_turn(s):
    """Of several parked pulls the longest waiting one gets the next job."""
    for name in "abc":
        s.conn(name).send(cmd="PULL", queue=s.q(), timeout=15000)
        s.sleep(0.15)
    for i in range(3):
        s.conn("d").cmd(cmd="PUSH", queue=s.q(), name="n", data=i)
        s.sleep(0.15)
    s.note([s.conn(name).wire.recv(10)["job"]["data"] for name in "abc"])


@scenario
def closed_connection_takes_no_job(s):
    """A pull parked on a connection that went away does not swallow a later job."""
    s.conn("gone").send(cmd="PULL", queue=s.q(), owner="w", timeout=15000)
    s.sleep(0.2)
    s.conn("gone").close()
    s.sleep(0.3)
    got = s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1)
    s.sleep(0.2)
    s.cmd(cmd="GetState", id=got["id"])
    s.note(s.quiet.cmd(cmd="PULL", queue=s.q())["job"]["attempts"])


@scenario
def lock_token_is_checked(s):
    """A locked job needs its own token for every command that ends or moves the delivery."""
    i, token = take(s)
    for cmd, more in (
        ("ACK", {}),
        ("FAIL", {"error": "e"}),
        ("MoveToDelayed", {"delay": 1000}),
        ("ChangeDelay", {"delay": 1000}),
        ("MoveToWait", {}),
        ("MoveToWaitingChildren", {}),
        ("Discard", {}),
    ):
        s.cmd(cmd=cmd, id=i, **more)
        s.cmd(cmd=cmd, id=i, token="wrong", **more)
        s.cmd(cmd=cmd, id=i, token="", **more)
    s.cmd(cmd="GetState", id=i)
    s.cmd(cmd="ACK", id=i, token=token)


@scenario
def token_works_from_any_connection(s):
    """The token alone decides: another connection may heartbeat and acknowledge."""
    i, token = take(s)
    s.conn("other").cmd(cmd="JobHeartbeat", id=i, token=token)
    s.conn("other").cmd(cmd="ACK", id=i, token=token)
    s.cmd(cmd="GetState", id=i)


@scenario
def unlocked_job_takes_any_token(s):
    """Without a lock, no token and any token are accepted."""
    for token in (None, "whatever"):
        s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data=1)
        i = s.quiet.cmd(cmd="PULL", queue=s.q())["job"]["id"]
        s.cmd(cmd="ACK", id=i, token=token)
        s.cmd(cmd="GetState", id=i)


@scenario
def commands_without_token(s):
    """Progress, Update, AddLog and GetProgress work on a locked job without its token."""
    i, token = take(s)
    s.cmd(cmd="Progress", id=i, progress=20)
    s.cmd(cmd="Update", id=i, data={"v": 2})
    s.cmd(cmd="AddLog", id=i, message="m")
    s.cmd(cmd="GetProgress", id=i)
    s.cmd(cmd="Cancel", id=i)
    s.cmd(cmd="ACK", id=i, token=token)


@scenario
def job_heartbeat(s):
    """Heartbeats with the right, a wrong and no token, and for jobs that are not active."""
    i, token = take(s)
    s.cmd(cmd="JobHeartbeat", id=i, token=token)
    s.cmd(cmd="JobHeartbeat", id=i, token=token, duration=5000)
    s.cmd(cmd="JobHeartbeat", id=i, token="wrong")
    s.cmd(cmd="JobHeartbeat", id=i)
    s.cmd(cmd="JobHeartbeat", id="unknown-id")
    waiting = s.cmd(cmd="PUSH", queue=s.q("w"), name="n", data=1)["id"]
    s.cmd(cmd="JobHeartbeat", id=waiting)
    s.cmd(cmd="ACK", id=i, token=token)
    s.cmd(cmd="JobHeartbeat", id=i, token=token)


@scenario
def job_heartbeat_batch(s):
    """A batch heartbeat counts what it reached and never fails for the rest."""
    i1, t1 = take(s)
    i2, t2 = take(s)
    s.cmd(cmd="JobHeartbeatB", ids=[i1, i2], tokens=[t1, t2])
    s.cmd(cmd="JobHeartbeatB", ids=[i1, i2, "unknown-id"], tokens=[t1, "wrong", "x"])
    s.cmd(cmd="JobHeartbeatB", ids=[i1, i2, "unknown-id"])
    s.cmd(cmd="JobHeartbeatB", ids=[])


@scenario
def extend_lock(s):
    """ExtendLock with right, wrong and no token, with and without a lock."""
    i, token = take(s)
    s.cmd(cmd="ExtendLock", id=i, token=token, duration=60000)
    s.cmd(cmd="ExtendLock", id=i, token="wrong", duration=60000)
    s.cmd(cmd="ExtendLock", id=i, duration=60000)
    s.cmd(cmd="ExtendLock", id=i, token=token)
    s.cmd(cmd="ExtendLock", id="unknown-id", token=token, duration=1000)
    s.cmd(cmd="ACK", id=i, token=token)
    s.cmd(cmd="ExtendLock", id=i, token=token, duration=1000)
    s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data=1)
    i = s.quiet.cmd(cmd="PULL", queue=s.q())["job"]["id"]
    s.cmd(cmd="ExtendLock", id=i, token="x", duration=1000)


@scenario
def extend_locks(s):
    """ExtendLocks counts the locks it extended."""
    i1, t1 = take(s)
    i2, t2 = take(s)
    s.cmd(cmd="ExtendLocks", ids=[i1, i2], tokens=[t1, t2], durations=[60000, 60000])
    s.cmd(cmd="ExtendLocks", ids=[i1, i2, "unknown-id"], tokens=[t1, t1, "x"], durations=[60000, 60000, 60000])
    s.cmd(cmd="ExtendLocks", ids=[], tokens=[], durations=[])


@scenario
def lapsed_lock_cannot_be_renewed(s):
    """Once a lock ran out, a heartbeat with its token and an extension are refused."""
    s.quiet.cmd(cmd="PUSH", queue=s.q("a"), name="n", data=1)
    a = s.quiet.cmd(cmd="PULL", queue=s.q("a"), owner="w", lockTtl=50)
    s.quiet.cmd(cmd="PUSH", queue=s.q("b"), name="n", data=1)
    b = s.quiet.cmd(cmd="PULL", queue=s.q("b"), owner="w", lockTtl=50)
    s.sleep(0.3)
    s.cmd(cmd="JobHeartbeat", id=a["job"]["id"], token=a["token"])
    s.cmd(cmd="ExtendLock", id=b["job"]["id"], token=b["token"], duration=10000)


@scenario
def lapsed_lock_still_acknowledges(s):
    """An ACK with the exact token is accepted after the lock ran out, as long as nobody else took the job."""
    s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data=1)
    got = s.quiet.cmd(cmd="PULL", queue=s.q(), owner="w", lockTtl=50)
    s.sleep(0.2)
    s.cmd(cmd="ACK", id=got["job"]["id"], token=got["token"], result="late")
    s.cmd(cmd="GetState", id=got["job"]["id"])
    s.cmd(cmd="GetResult", id=got["job"]["id"])


@scenario
def old_token_after_redelivery(s):
    """After a retry the new delivery has a new token and the old one is refused."""
    s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, backoff=0)
    one = s.quiet.cmd(cmd="PULL", queue=s.q(), owner="w")
    s.cmd(cmd="FAIL", id=one["job"]["id"], token=one["token"], error="e")
    two = s.quiet.cmd(cmd="PULL", queue=s.q(), owner="w", timeout=5000)
    s.note([two["job"]["id"] == one["job"]["id"], two["token"] != one["token"], two["job"]["attempts"]])
    s.cmd(cmd="ACK", id=two["job"]["id"], token=one["token"])
    s.cmd(cmd="ACK", id=two["job"]["id"], token=two["token"])
