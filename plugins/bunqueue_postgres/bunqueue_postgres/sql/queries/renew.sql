-- Renews leases and notes signs of life, for any number of gathered calls; gives the positions that were renewed.
--
-- $4: renew the lease (else only note the sign of life). A lease must not have run out, and its token, if one is given, must be right.
-- A job without an owner has no lease to renew ($5: extend asks for one); a sign of life prolongs its hidden one.
-- Renewed leases move to this broker's session, whose row must be the registered one. Never past the job's processing deadline.
-- Locks: the rows, in the order of the arrays, which the caller sorts by id. Index: primary key.
WITH clock AS MATERIALIZED (
    SELECT bunqueue.now_ms() AS now
), input AS MATERIALIZED (
    SELECT *
    FROM unnest($2::text[], $3::text[], $4::bool[], $5::bool[], $6::int8[]) WITH ORDINALITY AS i (id, token, renews, strict, duration, n)
), target AS MATERIALIZED (
    SELECT i.n, j.id, i.renews OR j.lease_owner IS NULL AS renews, coalesce(i.duration, j.lease_ttl) AS duration
    FROM clock CROSS JOIN input i CROSS JOIN LATERAL (
        SELECT k.id, k.lease_owner, k.lease_ttl
        FROM bunqueue.jobs k
        WHERE k.ns = $1::int4 AND k.id = i.id AND k.status = 3
            AND (k.lease_until > clock.now OR (k.lease_owner IS NOT NULL AND NOT i.renews))
            AND (NOT i.strict OR k.lease_owner IS NOT NULL)
            AND (i.token IS NULL OR i.token = k.lease_token AND k.lease_owner IS NOT NULL)
        FOR UPDATE
    ) AS j
    WHERE EXISTS (SELECT FROM bunqueue.brokers b WHERE b.ns = $1::int4 AND b.broker_id = $7::text AND b.session = $8::uuid)
), renewed AS (
    UPDATE bunqueue.jobs j
    SET heartbeat_at = clock.now,
        lease_until = CASE WHEN t.renews THEN least(clock.now + t.duration, j.started_at + j.timeout) ELSE j.lease_until END,
        lease_session = CASE WHEN t.renews THEN $8::uuid ELSE j.lease_session END,
        lease_renewals = j.lease_renewals + t.renews::int4
    FROM (SELECT id, bool_or(renews) AS renews, max(duration) AS duration FROM target GROUP BY id) t CROSS JOIN clock
    WHERE j.ns = $1::int4 AND j.id = t.id
)
SELECT n FROM target
