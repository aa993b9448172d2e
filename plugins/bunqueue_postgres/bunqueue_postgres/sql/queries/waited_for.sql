-- Which of these jobs live jobs wait for, or waited for, and which those are. Index: primary key.
SELECT dependency_id, array_agg(job_id) FROM bunqueue.edges WHERE ns = $1::int4 AND dependency_id = ANY ($2::text[]) GROUP BY 1
