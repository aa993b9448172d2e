-- Renews leases and notes signs of life, for any number of gathered calls; gives the positions that can be renewed
-- with their ids, and (without a position) the ids that were. Others were changed while this waited: the caller asks again.
--
-- $4: renew the lease (else only note the sign of life). A lease must not have run out, and its token, if one is given, must be right.
-- A job without an owner has no lease to renew ($5: extend asks for one); a sign of life prolongs its hidden one.
-- Renewed leases move to this broker's session, whose row must be the registered one. Never past the job's processing deadline.
-- Locks: the rows, in the order of the arrays, which the caller sorts by id.
-- Index: primary key (the status is looked at afterwards, lest it read all leases); then by place.
WITH clock AS MATERIALIZED (
    SELECT bunqueue.now_ms() AS now
), input AS MATERIALIZED (
    SELECT *
    FROM unnest($2::text[], $3::text[], $4::bool[], $5::bool[], $6::int8[]) WITH ORDINALITY AS i (id, token, renews, strict, duration, n)
), seen AS MATERIALIZED (
    SELECT i.n, i.token AS given, i.renews, i.strict, i.duration, j.*
    FROM input i CROSS JOIN LATERAL (
        SELECT k.ctid AS place, k.id, k.status, k.lease_until, k.lease_owner, k.lease_token, k.lease_ttl
        FROM bunqueue.jobs k
        WHERE k.ns = $1::int4 AND k.id = i.id
        FOR UPDATE
    ) AS j
    WHERE EXISTS (SELECT FROM bunqueue.brokers b WHERE b.ns = $1::int4 AND b.broker_id = $7::text AND b.session = $8::uuid)
), target AS MATERIALIZED (
    SELECT s.place, s.n, s.id, s.renews OR s.lease_owner IS NULL AS renews, coalesce(s.duration, s.lease_ttl) AS duration
    FROM seen s CROSS JOIN clock
    WHERE s.status = 3
        AND (s.lease_until > clock.now OR (s.lease_owner IS NOT NULL AND NOT s.renews))
        AND (NOT s.strict OR s.lease_owner IS NOT NULL)
        AND (s.given IS NULL OR s.given = s.lease_token AND s.lease_owner IS NOT NULL)
), renewed AS (
    UPDATE bunqueue.jobs j
    SET heartbeat_at = clock.now,
        lease_until = CASE WHEN t.renews THEN least(clock.now + t.duration, j.started_at + j.timeout) ELSE j.lease_until END,
        lease_session = CASE WHEN t.renews THEN $8::uuid ELSE j.lease_session END,
        lease_renewals = j.lease_renewals + t.renews::int4
    FROM (SELECT place, bool_or(renews) AS renews, max(duration) AS duration FROM target GROUP BY place) t CROSS JOIN clock
    WHERE j.ctid = t.place
    RETURNING j.id
)
SELECT n, id FROM target UNION ALL SELECT NULL, id FROM renewed
