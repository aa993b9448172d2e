-- Queued jobs of all groups of queues. Index: jobs_group.
SELECT q.name, count(*)
FROM bunqueue.queues q JOIN bunqueue.jobs j ON j.queue_id = q.id AND j.status = 0 AND j.group_id IS NOT NULL
WHERE q.ns = $1::int4 AND q.name = ANY ($2::text[])
GROUP BY q.name
