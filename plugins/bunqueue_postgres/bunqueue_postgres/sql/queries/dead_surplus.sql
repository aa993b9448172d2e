-- Deletes the oldest dead letters of a queue beyond the newest $2, but none that live jobs depend on, with an event if there are any.
-- Locks the deleted rows.
-- Index: jobs_ended.
WITH removed AS (
    DELETE FROM bunqueue.jobs j
    USING (
        SELECT d.ctid AS place
        FROM (
            SELECT s.ns, s.id FROM bunqueue.jobs s
            WHERE s.queue_id = $1::int4 AND s.status = 5
            ORDER BY s.finished_at DESC, s.id DESC
            OFFSET $2::int8
        ) AS surplus CROSS JOIN LATERAL (
            SELECT k.ctid FROM bunqueue.jobs k
            WHERE k.ns = surplus.ns AND k.id = surplus.id AND k.status = 5
                AND (k.flags & 4 = 0 OR NOT EXISTS (SELECT FROM bunqueue.edges e WHERE e.ns = k.ns AND e.dependency_id = k.id))
            FOR UPDATE SKIP LOCKED
        ) AS d
    ) AS surplus
    WHERE j.ctid = surplus.place
    RETURNING j.ns, j.id, j.queue_id
), journal AS (
    INSERT INTO bunqueue.events (at, ns, queue_id, size, type, ids)
    SELECT bunqueue.now_ms(), r.ns, r.queue_id, 1, 'queue-dlq-pruned', '{}' FROM removed r GROUP BY r.ns, r.queue_id
)
DELETE FROM bunqueue.logs l USING removed r WHERE l.ns = r.ns AND l.id = r.id
