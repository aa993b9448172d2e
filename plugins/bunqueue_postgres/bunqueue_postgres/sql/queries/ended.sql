-- Ids of a queue's completed jobs that completed by $3, oldest first, at most $4. Locks nothing. Index: jobs_ended.
SELECT j.id
FROM bunqueue.queues q JOIN bunqueue.jobs j ON j.queue_id = q.id AND j.status = 4
WHERE q.ns = $1::int4 AND q.name = $2::text AND j.finished_at <= $3::int8
ORDER BY j.finished_at, j.id
LIMIT $4::int8
