-- Claims due, ungrouped jobs of one queue for any number of waiting pulls: $8 rows at most, the n-th for the n-th slot.
--
-- Answers at least one row: the queue's controls beside the claimed jobs, or beside nulls. A queue that is paused or limited, or a
-- broker whose session is no longer the registered one, claims nothing here. $12: the caller has locked the queue's row and sees
-- to its limits itself. A job without an owner is leased for as long as it may be silent.
-- Locks: the claimed rows, in claim order, passing by rows that others hold.
-- Order: priority descending; in a level LIFO jobs by id descending, then the others by run_at, id.
-- Index: jobs_lifo and jobs_fifo, one range a level. $5..$7 are low-water marks of levels: the caller knows that nothing claimable
--   stands before them, so that the scan does not begin with the remains of claimed jobs that vacuum could not take away yet.
WITH clock AS MATERIALIZED (
    SELECT bunqueue.now_ms() AS now
), queue AS MATERIALIZED (
    SELECT
        q.paused, q.limited AND NOT $12::bool AS limited, q.features, q.priorities, q.stall_after,
        EXISTS (SELECT FROM bunqueue.brokers b WHERE b.ns = $1::int4 AND b.broker_id = $3::text AND b.session = $4::uuid) AS alive
    FROM bunqueue.queues q
    WHERE q.id = $2::int4
), levels AS MATERIALIZED (
    SELECT level.priority, coalesce(mark.run_at, -9223372036854775807) AS run_at, coalesce(mark.id, '') AS id
    FROM queue q
        CROSS JOIN LATERAL unnest(q.priorities) AS level (priority)
        LEFT JOIN unnest($5::int4[], $6::int8[], $7::text[]) AS mark (priority, run_at, id) ON mark.priority = level.priority
    WHERE q.alive AND NOT q.paused AND NOT q.limited
    ORDER BY level.priority DESC
), candidates AS MATERIALIZED (
    SELECT c.place, row_number() OVER () AS n
    FROM (
        SELECT job.place
        FROM levels CROSS JOIN clock CROSS JOIN LATERAL (
            SELECT * FROM (
                SELECT j.ctid AS place
                FROM bunqueue.jobs j
                WHERE j.queue_id = $2::int4 AND j.priority = levels.priority AND j.status = 0 AND j.group_id IS NULL AND j.lifo
                    AND j.run_at <= clock.now AND (j.expires_at IS NULL OR j.expires_at >= clock.now)
                ORDER BY j.id DESC
                LIMIT $8::int4
                FOR UPDATE SKIP LOCKED
            ) AS last_in
            UNION ALL
            SELECT * FROM (
                SELECT j.ctid AS place
                FROM bunqueue.jobs j
                WHERE j.queue_id = $2::int4 AND j.priority = levels.priority AND j.status = 0 AND j.group_id IS NULL AND NOT j.lifo
                    AND (j.run_at, j.id) >= (levels.run_at, levels.id) AND j.run_at <= clock.now
                    AND (j.expires_at IS NULL OR j.expires_at >= clock.now)
                ORDER BY j.run_at, j.id
                LIMIT $8::int4
                FOR UPDATE SKIP LOCKED
            ) AS first_in
        ) AS job
        LIMIT $8::int4
    ) AS c
), slots AS MATERIALIZED (
    SELECT c.place, c.n, ($9::text[])[c.n] AS token, ($10::text[])[c.n] AS owner, ($11::int8[])[c.n] AS ttl FROM candidates c
), claimed AS (
    UPDATE bunqueue.jobs j
    SET status = 3,
        started_at = clock.now,
        heartbeat_at = NULL,
        lease_until = clock.now + greatest(1, least(
            CASE WHEN c.owner IS NOT NULL THEN least(c.ttl, j.stall_timeout)
                ELSE coalesce(j.stall_timeout + 5000, queue.stall_after, c.ttl) END,
            j.timeout
        )),
        lease_ttl = CASE WHEN c.owner IS NOT NULL THEN c.ttl ELSE coalesce(j.stall_timeout + 5000, queue.stall_after, c.ttl) END,
        lease_renewals = 0,
        lease_session = $4::uuid,
        lease_token = coalesce(c.token, j.lease_token),
        lease_owner = c.owner
    FROM slots c CROSS JOIN clock CROSS JOIN queue
    WHERE j.ctid = c.place
    RETURNING
        c.n, j.id, j.name, j.data, j.options, j.extra, j.past, j.progress, j.priority, j.created_at, j.run_at, j.admitted_at,
        j.admitted_as, j.started_at, j.lease_until, j.attempts, j.stall_count, j.flags, j.unique_key, j.group_id, j.parent_id
), freed AS (
    DELETE FROM bunqueue.keys k
    USING claimed c
    WHERE c.flags & 256 <> 0 AND k.queue_id = $2::int4 AND k.key = c.unique_key AND k.job_id = c.id
), journal AS (
    INSERT INTO bunqueue.events (at, ns, queue_id, size, type, ids)
    SELECT clock.now, $1::int4, $2::int4, count(*), 'pulled', array_agg(c.id ORDER BY c.n)
    FROM claimed c CROSS JOIN clock
    GROUP BY clock.now
)
SELECT q.alive, q.paused, q.limited, q.features, c.*
FROM queue q LEFT JOIN claimed c ON true
ORDER BY c.n
