-- Policy and state of a group, its queued and its active jobs, and the time. Index: primary keys, jobs_group, jobs_group_leased.
SELECT
    bunqueue.now_ms(), coalesce(g.paused, false), g.concurrency, g.rate_max, g.rate_duration, g.blocked_until, g.window_at,
    g.window_duration, g.window_count,
    (SELECT count(*) FROM bunqueue.jobs j WHERE j.queue_id = q.id AND j.status = 0 AND j.group_id = $3::text),
    (SELECT count(*) FROM bunqueue.jobs j WHERE j.queue_id = q.id AND j.status = 3 AND j.group_id = $3::text)
FROM bunqueue.queues q LEFT JOIN bunqueue.groups g ON g.queue_id = q.id AND g.id = $3::text
WHERE q.ns = $1::int4 AND q.name = $2::text
