"""Admission: PUSH and PUSHB, names, queue names and every job option."""

from oracle import scenario

NAN, INF = float("nan"), float("inf")


def pick(job, *keys):
    return {k: (job or {}).get(k) for k in keys}


def try_values(s, option, values, **more):
    for v in values:
        s.cmd(cmd="PUSH", queue=s.q("bad"), name="n", data=1, **{option: v}, **more)


def stored(s, *keys, **opts):
    """Push with options and note what the job then holds."""
    got = s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, **opts)
    s.note(pick(s.quiet.cmd(cmd="GetJob", id=got.get("id")).get("job"), *keys))


@scenario
def defaults(s):
    """A bare push: every field of the record and its default."""
    got = s.cmd(cmd="PUSH", queue=s.q(), name="n", data={"x": 1})
    s.cmd(cmd="GetJob", id=got["id"])


@scenario
def all_options(s):
    """Every option set: what the record shows."""
    dep = s.cmd(cmd="PUSH", queue=s.q("dep"), name="d", data=0)
    got = s.cmd(
        cmd="PUSH",
        queue=s.q(),
        name="n",
        data=[1, 2],
        priority=-5,
        timeout=1000,
        maxAttempts=7,
        backoff={"type": "fixed", "delay": 250},
        ttl=900000,
        stallTimeout=4000,
        jobId=s.uid("cid"),
        uniqueKey="u1",
        dedup={"ttl": 5000, "extend": True},
        dependsOn=[dep["id"]],
        tags=["a", "b"],
        lifo=True,
        removeOnComplete=True,
        removeOnFail=True,
        durable=True,
        stackTraceLimit=3,
        keepLogs=4,
        sizeLimit=5,
        debounceId="deb",
        debounceTtl=77,
    )
    s.cmd(cmd="GetJob", id=got["id"])


@scenario
def data_of_any_type(s):
    """Data may be any value, or missing."""
    for v in ("text", 5, 0, False, [], [1, {"a": 2}], {}, "", 1.5):
        s.cmd(cmd="PUSH", queue=s.q(), name="n", data=v)
    s.cmd(cmd="PUSH", queue=s.q(), name="n")
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data=None)
    got = s.quiet.cmd(cmd="PULLB", queue=s.q(), count=50)
    s.note([j.get("data") for j in got["jobs"]])


@scenario
def queue_names(s):
    """Queue name rules of PUSH, PUSHB and PULL."""
    for bad in (None, "", "a b", "ä", "a/b", "a\n", "x" * 257, "a,b", "#"):
        s.cmd(cmd="PUSH", queue=bad, name="n", data=1)
    s.cmd(cmd="PUSH", name="n", data=1)
    s.cmd(cmd="PUSHB", queue="a b", jobs=[{"name": "n", "data": 1}])
    s.cmd(cmd="PULL", queue="a b")
    s.cmd(cmd="PULL", queue="")
    s.cmd(cmd="PULLB", queue="x" * 257, count=1)
    good = s.q("A-b_c.d:9")
    s.note(s.quiet.cmd(cmd="PUSH", queue=good, name="n", data=1)["ok"])
    long = (s.q("l") + "x" * 256)[:256]
    s.note(s.quiet.cmd(cmd="PUSH", queue=long, name="n", data=1)["ok"])
    s.note(s.quiet.cmd(cmd="Count", queue=long)["count"])


@scenario
def job_names(s):
    """Names: 1 to 256 characters, absent means default, null is refused."""
    for bad in ("", None, 5, ["n"], {"a": 1}, True, "n" * 257):
        s.cmd(cmd="PUSH", queue=s.q(), name=bad, data={"x": 1}) if bad is not None else s.a.wire.send(
            {"cmd": "PUSH", "queue": s.q(), "name": None, "data": {"x": 1}, "reqId": "z"}
        )
        if bad is None:
            s.recv(3)
    for good in ("n" * 256, " ", "ünï ✓", "a:b/c"):
        got = s.quiet.cmd(cmd="PUSH", queue=s.q(), name=good, data={"x": 1})
        s.note(pick(s.quiet.cmd(cmd="GetJob", id=got["id"])["job"], "name", "data"))
    got = s.cmd(cmd="PUSH", queue=s.q(), data={"x": 1})
    s.note(pick(s.quiet.cmd(cmd="GetJob", id=got["id"])["job"], "name", "data"))


@scenario
def name_inside_data(s):
    """Without a name, a string data.name becomes the job name and leaves the data."""
    for data in ({"name": "legacy", "v": 1}, {"name": "only"}, {"name": 5, "v": 1}, {"name": None}, ["name"], "name"):
        got = s.quiet.cmd(cmd="PUSH", queue=s.q(), data=data)
        s.note(pick(s.quiet.cmd(cmd="GetJob", id=got.get("id")).get("job"), "name", "data"))
    s.cmd(cmd="PUSH", queue=s.q(), data={"name": "", "v": 1})
    s.cmd(cmd="PUSH", queue=s.q(), data={"name": "n" * 257})
    got = s.quiet.cmd(cmd="PUSH", queue=s.q(), name="outer", data={"name": "inner"})
    s.note(pick(s.quiet.cmd(cmd="GetJob", id=got["id"])["job"], "name", "data"))


@scenario
def priority_bounds(s):
    """Priority: an integer in -1000000..1000000, no strings."""
    try_values(s, "priority", ["5", NAN, INF, 1.5, 1000001, -1000001, True, [1], {"a": 1}])
    for v in (1000000, -1000000, 0, 3.0, None):
        stored(s, "priority", priority=v)
    s.cmd(cmd="Count", queue=s.q("bad"))


@scenario
def delay_bounds(s):
    """Delay: 0 to one year, fractions allowed."""
    try_values(s, "delay", ["5", NAN, -INF, -1, -0.5, 31536000001.0, True])
    for v in (0, 31536000000.0, 1500.5, None):
        got = s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, delay=v)
        job = s.quiet.cmd(cmd="GetJob", id=got["id"])["job"]
        s.note([job["state"], job["runAt"] - job["createdAt"] if (v or 0) < 1e10 else "year"])


@scenario
def timeout_and_ttl_bounds(s):
    """Timeout up to a day, ttl up to a year."""
    try_values(s, "timeout", ["5", NAN, -1, 86400001, False])
    try_values(s, "ttl", ["5", INF, -1, 31536000001.0, []])
    for v in (0, 86400000, 0.5, None):
        stored(s, "timeout", timeout=v)
    for v in (31536000000.0, 100000.5, None):
        got = s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, ttl=v)
        s.note(["ttl", s.quiet.cmd(cmd="GetJob", id=got["id"])["job"]["ttl"]])


@scenario
def max_attempts_bounds(s):
    """maxAttempts: an integer from 1 to 1000."""
    try_values(s, "maxAttempts", [0, -1, 1001, 1.5, "3", NAN, True])
    for v in (1, 1000, 2.0, None):
        stored(s, "maxAttempts", maxAttempts=v)


@scenario
def backoff_forms(s):
    """Backoff as number or as map, valid and invalid."""
    try_values(
        s,
        "backoff",
        [
            "5",
            NAN,
            -1,
            86400001,
            True,
            {},
            {"type": "linear", "delay": 5},
            {"type": "fixed"},
            {"delay": 5},
            {"type": "fixed", "delay": "5"},
            {"type": "fixed", "delay": -1},
            {"type": "exponential", "delay": 86400001},
            {"type": "exponential", "delay": NAN},
            {"type": "FIXED", "delay": 1},
        ],
    )
    for v in (
        0,
        86400000,
        0.5,
        {"type": "fixed", "delay": 0},
        {"type": "exponential", "delay": 86400000},
        {"type": "fixed", "delay": 1.5},
    ):
        stored(s, "backoff", "backoffConfig", backoff=v)


@scenario
def group_id_rules(s):
    """groupId must be a plain, bounded string; with it, priority has other bounds."""
    try_values(s, "groupId", ["", 5, "g" * 257, "a\0b", ["g"], True])
    try_values(s, "priority", [-1, 2097152, 1.5, "1", NAN], groupId="g")
    try_values(s, "groupMaxSize", [0, -1, 1.5, "3", True], groupId="g")
    stored(s, "groupId", "priority", groupId="g" * 256, priority=2097151)
    s.cmd(cmd="Count", queue=s.q("bad"))


@scenario
def first_violation_wins(s):
    """The order in which a push is checked: queue, group, priority, delay, timeout, attempts, backoff, ttl, dependency, name."""
    bad = dict(
        groupId="", priority="x", delay=-1, timeout=-1, maxAttempts=0, backoff=-1, ttl=-1, dependsOn=["nope"], name=""
    )
    s.cmd(cmd="PUSH", queue="a b", data=1, **bad)
    for fix in ("groupId", "priority", "delay", "timeout", "maxAttempts", "backoff", "ttl", "dependsOn"):
        s.cmd(cmd="PUSH", queue=s.q(), data=1, **bad)
        del bad[fix]
    s.cmd(cmd="PUSH", queue=s.q(), data=1, **bad)
    s.cmd(cmd="Count", queue=s.q())


@scenario
def null_means_not_given(s):
    """Null options behave as absent ones."""
    s.a.wire.send(
        {
            "cmd": "PUSH",
            "queue": s.q(),
            "name": "n",
            "data": 1,
            "reqId": "z",
            **{
                k: None
                for k in (
                    "priority",
                    "delay",
                    "maxAttempts",
                    "ttl",
                    "timeout",
                    "lifo",
                    "jobId",
                    "uniqueKey",
                    "dependsOn",
                    "tags",
                    "childrenIds",
                    "parentId",
                    "repeat",
                    "dedup",
                    "timestamp",
                    "durable",
                    "stackTraceLimit",
                )
            },
        }
    )
    got = s.recv(3)
    s.cmd(cmd="GetJob", id=got["id"])


@scenario
def remove_flags_are_coerced(s):
    """removeOnComplete and removeOnFail become booleans: any truthy value counts."""
    for v in (True, False, 1, 0, {"count": 5}, {"age": 1}, 100, None):
        stored(s, "removeOnComplete", "removeOnFail", removeOnComplete=v, removeOnFail=v)


@scenario
def explicit_timestamp(s):
    """timestamp becomes createdAt and the base of runAt."""
    stored(s, "createdAt", "runAt", "state", timestamp=1000)
    stored(s, "createdAt", "runAt", "state", timestamp=2000, delay=500)
    stored(s, "state", timestamp=4102444800000.0)


@scenario
def dependencies_must_exist(s):
    """dependsOn names known jobs, in any state; unknown ones are refused, first one named."""
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, dependsOn=["nope-1", "nope-2"])
    live = s.cmd(cmd="PUSH", queue=s.q("dep"), name="d", data=1)["id"]
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, dependsOn=[live, "nope-2"])
    got = s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, dependsOn=[live], priority=4, delay=100000)
    s.cmd(cmd="GetState", id=got["id"])
    s.quiet.cmd(cmd="PULL", queue=s.q("dep"))
    s.cmd(cmd="ACK", id=live)
    got = s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, dependsOn=[live])
    s.cmd(cmd="GetState", id=got["id"])
    got = s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, dependsOn=[])
    s.cmd(cmd="GetState", id=got["id"])


@scenario
def bare_parent_and_children_ids(s):
    """parentId without its markers in the data, and childrenIds, are only stored."""
    stored(s, "parentId", "childrenIds", "state", "dependsOn", parentId="nobody", childrenIds=["x", "y"])


@scenario
def data_too_large(s):
    """JSON text above 10 MiB is refused, just below is taken."""
    big = 10 * 1024 * 1024
    got = s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data="x" * (big - 2))
    s.note([got["ok"], got.get("error")])
    got = s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data="x" * (big - 1))
    s.note([got["ok"], got.get("error")])
    got = s.quiet.cmd(cmd="PUSHB", queue=s.q(), jobs=[{"name": "n", "data": 1}, {"name": "n", "data": "x" * big}])
    s.note([got["ok"], got.get("error")])
    s.cmd(cmd="Count", queue=s.q())


@scenario
def batch_of_pushes(s):
    """PUSHB answers ids in input order; an empty list is fine."""
    got = s.cmd(cmd="PUSHB", queue=s.q(), jobs=[{"name": f"n{i}", "data": {"i": i}} for i in range(5)])
    s.note(len(set(got["ids"])))
    for i in got["ids"][:2]:
        s.note(pick(s.quiet.cmd(cmd="GetJob", id=i)["job"], "name", "data", "state", "queue"))
    s.cmd(cmd="PUSHB", queue=s.q(), jobs=[])
    s.cmd(cmd="Count", queue=s.q())


@scenario
def batch_entry_defaults(s):
    """An entry with data alone has the same defaults as a bare push; the legacy name works per entry."""
    got = s.cmd(cmd="PUSHB", queue=s.q(), jobs=[{"data": {"v": 1}}, {"data": {"name": "legacy", "v": 2}}, {}])
    s.cmd(cmd="GetJob", id=got["ids"][0])
    for i in got["ids"][1:]:
        s.note(pick(s.quiet.cmd(cmd="GetJob", id=i)["job"], "name", "data"))


@scenario
def batch_errors_name_the_entry(s):
    """A bad entry refuses the whole batch and is named by its index."""
    ok = {"name": "n", "data": 1}
    for bad in (
        {"name": "", "data": 1},
        {"name": "n", "data": 1, "priority": 1.5},
        {"name": "n", "data": 1, "delay": -1},
        {"name": "n", "data": 1, "backoff": {"type": "x", "delay": 1}},
        {"name": "n", "data": 1, "dependsOn": ["nope"]},
        {"name": "n", "data": 1, "groupId": ""},
        {"name": "n", "data": 1, "maxAttempts": "3"},
        {"data": {"name": ""}},
    ):
        s.cmd(cmd="PUSHB", queue=s.q(), jobs=[ok, ok, bad])
    s.cmd(cmd="PUSHB", queue=s.q(), jobs=[{"name": "n", "data": 1, "ttl": -1}, {"name": "", "data": 1}])
    s.cmd(cmd="Count", queue=s.q())


@scenario
def batch_custom_ids(s):
    """In a batch the custom id is customId; jobId is an unknown member there."""
    c = s.uid("c")
    got = s.cmd(
        cmd="PUSHB",
        queue=s.q(),
        jobs=[
            {"name": "n", "data": 1, "customId": c},
            {"name": "n", "data": 2, "jobId": s.uid("j")},
            {"name": "n", "data": 3, "customId": c},
        ],
    )
    s.note([got["ids"][0] == c, got["ids"][1] == s.uid("j"), got["ids"][2] == c])
    s.note(s.quiet.cmd(cmd="GetJob", id=c)["job"]["data"])
    s.cmd(cmd="Count", queue=s.q())


@scenario
def repeat_rules(s):
    """What a repeat option must look like."""
    for rep in (
        {},
        {"every": 1000, "pattern": "* * * * *"},
        {"every": 0},
        {"every": -5},
        {"pattern": "  "},
        {"pattern": "nonsense"},
        {"every": 1000, "startDate": NAN},
        {"every": 1000, "endDate": INF},
    ):
        got = s.quiet.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, repeat=rep)
        s.note([got["ok"], (got.get("error") or "").split(":")[0]])
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, repeat={"every": 60000}, jobId=s.uid("x"))
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, repeat={"every": 60000}, parentId="p")
    stored(s, "repeat", "state", repeat={"every": 60000, "limit": 3})
    s.cmd(cmd="Count", queue=s.q())
