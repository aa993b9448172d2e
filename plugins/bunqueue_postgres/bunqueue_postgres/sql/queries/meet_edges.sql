-- Notes that jobs have completed; gives the jobs that waited for them. Locks: the edges.
UPDATE bunqueue.edges SET met = true WHERE ns = $1::int4 AND dependency_id = ANY ($2::text[]) AND NOT met RETURNING job_id
