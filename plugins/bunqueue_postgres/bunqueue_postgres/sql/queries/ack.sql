-- Completes jobs, for any number of gathered batches at once.
--
-- A batch ($6) is applied whole or not at all: one member with a lease that is not its own leaves the whole batch alone, and so does
-- one that needs more than this statement (flags beyond $7: the caller completes such a batch in steps). Answers one row for each
-- member that was not completed here, with what stands in its way; none is the good case.
-- A row that another statement changed while this one waited for it is locked and judged in its new form, but not found by the write:
-- a division by zero takes everything back then, for the caller to ask again.
-- Locks: the jobs' rows, in the order of the arrays, which the caller sorts by id.
-- Index: primary key; then by place.
WITH clock AS MATERIALIZED (
    SELECT bunqueue.now_ms() AS now
), input AS MATERIALIZED (
    SELECT *
    FROM unnest($2::text[], $3::text[], $4::bytea[], $5::bool[], $6::int4[]) WITH ORDINALITY
        AS i (id, token, result, remove, batch, n)
), target AS MATERIALIZED (
    SELECT
        j.place, i.n, i.batch, i.result, i.remove OR j.flags & 2 <> 0 AS remove, j.id, j.queue_id, j.status,
        j.status = 3 AND j.lease_until > clock.now AND CASE
            WHEN j.lease_owner IS NULL THEN i.token IS NULL OR i.token IS DISTINCT FROM j.lease_token
            ELSE coalesce(i.token = j.lease_token, false)
        END AS valid,
        j.flags & ~$7::int2 = 0 AS plain,
        j.lease_owner IS NULL AS free,
        j.status <> 3 AND j.flags & 128 <> 0 AND coalesce(i.token = j.lease_token, false) AS retired,
        coalesce(i.token = j.lease_token, false) AS same
    FROM clock CROSS JOIN input i CROSS JOIN LATERAL (
        SELECT k.ctid AS place, k.id, k.queue_id, k.status, k.flags, k.lease_until, k.lease_owner, k.lease_token
        FROM bunqueue.jobs k
        WHERE k.ns = $1::int4 AND k.id = i.id
        FOR UPDATE
    ) AS j
), judged AS MATERIALIZED (
    SELECT t.*, t.valid AND bool_and(t.plain AND (t.valid OR t.status <> 3)) OVER (PARTITION BY t.batch) AS fit FROM target t
), kept AS (
    UPDATE bunqueue.jobs j
    SET status = 4, finished_at = clock.now, result = t.result, lease_until = NULL, lease_session = NULL
    FROM judged t CROSS JOIN clock
    WHERE j.ctid = t.place AND t.fit AND NOT t.remove
    RETURNING t.n, t.id, t.queue_id
), removed AS (
    DELETE FROM bunqueue.jobs j
    USING judged t
    WHERE j.ctid = t.place AND t.fit AND t.remove
    RETURNING t.n, t.id, t.queue_id, t.result
), proved AS (
    INSERT INTO bunqueue.proofs (ns, id, queue_id, completed_at, result)
    SELECT $1::int4, r.id, r.queue_id, clock.now, r.result FROM removed r CROSS JOIN clock
    ON CONFLICT (ns, id) DO UPDATE SET completed_at = excluded.completed_at, result = excluded.result, queue_id = excluded.queue_id
), done AS (
    SELECT n, id, queue_id FROM kept UNION ALL SELECT n, id, queue_id FROM removed
), journal AS (
    INSERT INTO bunqueue.events (at, ns, queue_id, size, type, ids)
    SELECT clock.now, $1::int4, d.queue_id, count(*), 'completed', array_agg(d.id)
    FROM done d CROSS JOIN clock
    GROUP BY clock.now, d.queue_id
), verdict AS MATERIALIZED (
    SELECT 1 / CASE WHEN (SELECT count(*) FROM done) = (SELECT count(*) FROM judged j WHERE j.fit) THEN 1 ELSE 0 END AS whole
)
SELECT m.n, max(m.status), bool_or(m.valid), bool_or(m.plain), bool_or(m.free), bool_or(m.retired), bool_or(m.same)
FROM (
    SELECT n, NULL::int2 AS status, NULL::bool AS valid, NULL::bool AS plain, NULL::bool AS free, NULL::bool AS retired,
        NULL::bool AS same, false AS done
    FROM input
    UNION ALL
    SELECT n, status, valid, plain, free, retired, same, false FROM judged
    UNION ALL
    SELECT n, NULL, NULL, NULL, NULL, NULL, NULL, true FROM done
) AS m CROSS JOIN verdict
GROUP BY m.n
HAVING NOT bool_or(m.done)
