-- Changes a group's policy: $4 says which (pause, concurrency, rate, block), $5 and $6 are its values, null clears it.
-- Registers the queue if it is new. Gives whether it changed, and the queue's number. Locks: the queue's and the group's rows.
WITH queue AS (
    INSERT INTO bunqueue.queues AS q (ns, name, listed) VALUES ($1::int4, $2::text, true)
    ON CONFLICT (ns, name) DO UPDATE SET listed = true
    RETURNING q.id
), before AS MATERIALIZED (
    SELECT g.* FROM bunqueue.queues q JOIN bunqueue.groups g ON g.queue_id = q.id
    WHERE q.ns = $1::int4 AND q.name = $2::text AND g.id = $3::text
), changed AS (
    INSERT INTO bunqueue.groups AS g (queue_id, id, paused, concurrency, rate_max, rate_duration, blocked_until)
    SELECT
        queue.id, $3::text, $4::text = 'pause' AND $5::int8 IS NOT NULL, CASE WHEN $4::text = 'concurrency' THEN $5::int8 END,
        CASE WHEN $4::text = 'rate' THEN $5::int8 END, CASE WHEN $4::text = 'rate' THEN $6::int8 END,
        CASE WHEN $4::text = 'block' THEN bunqueue.now_ms() + $5::int8 END
    FROM queue
    ON CONFLICT (queue_id, id) DO UPDATE SET
        paused = CASE WHEN $4::text = 'pause' THEN excluded.paused ELSE g.paused END,
        concurrency = CASE WHEN $4::text = 'concurrency' THEN excluded.concurrency ELSE g.concurrency END,
        rate_max = CASE WHEN $4::text = 'rate' THEN excluded.rate_max ELSE g.rate_max END,
        rate_duration = CASE WHEN $4::text = 'rate' THEN excluded.rate_duration ELSE g.rate_duration END,
        blocked_until = CASE WHEN $4::text = 'block' THEN excluded.blocked_until ELSE g.blocked_until END,
        window_at = CASE WHEN $4::text = 'rate' THEN NULL ELSE g.window_at END
)
SELECT CASE $4::text
    WHEN 'pause' THEN coalesce((SELECT paused FROM before), false) <> ($5::int8 IS NOT NULL)
    WHEN 'concurrency' THEN (SELECT concurrency FROM before) IS NOT NULL
    WHEN 'rate' THEN (SELECT rate_max FROM before) IS NOT NULL
    ELSE true
END
