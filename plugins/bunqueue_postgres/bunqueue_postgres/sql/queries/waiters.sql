-- Jobs that wait for others, with what they wait for and the number of their queue. Locks nothing. Index: primary keys.
SELECT e.dependency_id, e.job_id, j.queue_id
FROM bunqueue.edges e JOIN bunqueue.jobs j ON j.ns = e.ns AND j.id = e.job_id
WHERE e.ns = $1::int4 AND e.dependency_id = ANY ($2::text[]) AND NOT e.met AND j.status = 1
