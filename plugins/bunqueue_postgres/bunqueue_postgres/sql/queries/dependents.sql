-- How many jobs of a queue live jobs of other queues wait, or waited, for. Locks nothing.
-- Index: the edges of the namespace, or those of the queue's jobs; primary keys.
SELECT count(DISTINCT e.dependency_id)
FROM bunqueue.queues q
    JOIN bunqueue.edges e ON e.ns = q.ns
    JOIN bunqueue.jobs j ON j.ns = e.ns AND j.id = e.dependency_id AND j.queue_id = q.id
    JOIN bunqueue.jobs w ON w.ns = e.ns AND w.id = e.job_id AND w.queue_id <> q.id AND w.status < 4
WHERE q.id = $1::int4
