-- Looks at $4 edges from (dependency, waiting job) = ($2, $3) on, and mends them: one whose waiting job is not live any more goes; one
-- whose dependency has completed is met; both of its jobs know that they are waited for, or wait. Gives the last edge looked at, and how
-- many were removed, met, and how many jobs were told. No row: there are no more.
-- Locks: the edges and jobs that are mended. What is decided upon is written by others in one transaction, so that this statement's
-- snapshot sees all of it or nothing. Index: primary keys.
WITH page AS MATERIALIZED (
    SELECT e.dependency_id, e.job_id, e.met
    FROM bunqueue.edges e
    WHERE e.ns = $1::int4 AND (e.dependency_id, e.job_id) > ($2::text, $3::text)
    ORDER BY e.dependency_id, e.job_id
    LIMIT $4::int4
), judged AS MATERIALIZED (
    SELECT
        p.dependency_id, p.job_id, p.met, w.id IS NOT NULL AND w.status < 4 AS live, w.flags AS waiter_flags,
        d.flags AS dependency_flags,
        coalesce(d.status = 4, false)
            OR (d.id IS NULL AND EXISTS (SELECT FROM bunqueue.proofs c WHERE c.ns = $1::int4 AND c.id = p.dependency_id)) AS completed
    FROM page p
        LEFT JOIN bunqueue.jobs w ON w.ns = $1::int4 AND w.id = p.job_id
        LEFT JOIN bunqueue.jobs d ON d.ns = $1::int4 AND d.id = p.dependency_id
), removed AS (
    DELETE FROM bunqueue.edges e USING judged j
    WHERE e.ns = $1::int4 AND e.dependency_id = j.dependency_id AND e.job_id = j.job_id AND NOT j.live
    RETURNING 1
), met AS (
    UPDATE bunqueue.edges e SET met = true FROM judged j
    WHERE e.ns = $1::int4 AND e.dependency_id = j.dependency_id AND e.job_id = j.job_id AND j.live AND j.completed AND NOT e.met
    RETURNING 1
), told AS (
    UPDATE bunqueue.jobs k SET flags = k.flags | f.bit
    FROM (
        SELECT t.id, bit_or(t.bit)::int2 AS bit
        FROM (
            SELECT j.dependency_id AS id, 4 AS bit FROM judged j WHERE j.live AND j.dependency_flags & 4 = 0
            UNION ALL
            SELECT j.job_id, 8 FROM judged j WHERE j.live AND j.waiter_flags & 8 = 0
        ) AS t
        GROUP BY t.id
    ) AS f
    WHERE k.ns = $1::int4 AND k.id = f.id
    RETURNING 1
)
SELECT
    p.dependency_id, p.job_id, (SELECT count(*) FROM removed), (SELECT count(*) FROM met), (SELECT count(*) FROM told)
FROM page p
ORDER BY p.dependency_id DESC, p.job_id DESC
LIMIT 1
