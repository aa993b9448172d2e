-- How many jobs wait for one that cannot complete by itself any more. Locks nothing. Index: jobs_gated; edges_job; primary keys.
SELECT count(*)
FROM bunqueue.queues q JOIN bunqueue.jobs g ON g.queue_id = q.id AND g.status IN (1, 2) AND g.status = 1
WHERE q.ns = $1::int4 AND EXISTS (
    SELECT FROM bunqueue.edges e
    WHERE e.ns = $1::int4 AND e.job_id = g.id AND NOT e.met
        AND NOT EXISTS (SELECT FROM bunqueue.jobs j WHERE j.ns = e.ns AND j.id = e.dependency_id AND j.status <> 5 OFFSET 0)
        AND NOT EXISTS (SELECT FROM bunqueue.proofs p WHERE p.ns = e.ns AND p.id = e.dependency_id OFFSET 0)
)
