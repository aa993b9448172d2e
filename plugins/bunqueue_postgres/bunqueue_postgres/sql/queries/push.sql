-- Admits jobs, all of them. Without custom ids nothing can collide: generated ids are new.
--
-- Locks: the new rows; the queue's row only when the push brings it a priority, a feature or its first job.
-- Order of rows: that of the arrays, so that equal run_at fall back on increasing ids.
-- Index: primary key; jobs_fifo takes each new row.
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
), journal AS (
    INSERT INTO bunqueue.events (at, ns, queue_id, size, type, ids)
    SELECT clock.now, $1::int4, n.queue_id, cardinality(n.ids), 'pushed', n.ids
    FROM news n CROSS JOIN clock
)
SELECT count(*) FROM inserted
