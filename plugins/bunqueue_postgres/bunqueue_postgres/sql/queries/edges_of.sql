-- What a job waits for. Index: edges_job.
SELECT dependency_id, met FROM bunqueue.edges WHERE ns = $1::int4 AND job_id = $2::text
