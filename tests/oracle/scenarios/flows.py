"""PUSHF: trees, chains, fan-ins, every refusal, and all-or-nothing admission."""

from oracle import scenario


def node(s, name, queue="q", parent=None, children=(), deps=None, data=None, **opts):
    """One flow entry. parent is (name, queue); children are names; deps adds plain dependencies."""
    body = dict(data if data is not None else {"n": name})
    job = {"id": s.uid(name), "queue": s.q(queue), "input": {"name": name, "data": body, **opts}}
    kids = [s.uid(c) for c in children]
    wanted = kids + [s.uid(d) for d in (deps or ())]
    if kids:
        job["input"]["childrenIds"] = kids
        body["__childrenIds"] = kids
    if wanted:
        job["input"]["dependsOn"] = wanted
    if parent:
        job["input"]["parentId"] = s.uid(parent[0])
        body["__parentId"], body["__parentQueue"] = s.uid(parent[0]), s.q(parent[1])
    return job


def family(s, *kids, **opts):
    """A parent p in queue q with the given children in queue c."""
    return [node(s, "p", children=kids, **opts)] + [node(s, k, "c", parent=("p", "q")) for k in kids]


def state(s, *names):
    return [s.quiet.cmd(cmd="GetState", id=s.uid(n))["state"] for n in names]


def finish(s, queue, **more):
    job = s.quiet.cmd(cmd="PULL", queue=s.q(queue))["job"]
    if job is None:
        return None
    s.quiet.cmd(cmd="ACK", id=job["id"], **more)
    return job["name"]


def refused(s, *jobs):
    """Send a flow that must be refused; record the answer alone."""
    got = s.quiet.cmd(cmd="PUSHF", jobs=list(jobs))
    s.note(got.get("error", got))


def with_input(s, **opts):
    """One flow entry whose input is given whole."""
    return {"id": s.uid("x"), "queue": s.q(), "input": {"name": "x", "data": {}, **opts}}


@scenario
def tree_reply(s):
    """A parent with two children: the reply holds every job in request order, as admitted."""
    s.cmd(cmd="PUSHF", jobs=family(s, "c1", "c2"))
    s.cmd(cmd="GetJobCounts", queue=s.q())
    s.cmd(cmd="GetJobCounts", queue=s.q("c"))
    s.cmd(cmd="GetJob", id=s.uid("p"))


@scenario
def tree_runs_children_first(s):
    """The parent is delivered after its last child and sees the children's results under queue:id keys."""
    s.quiet.cmd(cmd="PUSHF", jobs=family(s, "c1", "c2"))
    s.cmd(cmd="PULL", queue=s.q())
    s.note(finish(s, "c", result={"v": 1}))
    s.note(state(s, "p", "c1", "c2"))
    s.cmd(cmd="GetChildrenValues", id=s.uid("p"))
    s.note(finish(s, "c", result=None))
    s.note(state(s, "p", "c1", "c2"))
    s.cmd(cmd="GetChildrenValues", id=s.uid("p"))
    s.cmd(cmd="PULL", queue=s.q())
    s.cmd(cmd="ACK", id=s.uid("p"), result="done")
    s.cmd(cmd="GetChildrenValues", id=s.uid("p"))


@scenario
def chain_and_diamond(s):
    """Plain dependencies inside a flow: a chain, then a diamond whose end waits for both sides."""
    s.quiet.cmd(
        cmd="PUSHF",
        jobs=[
            node(s, "end", deps=["left", "right"]),
            node(s, "left", deps=["top"]),
            node(s, "right", deps=["top"]),
            node(s, "top"),
        ],
    )
    s.note(state(s, "top", "left", "right", "end"))
    order = []
    for _ in range(5):
        order.append([finish(s, "q"), state(s, "left", "right", "end")])
    s.note(order)


@scenario
def three_levels(s):
    """A grandparent waits for its child, which waits for its own; each level opens in turn."""
    s.quiet.cmd(
        cmd="PUSHF",
        jobs=[
            node(s, "g", children=["m"]),
            node(s, "m", "m", parent=("g", "q"), children=["l1", "l2"]),
            node(s, "l1", "l", parent=("m", "m")),
            node(s, "l2", "l", parent=("m", "m")),
        ],
    )
    s.note(state(s, "g", "m", "l1", "l2"))
    s.note([finish(s, "l"), finish(s, "l"), state(s, "g", "m")])
    s.note([finish(s, "m", result=9), state(s, "g", "m")])
    s.note([finish(s, "q"), state(s, "g")])
    s.cmd(cmd="GetChildrenValues", id=s.uid("g"))


@scenario
def empty_and_malformed_lists(s):
    """An empty flow is a success; entries must be an array of objects with string ids."""
    s.cmd(cmd="PUSHF", jobs=[])
    refused(s, {"queue": s.q(), "input": {"data": {}}})
    refused(s, {"id": 5, "queue": s.q(), "input": {"data": {}}})
    refused(s, {"id": "", "queue": s.q(), "input": {"data": {}}})
    refused(s, {"id": "x" * 1025, "queue": s.q(), "input": {"data": {}}})
    refused(s, {"id": "a:b", "queue": s.q(), "input": {"data": {}}})
    refused(s, node(s, "a"), node(s, "b"), node(s, "a"))
    got = s.quiet.cmd(cmd="PUSHF", jobs=[{"id": s.uid("x") + "y" * 900, "queue": s.q(), "input": {"data": {}}}])
    s.note(got["ok"])


@scenario
def bad_queue_names(s):
    """The queue of each entry is checked and named in the error."""
    for queue in ("", "a b", "q" * 257, "a/b"):
        refused(s, {"id": s.uid("x"), "queue": queue, "input": {"data": {}}})
    got = s.quiet.cmd(cmd="PUSHF", jobs=[{"id": s.uid("y"), "queue": s.q("A_b-c.d:e"), "input": {"data": {}}}])
    s.note(got["ok"])


@scenario
def bad_inputs(s):
    """customId, parentId, dependsOn, childrenIds, name and data are checked before anything else of the input."""
    refused(s, with_input(s, customId=s.uid("other")))
    refused(s, with_input(s, parentId=""))
    refused(s, with_input(s, parentId=7))
    refused(s, with_input(s, dependsOn=s.uid("a")))
    refused(s, with_input(s, dependsOn=[1]))
    refused(s, with_input(s, dependsOn=[""]))
    refused(s, with_input(s, childrenIds={"a": 1}))
    refused(s, with_input(s, childrenIds=["z" * 1025]))
    refused(s, with_input(s, name=""))
    refused(s, with_input(s, name=5))
    refused(s, with_input(s, name="n" * 257))
    for data in (None, [], "text", 5):
        refused(s, with_input(s, data=data))
    got = s.quiet.cmd(cmd="PUSHF", jobs=[with_input(s, customId=s.uid("x"))])
    s.note([got["ok"], got["data"]["jobs"][0]["customId"]])


@scenario
def names_and_legacy_envelope(s):
    """Without a name a string data.name becomes the name and leaves data; otherwise the name is default."""
    got = s.quiet.cmd(
        cmd="PUSHF",
        jobs=[
            {"id": s.uid("a"), "queue": s.q(), "input": {"data": {"name": "legacy", "v": 1}}},
            {"id": s.uid("b"), "queue": s.q(), "input": {"data": {"v": 2}}},
            {"id": s.uid("c"), "queue": s.q(), "input": {"name": "own", "data": {"name": "kept"}}},
            {"id": s.uid("d"), "queue": s.q(), "input": {"data": {"name": 5}}},
        ],
    )
    s.note([[j["name"], j["data"]] for j in got["data"]["jobs"]])
    refused(s, {"id": s.uid("e"), "queue": s.q(), "input": {"data": {"name": ""}}})


@scenario
def numeric_options(s):
    """Numeric options of a flow entry: the bounds and their texts."""
    for opts in (
        {"priority": "1"},
        {"priority": 1.5},
        {"priority": 1000001},
        {"priority": -1000001},
        {"delay": -1},
        {"delay": 31536000001.0},
        {"delay": "5"},
        {"ttl": -1},
        {"timeout": 86400001},
        {"stallTimeout": -1},
        {"stallTimeout": 86400001},
        {"backoff": -1},
        {"backoff": 86400001},
        {"backoff": {"type": "fixed", "delay": -1}},
        {"maxAttempts": 0},
        {"maxAttempts": 1001},
        {"maxAttempts": 1.5},
        {"stackTraceLimit": 10001},
        {"stackTraceLimit": -1},
        {"keepLogs": 1000001},
        {"sizeLimit": 10485761},
        {"timestamp": -1},
        {"groupId": "g", "groupMaxSize": 0},
        {"groupId": "g", "groupMaxSize": 1.5},
    ):
        got = s.quiet.cmd(cmd="PUSHF", jobs=[with_input(s, **opts)])
        s.note([sorted(opts), got.get("error", "accepted")])


@scenario
def other_options(s):
    """Flags, tags, backoff types, groups, and the options a flow does not take."""
    for opts in (
        {"lifo": 1},
        {"removeOnComplete": "yes"},
        {"removeOnFail": 0},
        {"durable": "x"},
        {"failParentOnFailure": 1},
        {"backoff": {"type": "linear", "delay": 5}},
        {"groupId": ""},
        {"groupId": 5},
        {"groupId": None},
        {"groupId": "g" * 257},
        {"groupId": "a\0b"},
        {"groupId": "g", "priority": -1},
        {"groupId": "g", "priority": 2097152},
        {"groupId": "g", "priority": 0.5},
        {"tags": "x"},
        {"tags": [5]},
        {"tags": ["t" * 257]},
        {"repeat": {"every": 1000}},
        {"uniqueKey": "k"},
        {"dedup": {"ttl": 5}},
        {"debounceId": "d"},
        {"debounceTtl": 5},
    ):
        got = s.quiet.cmd(cmd="PUSHF", jobs=[with_input(s, **opts)])
        s.note([sorted(opts), got.get("error", "accepted")])


@scenario
def accepted_options_land_on_the_jobs(s):
    """Options given in a flow come back on the job as they would from a push."""
    s.cmd(
        cmd="PUSHF",
        jobs=[
            with_input(
                s,
                priority=5,
                delay=60000,
                maxAttempts=7,
                backoff={"type": "fixed", "delay": 250},
                ttl=90000,
                timeout=1000,
                stallTimeout=2000,
                tags=["a", "b"],
                lifo=True,
                removeOnComplete=True,
                removeOnFail=True,
                durable=True,
                stackTraceLimit=3,
                keepLogs=4,
                sizeLimit=5,
                timestamp=1700000000000.0,
            )
        ],
    )


@scenario
def failure_policy_rules(s):
    """A policy needs a parent, and only one may be set."""
    refused(s, with_input(s, failParentOnFailure=True))
    refused(s, with_input(s, ignoreDependencyOnFailure=True))
    refused(
        s,
        node(s, "p", children=["c"]),
        node(s, "c", "c", parent=("p", "q"), failParentOnFailure=True, continueParentOnFailure=True),
    )
    got = s.quiet.cmd(
        cmd="PUSHF",
        jobs=[
            node(s, "p", children=["c"]),
            node(s, "c", "c", parent=("p", "q"), removeDependencyOnFailure=True, ignoreDependencyOnFailure=False),
        ],
    )
    s.note([got["ok"], [j["removeDependencyOnFailure"] for j in got["data"]["jobs"]]])


@scenario
def dependency_topology(s):
    """Dependencies must be other jobs of the same flow, named once, without a cycle."""
    outside = s.quiet.cmd(cmd="PUSH", queue=s.q("o"), name="o", data={})["id"]
    refused(s, with_input(s, dependsOn=[outside]))
    refused(s, node(s, "a", deps=["b", "b"]), node(s, "b"))
    refused(s, node(s, "a", deps=["nope"]), node(s, "b"))
    refused(s, node(s, "a", deps=["a"]))
    refused(s, node(s, "a", deps=["b"]), node(s, "b", deps=["a"]))
    refused(s, node(s, "a", deps=["b"]), node(s, "b", deps=["c"]), node(s, "c", deps=["a"]), node(s, "d"))


@scenario
def parent_child_topology(s):
    """Parent and child must agree on their edge from both sides."""
    p, c = family(s, "c1")
    refused(s, p)
    refused(s, c)
    two = [node(s, "p", children=["c1"]), node(s, "c1", "c")]
    refused(s, *two)
    two = [node(s, "p"), node(s, "c1", "c", parent=("p", "q"))]
    refused(s, *two)
    two = family(s, "c1")
    del two[0]["input"]["dependsOn"]
    refused(s, *two)
    two = family(s, "c1")
    two[0]["input"]["childrenIds"] = two[0]["input"]["dependsOn"] = [s.uid("c1"), s.uid("c1")]
    refused(s, *two)
    two = family(s, "c1")
    two[0]["input"]["childrenIds"] = [s.uid("c1"), s.uid("c1")]
    refused(s, *two)
    three = family(s, "c1") + [node(s, "o", children=["c1"])]
    refused(s, *three)


@scenario
def edge_metadata(s):
    """The data of parent and child must carry the same edge, in the same order."""
    two = family(s, "c1")
    del two[1]["input"]["data"]["__parentId"]
    refused(s, *two)
    two = family(s, "c1")
    two[1]["input"]["data"]["__parentQueue"] = s.q("other")
    refused(s, *two)
    two = family(s, "c1")
    del two[0]["input"]["data"]["__childrenIds"]
    refused(s, *two)
    three = family(s, "c1", "c2")
    three[0]["input"]["data"]["__childrenIds"] = [s.uid("c2"), s.uid("c1")]
    refused(s, *three)
    s.note(state(s, "p", "c1", "c2"))


@scenario
def first_error_wins(s):
    """Jobs are checked in list order, each whole, before the shape of the flow is looked at."""
    refused(s, with_input(s, priority="x", delay=-1), {"id": "a:b", "queue": "", "input": {}})
    refused(s, node(s, "a", deps=["nope"]), {"id": s.uid("b"), "queue": s.q(), "input": {"data": {}, "ttl": -1}})
    refused(s, {"id": "a:b", "queue": "a b", "input": {"data": 5}})
    refused(s, with_input(s, data=[], maxAttempts=0, repeat={"every": 1}))
    refused(s, with_input(s, maxAttempts=0, repeat={"every": 1}))


@scenario
def nothing_of_a_refused_flow_stays(s):
    """A flow refused for its last entry leaves no job, count or queue behind."""
    refused(s, *family(s, "c1", "c2"), with_input(s, priority=0.5))
    s.note(state(s, "p", "c1", "c2"))
    s.cmd(cmd="Count", queue=s.q("c"))
    s.cmd(cmd="GetJobCounts", queue=s.q())
    s.note(s.q("c") in s.quiet.cmd(cmd="ListQueues")["queues"])
    s.note(s.quiet.cmd(cmd="PUSHF", jobs=family(s, "c1", "c2"))["ok"])


@scenario
def ids_must_be_unused(s):
    """An id that is live, completed, dead-lettered, removed on completion or a custom id refuses the whole flow."""

    def one(name, **opts):
        return s.quiet.cmd(cmd="PUSHF", jobs=[node(s, name, **opts)])

    s.note(one("live")["ok"])
    refused(s, node(s, "new"), node(s, "live"))
    s.note(state(s, "new"))
    one("done", queue="d"), finish(s, "d")
    refused(s, node(s, "done"))
    one("gone", queue="g", removeOnComplete=True), finish(s, "g")
    refused(s, node(s, "gone"))
    one("dead", queue="x", maxAttempts=1)
    s.quiet.cmd(cmd="PULL", queue=s.q("x"))
    s.quiet.cmd(cmd="FAIL", id=s.uid("dead"), error="x")
    refused(s, node(s, "dead"))
    s.quiet.cmd(cmd="PUSH", queue=s.q("k"), name="k", data={}, jobId=s.uid("custom"))
    refused(s, node(s, "custom"))
    one("cancelled", queue="y")
    s.quiet.cmd(cmd="Cancel", id=s.uid("cancelled"))
    s.note(one("cancelled")["ok"])


@scenario
def events_of_a_flow(s):
    """Each job of a flow is announced with pushed in list order; parents are announced like the others."""
    e = s.conn("e")
    e.cmd(cmd="SubscribeEvents", queue=s.q())
    s.quiet.cmd(cmd="PUSHF", jobs=[node(s, "a", deps=["c"]), node(s, "b"), node(s, "o", "other"), node(s, "c")])
    got = e.wire.events(0.6)
    s.note([[g["event"]["eventType"], g["event"]["jobId"]] for g in got])


@scenario
def group_capacity_in_a_flow(s):
    """groupMaxSize counts runnable jobs of the flow together with those already queued; gated ones do not count."""
    s.quiet.cmd(cmd="PUSH", queue=s.q(), name="o", data={}, groupId="g")
    refused(s, node(s, "a", groupId="g", groupMaxSize=2), node(s, "b", groupId="g", groupMaxSize=2))
    s.note(state(s, "a", "b"))
    s.cmd(cmd="GetGroupJobsCount", queue=s.q(), groupId="g")
    got = s.quiet.cmd(
        cmd="PUSHF",
        jobs=[node(s, "a", groupId="g", groupMaxSize=2), node(s, "b", groupId="g", groupMaxSize=2, deps=["a"])],
    )
    s.note(got["ok"])
    s.cmd(cmd="GetGroupJobsCount", queue=s.q(), groupId="g")


@scenario
def delayed_and_prioritized_members(s):
    """Children may be delayed or prioritized; the parent's own delay counts from its creation."""
    s.quiet.cmd(
        cmd="PUSHF",
        jobs=[
            node(s, "p", children=["c1", "c2"], delay=60000),
            node(s, "c1", "c", parent=("p", "q"), delay=60000),
            node(s, "c2", "c", parent=("p", "q"), priority=3),
        ],
    )
    s.note(state(s, "p", "c1", "c2"))
    s.note([finish(s, "c"), finish(s, "c")])
    s.cmd(cmd="Promote", id=s.uid("c1"))
    s.note([finish(s, "c"), state(s, "p")])
    s.cmd(cmd="PULL", queue=s.q())
