-- Jobs that wait for others, $4 from (queue, time of creation, id) = ($2, $3, $5) on, with what they say that they depend on and the edges
-- that they have. Locks nothing. Index: jobs_gated; edges_job.
SELECT j.queue_id, j.created_at, j.id, j.extra, e.dependencies, e.unmet
FROM (
    SELECT g.queue_id, g.created_at, g.id, g.extra
    FROM bunqueue.jobs g
    WHERE g.status IN (1, 2) AND g.status = 1 AND g.queue_id = $2::int4 AND (g.created_at, g.id) > ($3::int8, $5::text)
    ORDER BY g.created_at, g.id
    LIMIT $4::int4
) AS j CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(e.dependency_id), '{}') AS dependencies, count(*) FILTER (WHERE NOT e.met) AS unmet
    FROM bunqueue.edges e
    WHERE e.ns = $1::int4 AND e.job_id = j.id
) AS e
ORDER BY j.created_at, j.id
