-- Groups of a queue with a due job, with their policies and state, in rotation: served longest ago first; a group that has no
-- position yet comes after those, in order of its oldest job. $2 names the only group that is wanted. The caller holds the queue's
-- row, so that nobody else serves them.
-- Index: jobs_group, two probes a group.
WITH RECURSIVE names AS (
    (
        SELECT j.group_id FROM bunqueue.jobs j
        WHERE j.queue_id = $1::int4 AND j.status = 0 AND j.group_id IS NOT NULL AND ($2::text IS NULL OR j.group_id = $2::text)
        ORDER BY j.group_id LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT j.group_id FROM bunqueue.jobs j
        WHERE j.queue_id = $1::int4 AND j.status = 0 AND j.group_id > n.group_id AND $2::text IS NULL
        ORDER BY j.group_id LIMIT 1
    )
    FROM names n WHERE n.group_id IS NOT NULL
)
SELECT
    n.group_id, coalesce(g.paused, false), g.concurrency, g.rate_max, g.rate_duration, g.blocked_until,
    g.window_at, g.window_max, g.window_duration, g.window_count, g.last_served,
    (
        SELECT count(*) FROM bunqueue.jobs j
        WHERE j.queue_id = $1::int4 AND j.group_id = n.group_id AND j.status = 3 AND j.lease_until > bunqueue.now_ms()
    )
FROM names n LEFT JOIN bunqueue.groups g ON g.queue_id = $1::int4 AND g.id = n.group_id CROSS JOIN LATERAL (
    SELECT min(j.group_order) AS oldest FROM bunqueue.jobs j
    WHERE j.queue_id = $1::int4 AND j.group_id = n.group_id AND j.status = 0 AND j.run_at <= (SELECT bunqueue.now_ms())
) AS due
WHERE n.group_id IS NOT NULL AND due.oldest IS NOT NULL
ORDER BY g.last_served NULLS LAST, due.oldest
