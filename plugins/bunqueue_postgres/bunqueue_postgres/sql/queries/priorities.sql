-- Queued jobs of queues by priority. Locks nothing. Index: jobs_fifo, jobs_lifo, jobs_group.
SELECT name, priority, count(*)
FROM (
    SELECT q.name, j.priority FROM bunqueue.queues q JOIN bunqueue.jobs j ON j.queue_id = q.id
    WHERE q.ns = $1::int4 AND q.name = ANY ($2::text[]) AND j.status = 0 AND j.group_id IS NULL AND NOT j.lifo
    UNION ALL
    SELECT q.name, j.priority FROM bunqueue.queues q JOIN bunqueue.jobs j ON j.queue_id = q.id
    WHERE q.ns = $1::int4 AND q.name = ANY ($2::text[]) AND j.status = 0 AND j.group_id IS NULL AND j.lifo
    UNION ALL
    SELECT q.name, j.priority FROM bunqueue.queues q JOIN bunqueue.jobs j ON j.queue_id = q.id
    WHERE q.ns = $1::int4 AND q.name = ANY ($2::text[]) AND j.status = 0 AND j.group_id IS NOT NULL
) AS queued
GROUP BY name, priority
