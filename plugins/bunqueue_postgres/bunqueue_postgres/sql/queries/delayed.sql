-- Ids of a queue's delayed jobs, oldest first, at most $3. Locks nothing. Index: jobs_fifo, jobs_lifo, jobs_group.
SELECT j.id
FROM bunqueue.queues q CROSS JOIN (SELECT bunqueue.now_ms() AS now OFFSET 0) clock CROSS JOIN LATERAL (
        SELECT d.id, d.created_at FROM bunqueue.jobs d
        WHERE d.queue_id = q.id AND d.status = 0 AND d.group_id IS NULL AND NOT d.lifo AND d.run_at > clock.now
        UNION ALL
        SELECT d.id, d.created_at FROM bunqueue.jobs d
        WHERE d.queue_id = q.id AND d.status = 0 AND d.group_id IS NULL AND d.lifo AND d.run_at > clock.now
        UNION ALL
        SELECT d.id, d.created_at FROM bunqueue.jobs d
        WHERE d.queue_id = q.id AND d.status = 0 AND d.group_id IS NOT NULL AND d.run_at > clock.now
) AS j
WHERE q.ns = $1::int4 AND q.name = $2::text
ORDER BY j.created_at, j.id
LIMIT $3::int8
