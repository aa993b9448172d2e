-- Which of these jobs still wait for others. Index: edges_job.
SELECT DISTINCT job_id FROM bunqueue.edges WHERE ns = $1::int4 AND job_id = ANY ($2::text[]) AND NOT met
