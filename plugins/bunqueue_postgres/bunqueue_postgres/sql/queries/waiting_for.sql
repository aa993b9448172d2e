-- Which live jobs wait, or waited, for a job. Index: primary key.
SELECT job_id FROM bunqueue.edges WHERE ns = $1::int4 AND dependency_id = $2::text
