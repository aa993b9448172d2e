-- Pauses or resumes a queue, registering it if it is new; says so in the outbox when that changed something.
-- Locks: the queue's row.
WITH before AS MATERIALIZED (
    SELECT q.paused FROM bunqueue.queues q WHERE q.ns = $1::int4 AND q.name = $2::text
), changed AS (
    INSERT INTO bunqueue.queues AS q (ns, name, listed, paused) VALUES ($1::int4, $2::text, true, $3::bool)
    ON CONFLICT (ns, name) DO UPDATE SET paused = excluded.paused, listed = true
    RETURNING q.id
)
INSERT INTO bunqueue.events (at, ns, queue_id, size, type, ids)
SELECT bunqueue.now_ms(), $1::int4, c.id, 1, CASE WHEN $3::bool THEN 'paused' ELSE 'resumed' END, '{}'
FROM changed c
WHERE $3::bool IS DISTINCT FROM coalesce((SELECT paused FROM before), false)
