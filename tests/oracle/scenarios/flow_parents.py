"""Edges made and cut after admission: linking by push, UpdateParent, detaching, parking, and flow metadata."""

from oracle import scenario


def push(s, name, queue="q", parent=None, record=False, **opts):
    """Push with the custom id of the name; parent = (name, queue) gives the linking metadata."""
    data = opts.pop("data", {"n": name})
    if parent:
        data = {**data, "__parentId": s.uid(parent[0]), "__parentQueue": s.q(parent[1])}
        opts.setdefault("parentId", s.uid(parent[0]))
    c = s.a if record else s.quiet
    return c.cmd(cmd="PUSH", queue=s.q(queue), name=name, jobId=s.uid(name), data=data, **opts)


def view(s, name):
    """What the scenario pins of a job."""
    job = s.quiet.cmd(cmd="GetJob", id=s.uid(name)).get("job")
    if job is None:
        s.note([name, "not found"])
        return
    s.note(
        {
            "name": name,
            "state": job["state"],
            "parentId": job["parentId"],
            "childrenIds": job["childrenIds"],
            "dependsOn": job["dependsOn"],
            "data": job["data"],
        }
    )


def state(s, *names):
    return [s.quiet.cmd(cmd="GetState", id=s.uid(n))["state"] for n in names]


def take(s, queue="q"):
    job = s.quiet.cmd(cmd="PULL", queue=s.q(queue))["job"]
    return job and job["name"]


@scenario
def push_links_a_child_to_a_waiting_parent(s):
    """A pushed child with complete metadata is added to the parent, which then waits for it."""
    push(s, "p")
    push(s, "c", "c", parent=("p", "q"), record=True)
    view(s, "p"), view(s, "c")
    s.note([t["state"] for t in s.quiet.cmd(cmd="GetJob", id=s.uid("p"))["job"]["timeline"]])
    s.note([take(s), take(s, "c")])
    s.cmd(cmd="ACK", id=s.uid("c"), result=1)
    s.note([state(s, "p"), take(s)])


@scenario
def push_links_to_delayed_prioritized_and_gated_parents(s):
    """Any queued or gated parent can take a child; it returns to its former kind of state afterwards."""
    push(s, "d", delay=60000), push(s, "r", priority=4), push(s, "x", "x"), push(s, "g", dependsOn=[s.uid("x")])
    for p in "drg":
        s.note(push(s, "c" + p, "c", parent=(p, "q"))["ok"])
    s.note(state(s, "d", "r", "g"))
    for _ in range(3):
        take(s, "c")
    for p in "drg":
        s.quiet.cmd(cmd="ACK", id=s.uid("c" + p))
    s.note(state(s, "d", "r", "g"))


@scenario
def linking_errors(s):
    """Missing, finished, active and foreign-queue parents, and a job as its own parent, are refused."""
    push(s, "p")
    push(s, "c1", "c", parent=("nobody", "q"), record=True)
    push(s, "c2", "c", parent=("p", "other"), record=True)
    push(s, "self", parent=("self", "q"), record=True)
    take(s)
    push(s, "c3", "c", parent=("p", "q"), record=True)
    s.quiet.cmd(cmd="ACK", id=s.uid("p"))
    push(s, "c4", "c", parent=("p", "q"), record=True)
    push(s, "dead", maxAttempts=1), take(s)
    s.quiet.cmd(cmd="FAIL", id=s.uid("dead"), error="x")
    push(s, "c5", "c", parent=("dead", "q"), record=True)
    s.cmd(cmd="Count", queue=s.q("c"))


@scenario
def parent_id_without_metadata_is_only_noted(s):
    """parentId alone, or with metadata that does not match, is stored and links nothing."""
    push(s, "p")
    push(s, "c1", "c", parentId=s.uid("p"), record=True)
    push(s, "c2", "c", parentId=s.uid("nobody"), record=True)
    push(s, "c3", "c", parentId=s.uid("p"), data={"__parentId": s.uid("z"), "__parentQueue": s.q()}, record=True)
    view(s, "p"), view(s, "c1")
    s.note(state(s, "p", "c1", "c2", "c3"))


@scenario
def children_ids_alone_gate_nothing(s):
    """childrenIds on a push is kept for value look-ups and does not make the job wait."""
    push(s, "c", "c")
    push(s, "p", childrenIds=[s.uid("c"), s.uid("nobody")])
    s.note(state(s, "p"))
    take(s, "c")
    s.quiet.cmd(cmd="ACK", id=s.uid("c"), result=3)
    s.cmd(cmd="GetChildrenValues", id=s.uid("p"))


@scenario
def batch_links_to_one_parent(s):
    """PUSHB links all its children to one waiting parent in order; one bad link refuses the batch."""
    push(s, "p")
    meta = {"__parentId": s.uid("p"), "__parentQueue": s.q()}
    s.cmd(
        cmd="PUSHB",
        queue=s.q("c"),
        jobs=[
            {"name": "c1", "data": meta, "customId": s.uid("c1"), "parentId": s.uid("p")},
            {"name": "c2", "data": meta, "customId": s.uid("c2"), "parentId": s.uid("p")},
        ],
    )
    view(s, "p")
    s.cmd(
        cmd="PUSHB",
        queue=s.q("c"),
        jobs=[
            {"name": "c3", "data": meta, "customId": s.uid("c3"), "parentId": s.uid("p")},
            {"name": "c4", "data": {**meta, "__parentId": s.uid("z")}, "customId": s.uid("c4"), "parentId": s.uid("z")},
        ],
    )
    s.note(state(s, "c3", "c4"))
    view(s, "p")


@scenario
def update_parent_makes_an_edge(s):
    """UpdateParent links two existing jobs; the parent waits, both carry the metadata."""
    push(s, "p"), push(s, "c", "c")
    s.cmd(cmd="UpdateParent", childId=s.uid("c"), parentId=s.uid("p"))
    view(s, "p"), view(s, "c")
    s.cmd(cmd="UpdateParent", childId=s.uid("c"), parentId=s.uid("p"))
    view(s, "p")
    take(s, "c")
    s.quiet.cmd(cmd="ACK", id=s.uid("c"), result=1)
    s.note([state(s, "p"), take(s)])


@scenario
def update_parent_errors(s):
    """Unknown jobs, a job as its own parent, a child of someone else, and parents that cannot be linked."""
    push(s, "p"), push(s, "c", "c"), push(s, "o")
    s.cmd(cmd="UpdateParent", childId=s.uid("c"), parentId=s.uid("c"))
    s.cmd(cmd="UpdateParent", childId=s.uid("nobody"), parentId=s.uid("p"))
    s.cmd(cmd="UpdateParent", childId=s.uid("c"), parentId=s.uid("nobody"))
    s.quiet.cmd(cmd="UpdateParent", childId=s.uid("c"), parentId=s.uid("p"))
    s.cmd(cmd="UpdateParent", childId=s.uid("c"), parentId=s.uid("o"))
    push(s, "act", "act"), take(s, "act"), push(s, "c2", "c")
    s.cmd(cmd="UpdateParent", childId=s.uid("c2"), parentId=s.uid("act"))
    s.quiet.cmd(cmd="ACK", id=s.uid("act"))
    s.cmd(cmd="UpdateParent", childId=s.uid("c2"), parentId=s.uid("act"))
    view(s, "c2")


@scenario
def update_parent_with_a_finished_child(s):
    """A child that has completed already is recorded, and the parent stays runnable with its value at hand."""
    push(s, "p"), push(s, "c", "c")
    take(s, "c")
    s.quiet.cmd(cmd="ACK", id=s.uid("c"), result=7)
    s.cmd(cmd="UpdateParent", childId=s.uid("c"), parentId=s.uid("p"))
    s.note(state(s, "p"))
    job = s.quiet.cmd(cmd="GetJob", id=s.uid("p"))["job"]
    s.note([job["childrenIds"], job["dependsOn"]])
    s.cmd(cmd="GetChildrenValues", id=s.uid("p"))


@scenario
def update_parent_with_a_failed_child(s):
    """A child that is in the DLQ applies its policy to the new parent at once."""
    push(s, "p"), push(s, "c", "c", maxAttempts=1, continueParentOnFailure=True)
    push(s, "p2"), push(s, "c2", "c", maxAttempts=1, failParentOnFailure=True)
    for c in ("c", "c2"):
        take(s, "c")
        s.quiet.cmd(cmd="FAIL", id=s.uid(c), error="lost")
    s.cmd(cmd="UpdateParent", childId=s.uid("c"), parentId=s.uid("p"))
    s.cmd(cmd="UpdateParent", childId=s.uid("c2"), parentId=s.uid("p2"))
    s.note(state(s, "p", "p2"))
    s.cmd(cmd="GetFailedChildrenValues", id=s.uid("p"))


@scenario
def update_parent_back_patches_a_declared_edge(s):
    """When the parent already lists the child, only the child is changed, whatever state the parent is in."""
    push(s, "c", "c")
    push(s, "p", childrenIds=[s.uid("c")], dependsOn=[s.uid("c")])
    s.cmd(cmd="UpdateParent", childId=s.uid("c"), parentId=s.uid("p"))
    view(s, "c"), view(s, "p")
    push(s, "d", "c")
    push(s, "r", "r", childrenIds=[s.uid("d")])
    take(s, "r")
    s.cmd(cmd="UpdateParent", childId=s.uid("d"), parentId=s.uid("r"))
    s.note(state(s, "r"))
    view(s, "d")


@scenario
def remove_child_dependency(s):
    """Detaching a child cuts both sides and releases a parent that has nothing left to wait for."""
    push(s, "p"), push(s, "c1", "c", parent=("p", "q")), push(s, "c2", "c", parent=("p", "q"))
    e = s.conn("e")
    e.cmd(cmd="SubscribeEvents", queue=s.q())
    s.cmd(cmd="RemoveChildDependency", id=s.uid("c1"))
    view(s, "p"), view(s, "c1")
    s.cmd(cmd="RemoveChildDependency", id=s.uid("c2"))
    view(s, "p")
    e.events(0.4)
    s.note([take(s), take(s, "c")])


@scenario
def remove_child_dependency_refusals(s):
    """Unknown jobs and jobs without a parent are errors; a finished child is simply not removed."""
    push(s, "lone")
    s.cmd(cmd="RemoveChildDependency", id=s.uid("nobody"))
    s.cmd(cmd="RemoveChildDependency", id=s.uid("lone"))
    push(s, "p", "pq"), push(s, "c1", "c", parent=("p", "pq")), push(s, "c2", "c", parent=("p", "pq"))
    take(s, "c")
    s.cmd(cmd="RemoveChildDependency", id=s.uid("c1"))
    s.note(state(s, "p", "c1"))
    take(s, "c")
    s.quiet.cmd(cmd="ACK", id=s.uid("c2"))
    s.cmd(cmd="RemoveChildDependency", id=s.uid("c2"))


@scenario
def remove_unprocessed_children(s):
    """Children still queued are cancelled with an event; active and finished ones stay; unknown parents are fine."""
    push(s, "p")
    for c in ("c1", "c2", "c3", "c4"):
        push(s, c, "c", parent=("p", "q"))
    take(s, "c"), take(s, "c")
    s.quiet.cmd(cmd="ACK", id=s.uid("c1"), result=1)
    e = s.conn("e")
    e.cmd(cmd="SubscribeEvents", queue=s.q("c"))
    s.cmd(cmd="RemoveUnprocessedChildren", id=s.uid("p"))
    s.note(state(s, "c1", "c2", "c3", "c4"))
    s.note([[g["event"]["eventType"], g["event"]["jobId"]] for g in e.wire.events(0.4)])
    s.cmd(cmd="GetChildrenValues", id=s.uid("p"))
    s.cmd(cmd="RemoveUnprocessedChildren", id=s.uid("nobody"))


@scenario
def cancelling_a_parent_leaves_its_children(s):
    """Children of a cancelled parent run and complete as if nothing had happened."""
    push(s, "p"), push(s, "c", "c", parent=("p", "q"))
    s.cmd(cmd="Cancel", id=s.uid("p"))
    s.note([state(s, "p", "c"), take(s, "c")])
    s.cmd(cmd="ACK", id=s.uid("c"), result=1)
    s.cmd(cmd="GetState", id=s.uid("c"))


@scenario
def parking_an_active_job(s):
    """MoveToWaitingChildren parks an active job under the lock rules, frees its slot, and announces it."""
    s.cmd(cmd="MoveToWaitingChildren", id=s.uid("nobody"))
    push(s, "p")
    s.cmd(cmd="MoveToWaitingChildren", id=s.uid("p"))
    s.cmd(cmd="SetConcurrency", queue=s.q(), limit=1)
    got = s.quiet.cmd(cmd="PULL", queue=s.q(), owner="w")
    push(s, "next")
    s.cmd(cmd="MoveToWaitingChildren", id=s.uid("p"))
    s.cmd(cmd="MoveToWaitingChildren", id=s.uid("p"), token="wrong")
    e = s.conn("e")
    e.cmd(cmd="SubscribeEvents", queue=s.q())
    s.cmd(cmd="MoveToWaitingChildren", id=s.uid("p"), token=got["token"])
    e.events(0.4)
    s.note(state(s, "p"))
    s.cmd(cmd="GetJobCounts", queue=s.q())
    s.note(take(s))
    s.cmd(cmd="ACK", id=s.uid("p"), token=got["token"])


@scenario
def a_parked_job_resumes_through_a_new_child(s):
    """A parked job refuses to be promoted or moved; a child linked to it leads it back to waiting."""
    push(s, "p")
    take(s)
    s.quiet.cmd(cmd="MoveToWaitingChildren", id=s.uid("p"))
    s.cmd(cmd="Promote", id=s.uid("p"))
    s.cmd(cmd="MoveToWait", id=s.uid("p"))
    push(s, "c", "c", parent=("p", "q"))
    s.note(state(s, "p"))
    take(s, "c")
    s.quiet.cmd(cmd="ACK", id=s.uid("c"), result=1)
    s.note([state(s, "p"), take(s)])
    s.cmd(cmd="GetChildrenValues", id=s.uid("p"))


@scenario
def update_keeps_flow_metadata(s):
    """Update of a flow job's data keeps the edge keys, needs an object and refuses reserved keys."""
    push(s, "p"), push(s, "c", "c", parent=("p", "q"))
    s.cmd(cmd="Update", id=s.uid("c"), data={"fresh": 1})
    s.cmd(cmd="Update", id=s.uid("p"), data={"fresh": 2})
    view(s, "c"), view(s, "p")
    s.cmd(cmd="Update", id=s.uid("c"), data="text")
    s.cmd(cmd="Update", id=s.uid("c"), data=[1])
    s.cmd(cmd="Update", id=s.uid("c"), data={"__parentId": "other"})
    s.cmd(cmd="Update", id=s.uid("c"), data={"__mine": 1})
    push(s, "plain")
    s.cmd(cmd="Update", id=s.uid("plain"), data={"__mine": 1})
    view(s, "c")
