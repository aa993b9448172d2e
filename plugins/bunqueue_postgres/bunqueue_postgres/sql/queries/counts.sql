-- Jobs of queues by state, with the queue's name and whether it is paused. No row for an unknown queue. Locks nothing.
-- Index: each subselect the partial index of its state; index-only where vacuum has been.
SELECT
    q.name, q.paused,
    queued.waiting, queued.prioritized, queued.delayed,
    (SELECT count(*) FROM bunqueue.jobs j WHERE j.queue_id = q.id AND j.status = 3),
    (SELECT count(*) FROM bunqueue.jobs j WHERE j.queue_id = q.id AND j.status = 4),
    (SELECT count(*) FROM bunqueue.jobs j WHERE j.queue_id = q.id AND j.status = 5),
    (SELECT count(*) FROM bunqueue.jobs j WHERE j.queue_id = q.id AND j.status IN (1, 2))
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
WHERE q.ns = $1::int4 AND q.name = ANY ($2::text[])
