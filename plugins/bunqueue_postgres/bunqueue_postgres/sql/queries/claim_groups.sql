-- Claims due jobs of groups of one queue: of the group $5[i] at most $6[i], in rotation: the first job of each group in the order of
-- the arrays, then the second of each. The caller has locked the queue's row and decided on the groups.
--
-- Locks: the claimed rows, passing by rows that others hold. Order in a group: priority ascending, then admission.
-- Index: jobs_group, one range a group.
WITH clock AS MATERIALIZED (
    SELECT bunqueue.now_ms() AS now
), queue AS MATERIALIZED (
    SELECT
        q.paused, q.limited AND NOT $10::bool AS limited, q.features, q.priorities, q.stall_after,
        EXISTS (SELECT FROM bunqueue.brokers b WHERE b.ns = $1::int4 AND b.broker_id = $3::text AND b.session = $4::uuid) AS alive
    FROM bunqueue.queues q
    WHERE q.id = $2::int4
), candidates AS MATERIALIZED (
    SELECT c.place, row_number() OVER (ORDER BY c.position, c.rank) AS n
    FROM queue CROSS JOIN unnest($5::text[], $6::int4[]) WITH ORDINALITY AS lane (id, count, rank) CROSS JOIN LATERAL (
        SELECT picked.place, row_number() OVER () AS position, lane.rank
        FROM (
            SELECT j.ctid AS place
            FROM bunqueue.jobs j CROSS JOIN clock
            WHERE j.queue_id = $2::int4 AND j.group_id = lane.id AND j.status = 0 AND j.run_at <= clock.now
                AND (j.expires_at IS NULL OR j.expires_at >= clock.now)
            ORDER BY j.priority, j.group_order
            LIMIT lane.count
            FOR UPDATE OF j SKIP LOCKED
        ) AS picked
    ) AS c
    WHERE queue.alive
), slots AS MATERIALIZED (
    SELECT c.place, c.n, ($7::text[])[c.n] AS token, ($8::text[])[c.n] AS owner, ($9::int8[])[c.n] AS ttl FROM candidates c
    WHERE c.n <= cardinality($9::int8[])
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
