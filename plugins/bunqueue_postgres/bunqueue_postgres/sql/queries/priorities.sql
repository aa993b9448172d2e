-- Queued jobs of queues by priority. Locks nothing. Index: jobs_fifo, jobs_lifo, jobs_group, one range a queue.
SELECT q.name, queued.priority, count(*)
FROM bunqueue.queues q CROSS JOIN LATERAL (
    SELECT j.priority FROM bunqueue.jobs j WHERE j.queue_id = q.id AND j.status = 0 AND j.group_id IS NULL AND NOT j.lifo
    UNION ALL
    SELECT j.priority FROM bunqueue.jobs j WHERE j.queue_id = q.id AND j.status = 0 AND j.group_id IS NULL AND j.lifo
    UNION ALL
    SELECT j.priority FROM bunqueue.jobs j WHERE j.queue_id = q.id AND j.status = 0 AND j.group_id IS NOT NULL
    OFFSET 0
) AS queued
WHERE q.ns = $1::int4 AND q.name = ANY ($2::text[])
GROUP BY q.name, queued.priority
