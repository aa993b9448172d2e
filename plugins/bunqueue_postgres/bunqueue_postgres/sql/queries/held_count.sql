-- Number of active jobs that were claimed or renewed through a broker session. Index: jobs_leased, one range a queue.
SELECT count(*)
FROM bunqueue.queues q JOIN bunqueue.jobs j ON j.queue_id = q.id AND j.status = 3
WHERE q.ns = $1::int4 AND j.lease_session = $2::uuid
