-- Queued jobs of all groups of queues. Index: jobs_group, one range a queue.
SELECT q.name, count(*)
FROM bunqueue.queues q CROSS JOIN LATERAL (
    SELECT FROM bunqueue.jobs k WHERE k.queue_id = q.id AND k.status = 0 AND k.group_id IS NOT NULL OFFSET 0
) AS j
WHERE q.ns = $1::int4 AND q.name = ANY ($2::text[])
GROUP BY q.name
