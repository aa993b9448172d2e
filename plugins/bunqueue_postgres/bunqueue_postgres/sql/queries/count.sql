-- Number of queued jobs of queues. Locks nothing. Index: jobs_fifo, jobs_lifo, jobs_group.
SELECT
    q.name, (SELECT count(*) FROM bunqueue.jobs j WHERE j.queue_id = q.id AND j.status = 0 AND j.group_id IS NULL AND NOT j.lifo)
    + (SELECT count(*) FROM bunqueue.jobs j WHERE j.queue_id = q.id AND j.status = 0 AND j.group_id IS NULL AND j.lifo)
    + (SELECT count(*) FROM bunqueue.jobs j WHERE j.queue_id = q.id AND j.status = 0 AND j.group_id IS NOT NULL)
FROM bunqueue.queues q
WHERE q.ns = $1::int4 AND q.name = ANY ($2::text[])
