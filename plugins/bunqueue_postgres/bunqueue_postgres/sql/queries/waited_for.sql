-- Which of these jobs live jobs wait for, or waited for. Index: primary key.
SELECT DISTINCT dependency_id FROM bunqueue.edges WHERE ns = $1::int4 AND dependency_id = ANY ($2::text[])
