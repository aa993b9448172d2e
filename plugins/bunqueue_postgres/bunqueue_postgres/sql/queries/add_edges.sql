-- Notes that jobs wait for others, and marks those as waited for. Locks: the rows of the latter, which the caller has locked.
WITH edges AS (
    INSERT INTO bunqueue.edges (ns, dependency_id, job_id, met)
    SELECT $1::int4, * FROM unnest($2::text[], $3::text[], $4::bool[])
    ON CONFLICT (ns, dependency_id, job_id) DO UPDATE SET met = excluded.met
)
UPDATE bunqueue.jobs SET flags = flags | 4 WHERE ns = $1::int4 AND id = ANY ($2::text[]) AND flags & 4 = 0
