-- Removes what is left of jobs that are gone: up to $2 rows each of debounces, successors, child failures and logs. Gives how many went.
-- A row that was written anew meanwhile stays. Locks: the removed rows. Index: primary keys.
WITH debounces AS (
    DELETE FROM bunqueue.debounces d
    USING (
        SELECT o.queue_id, o.key, o.job_id
        FROM bunqueue.queues q JOIN bunqueue.debounces o ON o.queue_id = q.id
        WHERE q.ns = $1::int4
            AND NOT EXISTS (SELECT FROM bunqueue.jobs j WHERE j.ns = q.ns AND j.id = o.job_id AND j.status IN (0, 1))
        LIMIT $2::int4
    ) AS o
    WHERE d.queue_id = o.queue_id AND d.key = o.key AND d.job_id = o.job_id
    RETURNING 1
), successors AS (
    DELETE FROM bunqueue.successors s
    USING (
        SELECT o.id, o.successor FROM bunqueue.successors o
        WHERE o.ns = $1::int4
            AND NOT EXISTS (SELECT FROM bunqueue.jobs j WHERE j.ns = o.ns AND j.id = o.successor AND j.status < 4)
        LIMIT $2::int4
    ) AS o
    WHERE s.ns = $1::int4 AND s.id = o.id AND s.successor = o.successor
    RETURNING 1
), failures AS (
    DELETE FROM bunqueue.child_failures f
    USING (
        SELECT o.parent_id, o.child_id FROM bunqueue.child_failures o
        WHERE o.ns = $1::int4
            AND NOT EXISTS (SELECT FROM bunqueue.jobs j WHERE j.ns = o.ns AND j.id = o.parent_id AND j.status < 4)
        LIMIT $2::int4
    ) AS o
    WHERE f.ns = $1::int4 AND f.parent_id = o.parent_id AND f.child_id = o.child_id
    RETURNING 1
), logs AS (
    DELETE FROM bunqueue.logs l
    USING (
        SELECT o.id FROM bunqueue.logs o
        WHERE o.ns = $1::int4 AND NOT EXISTS (SELECT FROM bunqueue.jobs j WHERE j.ns = o.ns AND j.id = o.id)
        LIMIT $2::int4
    ) AS o
    WHERE l.ns = $1::int4 AND l.id = o.id
    RETURNING 1
)
SELECT
    (SELECT count(*) FROM debounces) + (SELECT count(*) FROM successors) + (SELECT count(*) FROM failures)
        + (SELECT count(*) FROM logs)
