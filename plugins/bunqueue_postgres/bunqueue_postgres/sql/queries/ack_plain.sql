-- Completes gathered jobs, if every one of them may be completed by nothing but an update: leased under its token, without flags
-- beyond $5, and kept. Otherwise it completes none, and ack.sql sees to each. Answers how many it completed.
--
-- For what is acknowledged most, at three quarters of the cost: no row is locked before it is written, and there is nothing to
-- delete and to prove. A row that another statement changed while this one waited for it is judged anew, and may be passed by when
-- others are written already: a division by zero takes that back, since batches are applied whole.
-- Locks: the jobs' rows, in the order of the arrays, which the caller sorts by id.
-- Index: primary key; then by place.
WITH clock AS MATERIALIZED (
    SELECT bunqueue.now_ms() AS now
), target AS MATERIALIZED (
    SELECT
        k.ctid AS place, clock.now, i.token, i.result,
        k.status = 3 AND k.lease_until > clock.now AND k.flags & ~$5::int2 = 0 AND CASE
            WHEN k.lease_owner IS NULL THEN i.token IS NULL OR i.token IS DISTINCT FROM k.lease_token
            ELSE coalesce(i.token = k.lease_token, false)
        END AS fit
    FROM clock
        CROSS JOIN unnest($2::text[], $3::text[], $4::bytea[]) AS i (id, token, result)
        CROSS JOIN LATERAL (
            SELECT j.ctid, j.status, j.flags, j.lease_until, j.lease_owner, j.lease_token
            FROM bunqueue.jobs j
            WHERE j.ns = $1::int4 AND j.id = i.id
            LIMIT 1
        ) AS k
), verdict AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE fit) = cardinality($2::text[]) AS whole FROM target
), kept AS (
    UPDATE bunqueue.jobs j
    SET status = 4, finished_at = t.now, result = t.result, lease_until = NULL, lease_session = NULL
    FROM target t CROSS JOIN verdict
    WHERE j.ctid = t.place AND verdict.whole AND CASE -- in one, so that no index on a state is taken for it
            WHEN j.status <> 3 OR j.lease_until <= t.now OR j.flags & ~$5::int2 <> 0 THEN false
            WHEN j.lease_owner IS NULL THEN t.token IS NULL OR t.token IS DISTINCT FROM j.lease_token
            ELSE coalesce(t.token = j.lease_token, false)
        END
    RETURNING t.now, j.id, j.queue_id
), journal AS (
    INSERT INTO bunqueue.events (at, ns, queue_id, size, type, ids)
    SELECT k.now, $1::int4, k.queue_id, count(*), 'completed', array_agg(k.id)
    FROM kept k
    GROUP BY k.now, k.queue_id
)
SELECT count(*) / CASE WHEN count(*) IN (0, cardinality($2::text[])) THEN 1 ELSE 0 END FROM kept
