-- Queued jobs of a queue by priority. Locks nothing. Index: jobs_fifo, jobs_lifo, jobs_group.
SELECT priority, count(*)
FROM (
    SELECT j.priority FROM bunqueue.queues q JOIN bunqueue.jobs j ON j.queue_id = q.id
    WHERE q.ns = $1::int4 AND q.name = $2::text AND j.status = 0 AND j.group_id IS NULL AND NOT j.lifo
    UNION ALL
    SELECT j.priority FROM bunqueue.queues q JOIN bunqueue.jobs j ON j.queue_id = q.id
    WHERE q.ns = $1::int4 AND q.name = $2::text AND j.status = 0 AND j.group_id IS NULL AND j.lifo
    UNION ALL
    SELECT j.priority FROM bunqueue.queues q JOIN bunqueue.jobs j ON j.queue_id = q.id
    WHERE q.ns = $1::int4 AND q.name = $2::text AND j.status = 0 AND j.group_id IS NOT NULL
) AS queued
GROUP BY priority
