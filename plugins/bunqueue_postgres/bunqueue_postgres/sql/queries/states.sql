-- Status, priority and run_at of jobs, and the time. Locks nothing. Index: primary key.
SELECT j.id, j.status, j.priority, j.run_at, bunqueue.now_ms()
FROM bunqueue.jobs j
WHERE j.ns = $1::int4 AND j.id = ANY ($2::text[])
