-- Looks at $5 ended jobs of a queue from (state, time of the end, id) = ($2, $3, $4) on. Gives the last one looked at, the time, and of
-- each that says how long it is kept, or is due at some time, what that follows from; nulls if there is none. No row: there are no more.
-- Locks nothing. Index: jobs_ended.
WITH page AS MATERIALIZED (
    SELECT j.status, j.finished_at, j.id, j.due_at, j.flags, j.options, j.dead
    FROM bunqueue.jobs j
    WHERE j.queue_id = $1::int4 AND j.status IN (4, 5) AND (j.status, j.finished_at, j.id) > ($2::int2, $3::int8, $4::text)
        AND j.finished_at IS NOT NULL
    ORDER BY j.status, j.finished_at, j.id
    LIMIT $5::int4
)
SELECT l.status, l.finished_at, l.id, bunqueue.now_ms(), p.id, p.status, p.finished_at, p.due_at, p.options, p.dead
FROM (
    SELECT e.status, e.finished_at, e.id FROM page e ORDER BY e.status DESC, e.finished_at DESC, e.id DESC LIMIT 1
) AS l LEFT JOIN page p ON p.status = 5 OR p.due_at IS NOT NULL OR p.flags & 64 <> 0
