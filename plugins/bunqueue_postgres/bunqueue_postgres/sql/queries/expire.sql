-- Removes up to $2 queued jobs of a queue whose time to live is over and that no live job depends on, with an event that has the packed
-- fields $3; gives id, time to live and age (ms) of each.
-- What they leave behind (edges, keys, logs) goes with them.
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
    DELETE FROM bunqueue.jobs j USING expired x WHERE j.ctid = x.place
    RETURNING j.ns, j.id, j.queue_id, j.flags, j.unique_key, j.expires_at - j.created_at AS ttl, bunqueue.now_ms() - j.created_at AS age
), unlinked AS (
    DELETE FROM bunqueue.edges e USING removed r WHERE r.flags & 8 <> 0 AND e.ns = r.ns AND e.job_id = r.id
), freed AS (
    DELETE FROM bunqueue.keys k USING removed r
    WHERE r.unique_key IS NOT NULL AND k.queue_id = r.queue_id AND k.key = r.unique_key AND k.job_id = r.id AND NOT k.windowed
), unlogged AS (
    DELETE FROM bunqueue.logs l USING removed r WHERE l.ns = r.ns AND l.id = r.id
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
