-- Jobs of a namespace by state, as the sums of its queues' counts; ready jobs of paused queues apart. Locks nothing.
-- Index: each subselect the partial index of its state; index-only where vacuum has been.
SELECT
    coalesce(sum(queued.waiting) FILTER (WHERE NOT q.paused), 0)::int8,
    coalesce(sum(queued.prioritized) FILTER (WHERE NOT q.paused), 0)::int8,
    coalesce(sum(queued.waiting + queued.prioritized) FILTER (WHERE q.paused), 0)::int8,
    coalesce(sum(queued.delayed), 0)::int8,
    coalesce(sum((SELECT count(*) FROM bunqueue.jobs j WHERE j.queue_id = q.id AND j.status = 3)), 0)::int8,
    coalesce(sum((SELECT count(*) FROM bunqueue.jobs j WHERE j.queue_id = q.id AND j.status IN (1, 2))), 0)::int8,
    coalesce(sum((SELECT count(*) FROM bunqueue.jobs j WHERE j.queue_id = q.id AND j.status = 4)), 0)::int8,
    coalesce(sum((SELECT count(*) FROM bunqueue.jobs j WHERE j.queue_id = q.id AND j.status = 5)), 0)::int8
FROM bunqueue.queues q CROSS JOIN (SELECT bunqueue.now_ms() AS now) clock CROSS JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE run_at <= clock.now AND priority <= 0) AS waiting,
        count(*) FILTER (WHERE run_at <= clock.now AND priority > 0) AS prioritized,
        count(*) FILTER (WHERE run_at > clock.now) AS delayed
    FROM (
        SELECT j.run_at, j.priority FROM bunqueue.jobs j
        WHERE j.queue_id = q.id AND j.status = 0 AND j.group_id IS NULL AND NOT j.lifo
        UNION ALL
        SELECT j.run_at, j.priority FROM bunqueue.jobs j
        WHERE j.queue_id = q.id AND j.status = 0 AND j.group_id IS NULL AND j.lifo
        UNION ALL
        SELECT j.run_at, j.priority FROM bunqueue.jobs j
        WHERE j.queue_id = q.id AND j.status = 0 AND j.group_id IS NOT NULL
    ) AS queued
) AS queued
WHERE q.ns = $1::int4
