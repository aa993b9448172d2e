"""What a parent does when a child fails for good, and which values it can read afterwards."""

from oracle import scenario

FAIL, REMOVE = {"failParentOnFailure": True}, {"removeDependencyOnFailure": True}
IGNORE, CONTINUE = {"ignoreDependencyOnFailure": True}, {"continueParentOnFailure": True}


def flow(s, parent=None, **kids):
    """A parent p in queue q; children in queue c, each given by its options (maxAttempts 1 unless said)."""
    ids = [s.uid(k) for k in kids]
    jobs = [
        {
            "id": s.uid("p"),
            "queue": s.q(),
            "input": {
                "name": "p",
                "data": {"job": "p", "__childrenIds": ids},
                "childrenIds": ids,
                "dependsOn": ids,
                **(parent or {}),
            },
        }
    ]
    for k, opts in kids.items():
        jobs.append(
            {
                "id": s.uid(k),
                "queue": s.q("c"),
                "input": {
                    "name": k,
                    "data": {"job": k, "__parentId": s.uid("p"), "__parentQueue": s.q()},
                    "parentId": s.uid("p"),
                    "maxAttempts": 1,
                    **opts,
                },
            }
        )
    got = s.quiet.cmd(cmd="PUSHF", jobs=jobs)
    if not got["ok"]:
        s.note(got)


def fail(s, name, error="boom", **more):
    """Fail a child that heads its queue; the answer's ok."""
    job = s.quiet.cmd(cmd="PULL", queue=s.q("c"), timeout=1000)["job"]
    if not job or job["name"] != name:
        s.note(["unexpected delivery", name, job and job["name"]])
        return
    more = more if error is None else {"error": error, **more}
    s.quiet.cmd(cmd="FAIL", id=job["id"], **more)


def complete(s, name, **more):
    job = s.quiet.cmd(cmd="PULL", queue=s.q("c"), timeout=1000)["job"]
    if not job or job["name"] != name:
        s.note(["unexpected delivery", name, job and job["name"]])
        return
    s.quiet.cmd(cmd="ACK", id=job["id"], **more)


def state(s, *names):
    return [s.quiet.cmd(cmd="GetState", id=s.uid(n))["state"] for n in names]


def values(s):
    """The three value maps of the parent."""
    c, p = s.quiet, s.uid("p")
    s.note(
        {
            "children": c.cmd(cmd="GetChildrenValues", id=p)["data"]["values"],
            "failed": c.cmd(cmd="GetFailedChildrenValues", id=p)["values"],
            "ignored": c.cmd(cmd="GetIgnoredChildrenFailures", id=p)["values"],
        }
    )


def edges(s):
    job = s.quiet.cmd(cmd="GetJob", id=s.uid("p"))["job"]
    s.note({"dependsOn": job["dependsOn"], "childrenIds": job["childrenIds"]})


@scenario
def no_policy_keeps_the_parent_waiting(s):
    """Without a policy a failed child leaves its parent waiting, even when all siblings complete."""
    flow(s, c1={}, c2={})
    fail(s, "c1")
    complete(s, "c2", result=2)
    s.note(state(s, "p", "c1", "c2"))
    s.cmd(cmd="RetryDlq", queue=s.q("c"))
    complete(s, "c1", result=1)
    s.note(state(s, "p", "c1", "c2"))
    values(s)


@scenario
def fail_policy_dead_letters_the_parent(s):
    """failParentOnFailure sends the parent to the DLQ at once with a fixed error text; siblings go on."""
    flow(s, c1=FAIL, c2={})
    fail(s, "c1", "disk on fire")
    s.note(state(s, "p", "c1", "c2"))
    entry = s.quiet.cmd(cmd="Dlq", queue=s.q())["entries"][0]
    s.note({k: entry[k] for k in ("reason", "error", "retryCount")})
    s.note({k: entry["job"][k] for k in ("id", "attempts", "dependsOn", "childrenIds", "data")})
    complete(s, "c2", result=2)
    s.note(state(s, "p", "c2"))
    s.cmd(cmd="GetJobCounts", queue=s.q())


@scenario
def fail_policy_event(s):
    """The parent's failure is announced on its own queue with the child's error and the parent's data."""
    flow(s, c1=FAIL)
    e = s.conn("e")
    e.cmd(cmd="SubscribeEvents", queue=s.q())
    fail(s, "c1", "why")
    e.events(0.5)


@scenario
def fail_policy_default_error_and_remove_on_fail(s):
    """Without an error text the parent's DLQ entry says unknown error; the parent's removeOnFail is not applied."""
    flow(s, parent={"removeOnFail": True}, c1=FAIL)
    fail(s, "c1", None)
    s.note(state(s, "p", "c1"))
    s.note([e["error"] for e in s.quiet.cmd(cmd="Dlq", queue=s.q())["entries"]])


@scenario
def fail_policy_does_not_reach_the_grandparent(s):
    """The grandparent keeps waiting when its child fails only because a grandchild did."""
    kids, sub = [s.uid("p")], [s.uid("c1")]
    s.quiet.cmd(
        cmd="PUSHF",
        jobs=[
            {
                "id": s.uid("g"),
                "queue": s.q("g"),
                "input": {"name": "g", "data": {"__childrenIds": kids}, "childrenIds": kids, "dependsOn": kids},
            },
            {
                "id": s.uid("p"),
                "queue": s.q(),
                "input": {
                    "name": "p",
                    "data": {"__childrenIds": sub, "__parentId": s.uid("g"), "__parentQueue": s.q("g")},
                    "childrenIds": sub,
                    "dependsOn": sub,
                    "parentId": s.uid("g"),
                    "failParentOnFailure": True,
                },
            },
            {
                "id": s.uid("c1"),
                "queue": s.q("c"),
                "input": {
                    "name": "c1",
                    "data": {"__parentId": s.uid("p"), "__parentQueue": s.q()},
                    "parentId": s.uid("p"),
                    "maxAttempts": 1,
                    "failParentOnFailure": True,
                },
            },
        ],
    )
    fail(s, "c1")
    s.note(state(s, "g", "p", "c1"))


@scenario
def failed_parent_can_be_retried(s):
    """A parent dead-lettered by its child becomes runnable when retried from the DLQ."""
    flow(s, c1=FAIL)
    fail(s, "c1")
    s.cmd(cmd="RetryDlq", queue=s.q(), jobId=s.uid("p"))
    s.note(state(s, "p"))
    job = s.quiet.cmd(cmd="PULL", queue=s.q())["job"]
    s.note(job["name"])
    s.cmd(cmd="ACK", id=s.uid("p"))


@scenario
def remove_policy_drops_the_edge(s):
    """removeDependencyOnFailure removes the failed child from dependsOn and leaves no trace in the values."""
    flow(s, c1=REMOVE, c2={})
    fail(s, "c1")
    s.note(state(s, "p", "c1", "c2"))
    edges(s)
    complete(s, "c2", result=2)
    s.note(state(s, "p"))
    values(s)
    s.note(s.quiet.cmd(cmd="PULL", queue=s.q())["job"]["name"])


@scenario
def remove_policy_on_the_last_child(s):
    """When the failed child was the last one missing, the parent becomes runnable at once."""
    flow(s, c1={}, c2=REMOVE)
    complete(s, "c1", result=1)
    fail(s, "c2")
    s.note(state(s, "p"))
    edges(s)
    values(s)


@scenario
def ignore_policy_records_the_failure(s):
    """ignoreDependencyOnFailure behaves like remove and keeps the error readable until the parent is done."""
    flow(s, c1=IGNORE, c2=IGNORE, c3={})
    fail(s, "c1", "first")
    fail(s, "c2", None)
    values(s)
    s.note(state(s, "p"))
    complete(s, "c3", result={"ok": True})
    s.note(state(s, "p"))
    values(s)
    s.quiet.cmd(cmd="PULL", queue=s.q())
    values(s)
    s.cmd(cmd="ACK", id=s.uid("p"))
    values(s)


@scenario
def continue_policy_releases_at_once(s):
    """continueParentOnFailure makes the parent runnable although siblings are still running."""
    flow(s, c1=CONTINUE, c2={}, c3={})
    fail(s, "c1", "sad")
    s.note(state(s, "p", "c1", "c2", "c3"))
    edges(s)
    values(s)
    s.note(s.quiet.cmd(cmd="PULL", queue=s.q())["job"]["name"])
    complete(s, "c2", result=2)
    values(s)
    s.cmd(cmd="ACK", id=s.uid("p"))
    complete(s, "c3", result=3)
    s.note(state(s, "p", "c2", "c3"))
    values(s)


@scenario
def release_by_policy_is_announced(s):
    """Release by a failure policy emits waiting with prev waiting-children, unlike a normal release."""
    flow(s, c1=CONTINUE)
    e = s.conn("e")
    e.cmd(cmd="SubscribeEvents", queue=s.q())
    fail(s, "c1")
    e.events(0.5)


@scenario
def release_by_policy_ignores_the_parents_delay(s):
    """A delayed parent released by a policy runs now; released by completion it stays delayed."""
    flow(s, parent={"delay": 60000}, c1=IGNORE)
    fail(s, "c1")
    s.note(state(s, "p"))


@scenario
def retried_failures_apply_no_policy(s):
    """Only the final failure counts: while attempts remain the parent is left alone."""
    flow(s, c1={**FAIL, "maxAttempts": 2, "backoff": {"type": "fixed", "delay": 0}})
    fail(s, "c1")
    s.note(state(s, "p"))
    fail(s, "c1")
    s.note(state(s, "p", "c1"))


@scenario
def unrecoverable_and_removed_children(s):
    """An unrecoverable failure and a child with removeOnFail apply the policy at once."""
    flow(s, c1={**IGNORE, "maxAttempts": 5}, c2={**IGNORE, "removeOnFail": True})
    fail(s, "c1", "fatal", unrecoverable=True)
    fail(s, "c2", "gone")
    s.note(state(s, "p", "c1", "c2"))
    values(s)


@scenario
def cancel_and_discard_apply_no_policy(s):
    """Cancelling or discarding a child does not touch its parent."""
    flow(s, c1=FAIL, c2=CONTINUE, c3={})
    s.cmd(cmd="Cancel", id=s.uid("c1"))
    s.cmd(cmd="Discard", id=s.uid("c2"))
    s.note(state(s, "p", "c1", "c2"))
    values(s)


@scenario
def several_policies_in_one_family(s):
    """Children of one parent may have different policies; each acts when its own child fails."""
    flow(s, c1=REMOVE, c2=IGNORE, c3={}, c4=CONTINUE)
    fail(s, "c1", "e1")
    s.note(state(s, "p"))
    fail(s, "c2", "e2")
    s.note(state(s, "p"))
    complete(s, "c3", result=3)
    s.note(state(s, "p"))
    fail(s, "c4", "e4")
    s.note(state(s, "p"))
    edges(s)
    values(s)


@scenario
def children_values_keys_and_kinds(s):
    """Null is a value and no result is none; a child removed on completion is keyed by its id alone."""
    flow(s, c1={}, c2={}, c3={}, c4={"removeOnComplete": True}, c5={})
    complete(s, "c1", result=None)
    complete(s, "c2")
    complete(s, "c3", result=[1, {"x": "y"}])
    complete(s, "c4", result="kept for the parent")
    s.note(state(s, "p", "c4"))
    s.cmd(cmd="GetChildrenValues", id=s.uid("p"))
    s.note(sorted(s.quiet.cmd(cmd="GetChildrenValues", id=s.uid("p"))["data"]["values"]))
    s.cmd(cmd="GetChildrenValues", id=s.uid("c1"))
    s.cmd(cmd="GetChildrenValues", id=s.uid("nobody"))
    s.cmd(cmd="GetFailedChildrenValues", id=s.uid("nobody"))
    s.cmd(cmd="GetIgnoredChildrenFailures", id=s.uid("nobody"))


@scenario
def policy_of_a_child_linked_by_push(s):
    """The policies work the same for children that were linked to a waiting parent by PUSH."""
    s.quiet.cmd(cmd="PUSH", queue=s.q(), name="p", data={}, jobId=s.uid("p"))
    s.quiet.cmd(
        cmd="PUSH",
        queue=s.q("c"),
        name="c1",
        jobId=s.uid("c1"),
        maxAttempts=1,
        parentId=s.uid("p"),
        data={"__parentId": s.uid("p"), "__parentQueue": s.q()},
        continueParentOnFailure=True,
    )
    s.note(state(s, "p", "c1"))
    fail(s, "c1", "x")
    s.note(state(s, "p", "c1"))
    values(s)


@scenario
def policy_after_the_parent_left(s):
    """A failure after the parent was cancelled changes nothing else."""
    flow(s, c1=FAIL)
    s.cmd(cmd="Cancel", id=s.uid("p"))
    fail(s, "c1")
    s.note(state(s, "p", "c1"))
    s.cmd(cmd="GetJobCounts", queue=s.q())


@scenario
def timed_out_child_applies_its_policy(s):
    """A final processing time-out counts as a failure with its own text."""
    flow(s, c1={**IGNORE, "timeout": 150})
    s.quiet.cmd(cmd="PULL", queue=s.q("c"))
    s.until(lambda c: c.cmd(cmd="GetState", id=s.uid("p"))["state"] == "waiting")
    s.note(state(s, "p", "c1"))
    values(s)
