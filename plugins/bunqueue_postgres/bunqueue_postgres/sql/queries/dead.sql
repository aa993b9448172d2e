-- Ids of a queue's dead letters, oldest first, at most $3. Locks nothing. Index: jobs_ended.
SELECT j.id
FROM bunqueue.queues q JOIN bunqueue.jobs j ON j.queue_id = q.id AND j.status = 5
WHERE q.ns = $1::int4 AND q.name = $2::text
ORDER BY j.finished_at, j.id
LIMIT $3::int8
