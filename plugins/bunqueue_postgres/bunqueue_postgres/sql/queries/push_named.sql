-- Admits jobs of which some have custom ids, whose earlier generation may exist. As push.sql, and beyond it:
--
-- A live generation stays as it is; an ended one is recycled in place, its result, history and completion proof go, and jobs that
-- still wait for others count it as incomplete again. Answers the ids that were admitted (false), or those whose ended generation live jobs need (true): then nothing was admitted. The caller gives each
-- id once.
-- Locks: also the rows of the ids that exist, by id, so that brokers which push the same ids wait for each other in one order.
-- Index: primary key.
WITH clock AS MATERIALIZED (
    SELECT bunqueue.now_ms() AS now
), input AS (
    SELECT *
    FROM unnest(
        $2::text[], $3::int4[], $4::text[], $5::bytea[], $6::bytea[], $7::bytea[], $8::int4[], $9::int8[], $10::int8[],
        $11::int2[], $12::bool[], $13::int8[], $14::int8[], $15::int8[], $16::text[], $17::text[], $18::text[], $19::bool[]
    ) AS i (
        id, queue_id, name, data, options, extra, priority, created_at, delay,
        flags, lifo, ttl, timeout, stall_timeout, unique_key, parent_id, group_id, gated
    )
), blocked AS MATERIALIZED (
    -- Ended generations that live jobs still need must not go.
    SELECT DISTINCT e.dependency_id AS id
    FROM input i JOIN bunqueue.edges e ON e.ns = $1::int4 AND e.dependency_id = i.id
    -- OFFSET 0: one probe a row, never a table of all jobs.
    WHERE EXISTS (SELECT FROM bunqueue.proofs p WHERE p.ns = $1::int4 AND p.id = i.id OFFSET 0)
        OR EXISTS (SELECT FROM bunqueue.jobs j WHERE j.ns = $1::int4 AND j.id = i.id AND j.status IN (4, 5) OFFSET 0)
), inserted AS (
    INSERT INTO bunqueue.jobs (
        ns, id, queue_id, name, data, options, extra, priority, created_at, run_at, admitted_at, status, admitted_as, flags,
        lifo, expires_at, timeout, stall_timeout, unique_key, parent_id, group_id, group_order
    )
    SELECT
        $1::int4, i.id, i.queue_id, i.name, i.data, i.options, i.extra, i.priority, t.created_at, t.created_at + i.delay, clock.now,
        i.gated::int4, CASE WHEN i.gated THEN 3 WHEN t.created_at + i.delay > clock.now THEN 2 WHEN i.priority > 0 THEN 1 ELSE 0 END,
        i.flags,
        i.lifo, t.created_at + i.ttl, i.timeout, i.stall_timeout, i.unique_key, i.parent_id, i.group_id,
        CASE WHEN i.group_id IS NOT NULL THEN nextval('bunqueue.group_order') END
    FROM input i CROSS JOIN clock CROSS JOIN LATERAL (SELECT coalesce(i.created_at, clock.now) AS created_at) t
    WHERE NOT EXISTS (SELECT FROM blocked)
    ORDER BY i.id
    ON CONFLICT (ns, id) DO UPDATE SET
        queue_id = excluded.queue_id, name = excluded.name, data = excluded.data, options = excluded.options,
        extra = excluded.extra, priority = excluded.priority, created_at = excluded.created_at, run_at = excluded.run_at,
        admitted_at = excluded.admitted_at, status = excluded.status, admitted_as = excluded.admitted_as,
        flags = excluded.flags | (jobs.flags & 4),
        lifo = excluded.lifo, expires_at = excluded.expires_at, timeout = excluded.timeout, stall_timeout = excluded.stall_timeout,
        unique_key = excluded.unique_key, parent_id = excluded.parent_id, group_id = excluded.group_id,
        group_order = excluded.group_order, started_at = NULL, finished_at = NULL, heartbeat_at = NULL, lease_until = NULL,
        attempts = 0, stall_count = 0, lease_renewals = 0, lease_session = NULL, past = NULL, progress = NULL, lease_token = NULL,
        lease_owner = NULL, result = NULL, dead = NULL
    WHERE jobs.status IN (4, 5)
    RETURNING id, queue_id, priority, expires_at, group_id
), news AS (
    SELECT
        queue_id,
        array_agg(id) AS ids,
        array_agg(DISTINCT priority) AS priorities,
        bool_or(expires_at IS NOT NULL)::int4 + 2 * bool_or(group_id IS NOT NULL)::int4 AS features
    FROM inserted
    GROUP BY queue_id
), touched AS (
    UPDATE bunqueue.queues q
    SET listed = true,
        features = q.features | n.features,
        priorities = (SELECT array_agg(DISTINCT p ORDER BY p DESC) FROM unnest(q.priorities || n.priorities) p)
    FROM news n
    WHERE q.id = n.queue_id AND NOT (q.listed AND q.features & n.features = n.features AND q.priorities @> n.priorities)
), retired AS (
    DELETE FROM bunqueue.proofs p USING inserted i WHERE p.ns = $1::int4 AND p.id = i.id
), reopened AS (
    UPDATE bunqueue.edges e SET met = false FROM inserted i WHERE e.ns = $1::int4 AND e.dependency_id = i.id AND e.met
), unlogged AS (
    DELETE FROM bunqueue.logs l USING inserted i WHERE l.ns = $1::int4 AND l.id = i.id
), journal AS (
    INSERT INTO bunqueue.events (at, ns, queue_id, size, type, ids)
    SELECT clock.now, $1::int4, n.queue_id, cardinality(n.ids), 'pushed', n.ids
    FROM news n CROSS JOIN clock
)
SELECT id, false FROM inserted UNION ALL SELECT id, true FROM blocked
