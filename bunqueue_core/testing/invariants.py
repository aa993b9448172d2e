"""What must hold of a local broker at every moment, recomputed from scratch: every counter, index and reverse edge of its engine.

The engine keeps many numbers so that nothing has to be counted on a hot path; a number that drifts is a bug that shows itself much
later and elsewhere. :func:`check_broker` derives all of them anew from the jobs alone and compares. It costs what the backlog
costs: for tests only.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from bunqueue_core.engine.ready import DELAYED_SET, LANE, NOWHERE, READY_SET, STALE
from bunqueue_core.model.job import Job, Location

if TYPE_CHECKING:
    from bunqueue_core.broker.local import LocalBroker
    from bunqueue_core.engine.engine import Engine
    from bunqueue_core.engine.groups import Groups
    from bunqueue_core.engine.queue import QueueState


def check_broker(broker: LocalBroker) -> None:
    """Check a local broker and its engine.

    Raises:
        AssertionError: listing everything that does not hold.
    """
    engine = broker._engine
    problems = engine_problems(engine)
    for name, parked in broker._parked.items():
        queue = engine.queues.get(name)
        known = queue.waiters if queue is not None else engine.awaited.get(name, 0)
        if known != len(parked):
            problems.append(f"queue {name}: {len(parked)} pulls wait, the engine knows of {known}")
    for name, queue in engine.queues.items():
        if queue.waiters and name not in broker._parked:
            problems.append(f"queue {name}: {queue.waiters} pulls wait according to the engine, none does")
    assert not problems, "\n".join(problems)


def engine_problems(engine: Engine) -> list[str]:
    """Everything that does not hold of an engine, as sentences; empty when it is whole."""
    problems: list[str] = []
    placed: dict[str, str] = {}

    def place(job: Job, where: str, *locations: int) -> None:
        if engine.jobs.get(job.id) is not job:
            problems.append(f"{job.id} is in {where}, but another object or none stands for it")
        if job.location not in locations:
            problems.append(f"{job.id} is in {where}, but its location is {job.location}")
        if job.id in placed:
            problems.append(f"{job.id} is in {where} and in {placed[job.id]}")
        placed[job.id] = where

    for name, queue in engine.queues.items():
        if queue.name != name:
            problems.append(f"queue {name} is called {queue.name}")
        for job in queue.ready:
            place(job, f"{name}.ready", Location.READY)
            if job.group_id is not None:
                problems.append(f"{job.id} has a group and is in {name}.ready")
        for job in queue.delayed_jobs():
            place(job, f"{name}.delayed", Location.READY)
        for job in queue.groups or ():
            place(job, f"{name}.groups", Location.READY)
        for job in queue.active.values():
            place(job, f"{name}.active", Location.ACTIVE)
        for job in queue.gated.values():
            place(job, f"{name}.gated", Location.GATED)
        for job in queue.parked.values():
            place(job, f"{name}.parked", Location.PARKED)
        for job in queue.completed.values():
            place(job, f"{name}.completed", Location.COMPLETED)
        for _, entry in queue.dlq.values():
            place(entry.job, f"{name}.dlq", Location.DEAD)
        for index in (queue.active, queue.gated, queue.parked, queue.completed):
            problems.extend(f"{id} stands for {job.id} in {name}" for id, job in index.items() if job.id != id)
        problems.extend(_queue_problems(engine, queue))
    for id, job in engine.jobs.items():
        if id != job.id:
            problems.append(f"{id} stands for {job.id}")
        if id not in placed:
            problems.append(f"{id} (location {job.location}) is nowhere")
    problems.extend(_dependency_problems(engine))
    problems.extend(_delivery_problems(engine))
    problems.extend(_memory_problems(engine))
    return problems


def _queue_problems(engine: Engine, queue: QueueState) -> list[str]:
    problems: list[str] = []
    name = queue.name

    def same(what: str, kept: Any, counted: Any) -> None:
        if kept != counted:
            problems.append(f"queue {name}: {what} is kept as {kept}, there are {counted}")

    ready = queue.ready
    same("ready.size", ready.size, sum(1 for _ in ready))
    for priority, bucket in ready._buckets.items():
        entries = list(bucket.all_entries())
        same(f"live of priority {priority}", bucket.live, sum(job.where == READY_SET for job in entries))
        same(f"dead of priority {priority}", bucket.dead, sum(job.where == STALE for job in entries))
        if len({id(job) for job in entries}) != len(entries):
            problems.append(f"queue {name}: an object is twice in priority {priority}")
        if any(job.priority != priority for job in entries if job.where == READY_SET):
            problems.append(f"queue {name}: a job of another priority is in {priority}")
    buckets = {-negated: bucket for negated, bucket in ready._heap}
    same("the heap of priorities", len(ready._heap) == len(buckets) and _is_heap([n for n, _ in ready._heap]), True)
    same("the priorities in the heap", buckets.keys(), ready._buckets.keys())
    if any(ready._buckets[priority] is not bucket for priority, bucket in buckets.items()):
        problems.append(f"queue {name}: another bucket is in the heap")
    ready_jobs = list(ready)
    same("prioritized", ready.prioritized, sum(job.priority > 0 for job in ready_jobs))
    same("per priority", ready.per_priority(), dict(Counter(job.priority for job in ready_jobs)))
    waiting = list(queue.delayed_jobs())
    same("delayed_count", queue.delayed_count, len(waiting))
    if any(job.where != DELAYED_SET for job in waiting):
        problems.append(f"queue {name}: a delayed job is not marked as one")
    same("the heap of delayed jobs", _is_heap(queue.delayed), True)
    if queue.concurrency is not None and not 0 <= queue.concurrency.active <= len(queue.active):
        problems.append(f"queue {name}: {queue.concurrency.active} slots are taken by {len(queue.active)} active jobs")
    if queue.groups is not None:
        problems.extend(_group_problems(queue, queue.groups))
    elif any(job.group_id is not None for job in queue.active.values()):
        problems.append(f"queue {name}: a grouped job is active and there are no groups")
    if not engine.settings.persistent:
        same("completed_count", queue.completed_count, len(queue.completed))
    elif queue.completed_count < len(queue.completed):
        problems.append(f"queue {name}: {queue.completed_count} completed jobs, {len(queue.completed)} in memory")
    for key, owner in queue.unique.items():
        if owner.window and (owner.expires_at is None or owner.expires_at > queue.windows_until):
            problems.append(f"queue {name}: the window of {key} ends after {queue.windows_until}")
    for _, entry in queue.dlq.values():
        if entry.job.queue != name:
            problems.append(f"{entry.job.id} of {entry.job.queue} is a dead letter of {name}")
    if len(queue.dlq) > queue.dlq_config.max_entries:
        problems.append(f"queue {name}: {len(queue.dlq)} dead letters exceed {queue.dlq_config.max_entries}")
    return problems


def _group_problems(queue: QueueState, groups: Groups) -> list[str]:
    problems: list[str] = []
    name = queue.name

    def same(what: str, kept: Any, counted: Any) -> None:
        if kept != counted:
            problems.append(f"queue {name}: {what} is kept as {kept}, there are {counted}")

    queued: Counter[str] = Counter()
    live: Counter[str] = Counter()
    for job in queue.delayed_jobs():
        if job.group_id is not None:
            queued[job.group_id] += 1
    for job in groups:
        assert job.group_id is not None
        queued[job.group_id] += 1
        live[job.group_id] += 1
        if job.where != LANE:
            problems.append(f"{job.id} is in a lane and marked as {job.where}")
    active = Counter(job.group_id for job in queue.active.values() if job.group_id is not None)
    same("ready grouped jobs", groups.ready, sum(live.values()))
    same("queued grouped jobs", groups.queued, sum(queued.values()))
    same("prioritized grouped jobs", groups.prioritized, sum(job.priority > 0 for job in groups))
    unknown = {*queued, *live, *active} - groups.by_id.keys()
    problems.extend(f"queue {name}: group {id} has jobs and is not known" for id in unknown)
    for id, group in groups.by_id.items():
        same(f"live of group {id}", group.live, live[id])
        same(f"queued of group {id}", group.queued, queued[id])
        same(f"active of group {id}", group.active, active[id])
        same(f"whether group {id} is in the ring", group.following is not None, group.live > 0)
    ring = groups.ring()
    if {group.id for group in ring} != set(live):
        problems.append(f"queue {name}: the ring has {sorted(g.id for g in ring)}, lanes with jobs are {sorted(live)}")
    problems.extend(f"queue {name}: {problem}" for problem in groups.problems())
    return problems


def _dependency_problems(engine: Engine) -> list[str]:
    problems: list[str] = []
    edges: dict[str, set[str]] = {}
    gated = {id: job for id, job in engine.jobs.items() if job.location == Location.GATED}
    for id, job in gated.items():
        awaited = engine.awaited_by(job)
        for dependency in awaited:
            edges.setdefault(dependency, set()).add(id)
        unmet = engine.unmet(awaited)
        if not unmet:
            problems.append(f"{id} is gated and waits for nothing")
        if engine.unmet_counts.get(id) != len(unmet):
            problems.append(f"{id} waits for {len(unmet)}, kept as {engine.unmet_counts.get(id)}")
        blockers = {
            dependency
            for dependency in unmet
            if dependency not in engine.jobs or engine.jobs[dependency].location == Location.DEAD
        }
        if set(engine.blocked.get(id, ())) != blockers:
            problems.append(f"{id} is blocked by {sorted(blockers)}, kept as {sorted(engine.blocked.get(id, ()))}")
    kept = {id: set(waiters) for id, waiters in engine.dependents.items()}
    if kept != edges:
        wrong = {id for id in {*kept, *edges} if kept.get(id) != edges.get(id)}
        problems.append(f"edges differ for {sorted(wrong)[:5]}")
    problems.extend(f"{id} is counted as waiting and is not gated" for id in engine.unmet_counts.keys() - gated.keys())
    problems.extend(f"{id} is kept as blocked and is not gated" for id in engine.blocked.keys() - gated.keys())
    gone = engine.child_failures.keys() - engine.jobs.keys()
    problems.extend(f"failures are kept of children of {id}, which is gone" for id in gone)
    for what, kept_ids in (("dropped children", engine.dropped), ("unwritten children", engine.stale_children)):
        problems.extend(f"{what} are kept of {id}, which is not gated" for id in kept_ids.keys() - gated.keys())
    return problems


def _delivery_problems(engine: Engine) -> list[str]:
    problems: list[str] = []
    active = {id: job for id, job in engine.jobs.items() if job.location == Location.ACTIVE}
    timed = {id: job for jobs in engine.timers._slots.values() for id, job in jobs.items()}
    for id, job in active.items():
        if timed.get(id) is not job:
            problems.append(f"{id} is active and has no deadline")
        if job.where not in (NOWHERE, STALE):
            problems.append(f"{id} is active and marked as {job.where}")
        if job.session is not None and engine.sessions.get(job.session, {}).get(id) is not job:
            problems.append(f"{id} belongs to session {job.session}, which does not know it")
    for id, job in timed.items():
        if active.get(id) is not job:
            problems.append(f"{id} has a deadline and is not active")
    for session, jobs in engine.sessions.items():
        for id, job in jobs.items():
            if active.get(id) is not job or job.session != session:
                problems.append(f"session {session} holds {id}, which is not its delivery")
    for id, job in engine.jobs.items():
        if job.location != Location.ACTIVE and (job.lease is not None or job.session is not None or job.timer):
            problems.append(f"{id} is not active and still has a lease, a session or a deadline")
    return problems


def _memory_problems(engine: Engine) -> list[str]:
    problems: list[str] = []
    completed = {id: job for id, job in engine.jobs.items() if job.location == Location.COMPLETED}
    if engine.completed_in_memory != len(completed):
        problems.append(f"{len(completed)} completed jobs in memory, kept as {engine.completed_in_memory}")
    if engine.completed_order != completed:
        problems.append("the order of the completed jobs is not of those that there are")
    wrong = engine.results.keys() - completed.keys()
    problems.extend(f"a result is kept of {id}, which has not completed" for id in wrong)
    if engine.letters != sum(len(queue.dlq) for queue in engine.queues.values()):
        problems.append(f"{engine.letters} dead letters are counted, which is wrong")
    marked = engine.marks._jobs
    for id, job in marked.items():
        if not job.dirty or engine.jobs.get(id) is not job:
            problems.append(f"{id} is marked to be written and is clean or gone")
    for id, job in engine.jobs.items():
        if job.dirty and marked.get(id) is not job:
            problems.append(f"{id} is dirty and not marked")
    if engine.marks.enabled:
        for id, job in engine.jobs.items():
            if not job.dirty and not job.stored and job.location != Location.DEAD:
                problems.append(f"{id} is neither stored nor about to be")
    elif marked:
        problems.append("an engine without a journal has marks")
    for name, queue in engine.queues.items():
        problems.extend(f"{id} has completed in {name}" for id, job in queue.completed.items() if job.queue != name)
    return problems


def _is_heap(heap: list[Any]) -> bool:
    return not any(heap[at] < heap[(at - 1) // 2] for at in range(1, len(heap)))
