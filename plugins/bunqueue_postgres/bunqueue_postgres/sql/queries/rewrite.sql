-- Writes back jobs that the caller has locked and decided upon, none of them completed, and ends their leases.
--
-- The token stays: it tells a late outcome of the ended delivery from one of a later delivery without a token.
-- Locks: nothing that is not locked. Index: primary key.
UPDATE bunqueue.jobs j
SET status = i.status,
    run_at = i.run_at,
    attempts = i.attempts,
    stall_count = i.stall_count,
    started_at = i.started_at,
    finished_at = i.finished_at,
    heartbeat_at = i.heartbeat_at,
    past = i.past,
    dead = i.dead,
    due_at = i.due_at,
    priority = i.priority,
    lifo = i.lifo,
    options = i.options,
    progress = i.progress,
    flags = i.flags,
    extra = i.extra,
    parent_id = i.parent_id,
    result = NULL,
    lease_until = NULL,
    lease_session = NULL,
    lease_owner = NULL,
    lease_renewals = 0
FROM (
    SELECT i.*, k.place
    FROM unnest(
        $2::text[], $3::int2[], $4::int8[], $5::int4[], $6::int4[], $7::int8[], $8::int8[], $9::int8[], $10::bytea[], $11::bytea[],
        $12::int8[], $13::int4[], $14::bool[], $15::bytea[], $16::bytea[], $17::int2[], $18::bytea[], $19::text[]
    ) AS i (
        id, status, run_at, attempts, stall_count, started_at, finished_at, heartbeat_at, past, dead,
        due_at, priority, lifo, options, progress, flags, extra, parent_id
    ) CROSS JOIN LATERAL (
        SELECT k.ctid AS place FROM bunqueue.jobs k WHERE k.ns = $1::int4 AND k.id = i.id LIMIT 1
    ) AS k
) AS i
WHERE j.ctid = i.place
