-- Results of completed jobs, and which of the ids have been completed or have otherwise ended. Locks nothing. Index: primary keys.
SELECT j.id, j.status, j.result
FROM bunqueue.jobs j
WHERE j.ns = $1::int4 AND j.id = ANY ($2::text[])
UNION ALL
SELECT p.id, 6, NULL
FROM bunqueue.proofs p
WHERE p.ns = $1::int4 AND p.id = ANY ($2::text[])
