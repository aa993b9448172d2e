-- Ids of a queue's delayed jobs, oldest first, at most $3. Locks nothing. Index: jobs_fifo, jobs_lifo, jobs_group, by status.
SELECT j.id
FROM bunqueue.queues q JOIN bunqueue.jobs j ON j.queue_id = q.id AND j.status = 0
WHERE q.ns = $1::int4 AND q.name = $2::text AND j.run_at > (SELECT bunqueue.now_ms())
ORDER BY j.created_at, j.id
LIMIT $3::int8
