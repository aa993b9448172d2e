-- Notes that jobs wait for others, and marks those as waited for. Locks: the rows of the latter, which the caller has locked.
-- Index: primary key, one probe a dependency.
WITH edges AS (
    INSERT INTO bunqueue.edges (ns, dependency_id, job_id, met)
    SELECT $1::int4, * FROM unnest($2::text[], $3::text[], $4::bool[])
    ON CONFLICT (ns, dependency_id, job_id) DO UPDATE SET met = excluded.met
)
UPDATE bunqueue.jobs j
SET flags = j.flags | 4
FROM (
    SELECT DISTINCT k.place FROM unnest($2::text[]) AS i (id) CROSS JOIN LATERAL (
        SELECT k.ctid AS place FROM bunqueue.jobs k WHERE k.ns = $1::int4 AND k.id = i.id LIMIT 1
    ) AS k
) AS i
WHERE j.ctid = i.place AND j.flags & 4 = 0
