-- Which of the queues named in $2 exist and have a job that could be claimed now. Locks nothing.
-- Index: jobs_fifo and jobs_lifo, the first entry of each level from the queue's low-water mark ($3) on; jobs_group.
SELECT q.id, q.name
FROM unnest($2::text[], $3::int8[]) AS waited (name, mark)
    JOIN bunqueue.queues q ON q.ns = $1::int4 AND q.name = waited.name
    CROSS JOIN (SELECT bunqueue.now_ms() AS now OFFSET 0) clock
WHERE NOT q.paused AND (EXISTS (
    SELECT
    FROM unnest(q.priorities) AS level (priority) CROSS JOIN LATERAL (
        (
            SELECT 1 FROM bunqueue.jobs j
            WHERE j.queue_id = q.id AND j.priority = level.priority AND j.status = 0 AND j.group_id IS NULL AND NOT j.lifo
                AND j.run_at >= waited.mark AND j.run_at <= clock.now
            ORDER BY j.run_at LIMIT 1
        )
        UNION ALL
        (
            SELECT 1 FROM bunqueue.jobs j
            WHERE j.queue_id = q.id AND j.priority = level.priority AND j.status = 0 AND j.group_id IS NULL AND j.lifo
                AND j.run_at <= clock.now
            ORDER BY j.id DESC LIMIT 1
        )
    ) AS due
) OR (q.features & 2 <> 0 AND EXISTS (
    SELECT FROM bunqueue.jobs j
    WHERE j.queue_id = q.id AND j.group_id IS NOT NULL AND j.status = 0 AND j.run_at <= clock.now
)))
