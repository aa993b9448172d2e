-- Forgets what jobs wait for: all of it, or (where $3 names one) one dependency. Index: edges_job.
DELETE FROM bunqueue.edges e
USING unnest($2::text[], $3::text[]) AS i (job_id, dependency_id)
WHERE e.ns = $1::int4 AND e.job_id = i.job_id AND (i.dependency_id IS NULL OR e.dependency_id = i.dependency_id)
