-- Mends what queues know of their jobs: levels and features of jobs that are queued or active are known, a queue with jobs is listed,
-- one with limits is limited. Gives the names of queues that had drifted.
-- Locks: the rows of those queues. Only adds levels, features and the listing, which concurrent pushes add, too.
-- Index: jobs_fifo and jobs_lifo, one probe a level; jobs_expiring, jobs_group, jobs_leased; the partial index of each state.
WITH RECURSIVE known AS (
    SELECT q.id FROM bunqueue.queues q WHERE q.ns = $1::int4
), fifo AS (
    SELECT k.id, (
        SELECT max(j.priority) FROM bunqueue.jobs j
        WHERE j.queue_id = k.id AND j.status = 0 AND j.group_id IS NULL AND NOT j.lifo
    ) AS priority
    FROM known k
    UNION ALL
    SELECT l.id, (
        SELECT max(j.priority) FROM bunqueue.jobs j
        WHERE j.queue_id = l.id AND j.status = 0 AND j.group_id IS NULL AND NOT j.lifo AND j.priority < l.priority
    )
    FROM fifo l WHERE l.priority IS NOT NULL
), lifo AS (
    SELECT k.id, (
        SELECT max(j.priority) FROM bunqueue.jobs j
        WHERE j.queue_id = k.id AND j.status = 0 AND j.group_id IS NULL AND j.lifo
    ) AS priority
    FROM known k
    UNION ALL
    SELECT l.id, (
        SELECT max(j.priority) FROM bunqueue.jobs j
        WHERE j.queue_id = l.id AND j.status = 0 AND j.group_id IS NULL AND j.lifo AND j.priority < l.priority
    )
    FROM lifo l WHERE l.priority IS NOT NULL
), levels AS (
    SELECT l.id, array_agg(DISTINCT l.priority) AS priorities
    FROM (
        SELECT id, priority FROM fifo
        UNION ALL
        SELECT id, priority FROM lifo
        UNION ALL
        SELECT k.id, j.priority FROM known k JOIN bunqueue.jobs j ON j.queue_id = k.id AND j.status = 3
    ) AS l
    WHERE l.priority IS NOT NULL
    GROUP BY l.id
), truth AS MATERIALIZED (
    SELECT
        k.id, coalesce(l.priorities, '{}') AS priorities,
        EXISTS (
            SELECT FROM bunqueue.jobs j WHERE j.queue_id = k.id AND j.status = 0 AND j.expires_at IS NOT NULL
        )::int4 + 2 * (
            EXISTS (SELECT FROM bunqueue.jobs j WHERE j.queue_id = k.id AND j.status = 0 AND j.group_id IS NOT NULL)
            OR EXISTS (SELECT FROM bunqueue.jobs j WHERE j.queue_id = k.id AND j.status = 3 AND j.group_id IS NOT NULL)
        )::int4 AS features,
        l.priorities IS NOT NULL
            OR EXISTS (SELECT FROM bunqueue.jobs j WHERE j.queue_id = k.id AND j.status = 0 AND j.group_id IS NOT NULL)
            OR EXISTS (SELECT FROM bunqueue.jobs j WHERE j.queue_id = k.id AND j.status IN (1, 2))
            OR EXISTS (SELECT FROM bunqueue.jobs j WHERE j.queue_id = k.id AND j.status IN (4, 5)) AS used
    FROM known k LEFT JOIN levels l ON l.id = k.id
)
UPDATE bunqueue.queues q
SET priorities = (SELECT array_agg(DISTINCT p ORDER BY p DESC) FROM unnest(q.priorities || t.priorities) p),
    features = q.features | t.features,
    listed = q.listed OR t.used,
    limited = q.rate_limit IS NOT NULL OR q.concurrency_limit IS NOT NULL
FROM truth t
WHERE q.id = t.id AND (
    NOT q.priorities @> t.priorities OR q.features & t.features <> t.features OR (t.used AND NOT q.listed)
    OR q.limited <> (q.rate_limit IS NOT NULL OR q.concurrency_limit IS NOT NULL)
)
RETURNING q.name
