-- Stores a queue's stall ($3) or dead-letter ($4) policy, registering the queue if it is new; a null leaves that policy alone.
-- Locks: the queue's row.
INSERT INTO bunqueue.queues AS q (ns, name, listed, stall_config, dlq_config, stall_after)
VALUES ($1::int4, $2::text, true, $3::bytea, $4::bytea, $5::int8)
ON CONFLICT (ns, name) DO UPDATE SET
    listed = true,
    stall_config = coalesce(excluded.stall_config, q.stall_config),
    dlq_config = coalesce(excluded.dlq_config, q.dlq_config),
    stall_after = coalesce(excluded.stall_after, q.stall_after)
RETURNING q.id
