"""Rate limits and concurrency limits of a queue."""

from oracle import scenario


def fill(s, n, **opts):
    s.quiet.cmd(cmd="PUSHB", queue=s.q(), jobs=[{"name": f"j{i}", "data": {}, **opts} for i in range(n)])


def take(s, n=1, **more):
    """Names of what n PULLs bring; the ids are kept for ack."""
    out = []
    for _ in range(n):
        job = s.quiet.cmd(cmd="PULL", queue=s.q(), **more)["job"]
        out.append(job and job["name"])
        if job:
            s.jobs = {**getattr(s, "jobs", {}), job["name"]: job["id"]}
    return out


def ack(s, name):
    return s.quiet.cmd(cmd="ACK", id=s.jobs[name])["ok"]


def limits(s, **more):
    return s.quiet.cmd(cmd="GetQueueLimits", queue=s.q(), **more)["data"]["limits"]


@scenario
def rate_limit_burst(s):
    """A rate limit lets a full bucket go at once and then nothing; PULLB returns the part it got."""
    fill(s, 6)
    s.cmd(cmd="RateLimit", queue=s.q(), limit=3, duration=60000)
    got = s.quiet.cmd(cmd="PULLB", queue=s.q(), count=10)["jobs"]
    s.note([j["name"] for j in got])
    s.cmd(cmd="PULL", queue=s.q())
    s.cmd(cmd="PULLB", queue=s.q(), count=2, owner="w")
    s.cmd(cmd="Count", queue=s.q())
    s.cmd(cmd="RateLimitClear", queue=s.q())
    s.note(take(s, 4))


@scenario
def rate_limit_refills_continuously(s):
    """Tokens come back one by one, not all at the end of the window."""
    fill(s, 10)
    s.cmd(cmd="RateLimit", queue=s.q(), limit=4, duration=4000)
    s.note(take(s, 5))
    s.sleep(1.4)
    s.note(take(s, 2))


@scenario
def setting_the_rate_again_fills_the_bucket(s):
    """A new RateLimit starts with a full bucket, even with the same numbers."""
    fill(s, 6)
    s.cmd(cmd="RateLimit", queue=s.q(), limit=2, duration=60000)
    s.note(take(s, 3))
    s.cmd(cmd="RateLimit", queue=s.q(), limit=2, duration=60000)
    s.note(take(s, 3))


@scenario
def tokens_are_not_given_back(s):
    """A token is spent by the delivery, whatever becomes of the job."""
    fill(s, 3, backoff={"type": "fixed", "delay": 0})
    s.cmd(cmd="RateLimit", queue=s.q(), limit=2, duration=60000)
    s.note(take(s))
    s.quiet.cmd(cmd="FAIL", id=s.jobs["j0"], error="x")
    again = [n for n in take(s, 2) if n]
    s.note(len(again))
    s.quiet.cmd(cmd="MoveToWait", id=s.jobs[again[0]])
    s.note(take(s))


@scenario
def rate_limit_arguments(s):
    """limit must be a number (text that reads as one is taken); a useless duration or ttl means none."""
    for limit in ("x", None, float("nan"), float("inf")):
        got = s.quiet.cmd(cmd="RateLimit", queue=s.q(), limit=limit)
        s.note(got.get("error", "ok"))
    s.cmd(cmd="RateLimit", queue=s.q())
    for limit, duration in (("5", None), (7, "2500"), (2, 0), (2, -5), (2, "x"), (2.5, 100)):
        s.note(
            [
                s.quiet.cmd(cmd="RateLimit", queue=s.q(), limit=limit, duration=duration)["ok"],
                [limits(s)["rateLimit"][k] for k in ("max", "duration")],
            ]
        )
    s.cmd(cmd="RateLimitClear", queue=s.q())
    s.cmd(cmd="RateLimitClear", queue=s.q())
    s.note(limits(s)["rateLimit"])


@scenario
def zero_and_fractional_rates(s):
    """A limit below one never lets a job through."""
    fill(s, 2)
    for limit in (0, -1, 0.5):
        s.cmd(cmd="RateLimit", queue=s.q(), limit=limit, duration=100)
        s.sleep(0.25)
        s.note(take(s))
    s.cmd(cmd="RateLimit", queue=s.q(), limit=1.5, duration=60000)
    s.note(take(s, 2))


@scenario
def queue_limits_view(s):
    """GetQueueLimits without limits, with each, and with both; times are given by their bounds."""
    s.cmd(cmd="GetQueueLimits", queue=s.q())
    s.note(limits(s)["rateLimitTtl"])
    s.cmd(cmd="RateLimit", queue=s.q(), limit=2, duration=60000)
    s.cmd(cmd="SetConcurrency", queue=s.q(), limit=1)
    v = limits(s)
    s.note([v["rateLimit"]["max"], v["rateLimit"]["duration"], v["rateLimitTtl"], v["concurrencyLimit"], v["maxed"]])
    fill(s, 3)
    s.note(take(s))
    v = limits(s)
    s.note([v["rateLimitTtl"], v["maxed"]])
    ack(s, "j0")
    s.note(take(s))
    v = limits(s)
    s.note([20000 < v["rateLimitTtl"] <= 30000, v["maxed"]])
    s.note([limits(s, maxJobs=3)["rateLimitTtl"], limits(s, maxJobs=1)["rateLimitTtl"] > 0])
    s.cmd(cmd="ClearConcurrency", queue=s.q())
    s.cmd(cmd="GetQueueLimits", queue=s.uid("nobody"))


@scenario
def temporary_rate_limit(s):
    """A limit with ttl reports the time left and ends by itself."""
    fill(s, 4)
    s.cmd(cmd="RateLimit", queue=s.q(), limit=1, duration=60000, ttl=900)
    s.note(take(s, 2))
    s.note(0 < limits(s)["rateLimitTtl"] <= 900)
    s.sleep(1.1)
    s.note([limits(s)["rateLimit"], limits(s)["rateLimitTtl"]])
    s.note(take(s, 3))


@scenario
def concurrency_limit(s):
    """At most limit jobs are active; acknowledging, failing and moving back each free one slot."""
    fill(s, 8, maxAttempts=1)
    s.cmd(cmd="SetConcurrency", queue=s.q(), limit=2)
    s.note(take(s, 3))
    ack(s, "j0")
    s.note(take(s, 2))
    s.quiet.cmd(cmd="FAIL", id=s.jobs["j1"], error="x")
    s.note(take(s, 2))
    s.quiet.cmd(cmd="MoveToDelayed", id=s.jobs["j2"], delay=60000)
    s.note(take(s, 2))
    s.quiet.cmd(cmd="Discard", id=s.jobs["j3"])
    s.note(take(s, 2))
    got = s.quiet.cmd(cmd="PULLB", queue=s.q(), count=5)["jobs"]
    s.note(len(got))


@scenario
def concurrency_arguments(s):
    """The same number rules as for rates; zero and less block; a fraction allows one more than its floor."""
    for limit in ("x", None, float("nan")):
        s.note(s.quiet.cmd(cmd="SetConcurrency", queue=s.q(), limit=limit).get("error", "ok"))
    s.cmd(cmd="SetConcurrency", queue=s.q())
    fill(s, 6)
    for limit in (0, -3, "1"):
        s.note(
            [s.quiet.cmd(cmd="SetConcurrency", queue=s.q(), limit=limit)["ok"], limits(s)["concurrencyLimit"], take(s)]
        )
    s.cmd(cmd="ClearConcurrency", queue=s.q())
    s.cmd(cmd="SetConcurrency", queue=s.q(), limit=1.5)
    s.note(take(s, 3))


@scenario
def changing_the_concurrency_limit(s):
    """Raising takes effect at the next pull; lowering evicts nobody and waits until enough have finished."""
    fill(s, 8)
    s.cmd(cmd="SetConcurrency", queue=s.q(), limit=2)
    s.note(take(s, 3))
    s.cmd(cmd="SetConcurrency", queue=s.q(), limit=3)
    s.note(take(s, 2))
    s.cmd(cmd="SetConcurrency", queue=s.q(), limit=1)
    s.note(limits(s)["maxed"])
    seen = []
    for name in ("j0", "j1", "j2"):
        ack(s, name)
        seen += take(s)
    s.note(seen)
    s.cmd(cmd="ClearConcurrency", queue=s.q())
    s.note(take(s, 2))


@scenario
def a_full_queue_spends_no_token(s):
    """The concurrency limit is tested before the rate, so a refused pull costs no token."""
    fill(s, 5)
    s.cmd(cmd="SetConcurrency", queue=s.q(), limit=1)
    s.cmd(cmd="RateLimit", queue=s.q(), limit=2, duration=60000)
    s.note(take(s, 4))
    ack(s, "j0")
    s.note(take(s, 3))
    ack(s, "j1")
    s.note(take(s, 2))
    s.cmd(cmd="RateLimitClear", queue=s.q())
    s.note(take(s, 2))


@scenario
def a_rate_refusal_keeps_no_slot(s):
    """A pull refused for lack of tokens leaves the concurrency slot free."""
    fill(s, 4)
    s.cmd(cmd="SetConcurrency", queue=s.q(), limit=2)
    s.cmd(cmd="RateLimit", queue=s.q(), limit=1, duration=60000)
    s.note(take(s, 3))
    s.note(limits(s)["maxed"])
    s.cmd(cmd="RateLimitClear", queue=s.q())
    s.note(take(s, 2))


@scenario
def freed_slot_wakes_a_parked_pull(s):
    """A long poll on a full queue is answered when a job is acknowledged."""
    fill(s, 2)
    s.cmd(cmd="SetConcurrency", queue=s.q(), limit=1)
    take(s)
    w = s.conn("w")
    w.send(cmd="PULL", queue=s.q(), timeout=15000)
    s.sleep(0.3)
    ack(s, "j0")
    s.note((w.wire.recv(8).get("job") or {}).get("name"))


@scenario
def limited_long_poll_still_delivers(s):
    """A long poll on an empty bucket brings its job once a token exists, not before and not never."""
    fill(s, 2)
    s.cmd(cmd="RateLimit", queue=s.q(), limit=1, duration=800)
    s.note(take(s, 2))
    s.note(take(s, 1, timeout=1500))


@scenario
def limits_of_one_queue_only(s):
    """Limits bind their queue alone, and Obliterate removes them."""
    fill(s, 2)
    s.quiet.cmd(cmd="PUSH", queue=s.q("other"), name="o", data={})
    s.cmd(cmd="RateLimit", queue=s.q(), limit=0)
    s.cmd(cmd="SetConcurrency", queue=s.q(), limit=0)
    s.note(s.quiet.cmd(cmd="PULL", queue=s.q("other"))["job"]["name"])
    s.note(s.q() in s.quiet.cmd(cmd="ListQueues")["queues"])
    s.cmd(cmd="Obliterate", queue=s.q())
    s.cmd(cmd="GetQueueLimits", queue=s.q())
    fill(s, 1)
    s.note(take(s))
