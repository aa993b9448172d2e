-- Says that this session lives, removes brokers silent for $4 ms, and gives the number of live brokers; no row: fenced.
-- Locks: the own row, and those removed.
WITH beat AS (
    UPDATE bunqueue.brokers b
    SET heartbeat_at = bunqueue.now_ms()
    WHERE b.ns = $1::int4 AND b.broker_id = $2::text AND b.session = $3::uuid
    RETURNING 1
), stale AS (
    DELETE FROM bunqueue.brokers b
    WHERE b.ns = $1::int4 AND b.broker_id <> $2::text AND b.heartbeat_at < bunqueue.now_ms() - $4::int8
    RETURNING b.broker_id
)
SELECT (SELECT count(*) FROM bunqueue.brokers b WHERE b.ns = $1::int4) - (SELECT count(*) FROM stale)
FROM beat
