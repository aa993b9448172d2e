-- Ids of up to $3 active jobs that were claimed or renewed through a broker session. Index: jobs_leased, one range a queue.
SELECT j.id
FROM bunqueue.queues q CROSS JOIN LATERAL (
    SELECT k.id, k.lease_session FROM bunqueue.jobs k WHERE k.queue_id = q.id AND k.status = 3 OFFSET 0
) AS j
WHERE q.ns = $1::int4 AND j.lease_session = $2::uuid
LIMIT $3::int4
