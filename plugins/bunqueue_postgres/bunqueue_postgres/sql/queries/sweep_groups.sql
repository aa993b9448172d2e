-- Removes up to $2 groups that mean nothing any more: without policy, block, or window in force, and without queued or active jobs.
-- Gives how many went. One that was served or changed meanwhile stays. Locks: the removed rows. Index: jobs_group, jobs_group_leased.
WITH removed AS (
    DELETE FROM bunqueue.groups g
    USING (
        SELECT o.*
        FROM bunqueue.queues q JOIN bunqueue.groups o ON o.queue_id = q.id CROSS JOIN (SELECT bunqueue.now_ms() AS now) clock
        WHERE q.ns = $1::int4 AND NOT o.paused AND o.concurrency IS NULL AND o.rate_max IS NULL
            AND (o.blocked_until IS NULL OR o.blocked_until <= clock.now)
            AND (o.window_at IS NULL OR o.window_at + coalesce(o.window_duration, 0) <= clock.now)
            AND NOT EXISTS (SELECT FROM bunqueue.jobs j WHERE j.queue_id = o.queue_id AND j.group_id = o.id AND j.status = 0)
            AND NOT EXISTS (SELECT FROM bunqueue.jobs j WHERE j.queue_id = o.queue_id AND j.group_id = o.id AND j.status = 3)
        LIMIT $2::int4
    ) AS o
    WHERE g.queue_id = o.queue_id AND g.id = o.id AND NOT g.paused AND g.concurrency IS NULL AND g.rate_max IS NULL
        AND g.last_served IS NOT DISTINCT FROM o.last_served AND g.blocked_until IS NOT DISTINCT FROM o.blocked_until
        AND g.window_at IS NOT DISTINCT FROM o.window_at AND g.window_count = o.window_count
    RETURNING 1
)
SELECT count(*) FROM removed
