-- Removes up to $2 queued jobs of a queue whose time to live is over and that no live job depends on, with an event that has the packed
-- fields $3; gives id, time to live and age (ms) of each.
-- Locks: the rows, passing by held ones; one that a job which is being admitted will depend on is held, or has changed since.
-- Index: jobs_expiring.
WITH expired AS MATERIALIZED (
    SELECT e.ctid AS place
    FROM bunqueue.jobs e
    WHERE e.queue_id = $1::int4 AND e.status = 0 AND e.expires_at IS NOT NULL AND e.expires_at < (SELECT bunqueue.now_ms())
        AND (e.flags & 4 = 0 OR NOT EXISTS (SELECT FROM bunqueue.edges d WHERE d.ns = e.ns AND d.dependency_id = e.id))
    ORDER BY e.expires_at
    LIMIT $2::int4
    FOR UPDATE SKIP LOCKED
), removed AS (
    DELETE FROM bunqueue.jobs j USING expired x WHERE j.ctid = x.place RETURNING j.ns, j.id, j.expires_at - j.created_at AS ttl, bunqueue.now_ms() - j.created_at AS age
), journal AS (
    -- The fields of each event, as one MessagePack array of 16-bit length.
    INSERT INTO bunqueue.events (at, ns, queue_id, size, type, ids, extra)
    SELECT
        bunqueue.now_ms(), r.ns, $1::int4, count(*), 'removed', array_agg(r.id),
        '\xdc'::bytea || int2send(count(*)::int2) || decode(repeat(encode($3::bytea, 'hex'), count(*)::int4), 'hex')
    FROM removed r
    GROUP BY r.ns
)
SELECT r.id, r.ttl, r.age FROM removed r
