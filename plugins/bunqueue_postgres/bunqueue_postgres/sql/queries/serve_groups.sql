-- Stores positions and rate windows of groups. Positions are drawn in the order of the arrays, which is that of the last deliveries;
-- a group that is empty now gives its place up and joins anew with its next job.
-- The caller holds the queue's row. Index: jobs_group, one probe a group (OFFSET 0: never a table of all jobs).
INSERT INTO bunqueue.groups AS g (queue_id, id, last_served, window_at, window_max, window_duration, window_count)
SELECT
    $1::int4, i.id,
    CASE WHEN EXISTS (
        SELECT FROM bunqueue.jobs j WHERE j.queue_id = $1::int4 AND j.group_id = i.id AND j.status = 0 OFFSET 0
    ) THEN nextval('bunqueue.group_turn') END,
    i.window_at, i.window_max, i.window_duration, i.window_count
FROM unnest($2::text[], $3::int8[], $4::int8[], $5::int8[], $6::int8[]) WITH ORDINALITY
    AS i (id, window_at, window_max, window_duration, window_count, n)
ORDER BY i.n
ON CONFLICT (queue_id, id) DO UPDATE SET
    last_served = excluded.last_served, window_at = excluded.window_at, window_max = excluded.window_max,
    window_duration = excluded.window_duration, window_count = excluded.window_count
