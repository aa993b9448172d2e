-- Status, priority and run_at of jobs, and the time. Locks nothing. Index: primary key, one probe an id.
SELECT j.id, j.status, j.priority, j.run_at, bunqueue.now_ms()
FROM unnest($2::text[]) AS i (id) CROSS JOIN LATERAL (
    SELECT k.id, k.status, k.priority, k.run_at FROM bunqueue.jobs k WHERE k.ns = $1::int4 AND k.id = i.id LIMIT 1
) AS j
