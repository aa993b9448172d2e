-- What jobs wait for that cannot complete by itself any more: it is a dead letter, or not there. Locks nothing.
-- Index: edges_job; primary keys, one probe an edge (OFFSET 0: never a table of all jobs).
SELECT e.job_id, e.dependency_id
FROM bunqueue.edges e
WHERE e.ns = $1::int4 AND e.job_id = ANY ($2::text[]) AND NOT e.met
    AND NOT EXISTS (SELECT FROM bunqueue.jobs j WHERE j.ns = e.ns AND j.id = e.dependency_id AND j.status <> 5 OFFSET 0)
    AND NOT EXISTS (SELECT FROM bunqueue.proofs p WHERE p.ns = e.ns AND p.id = e.dependency_id OFFSET 0)
