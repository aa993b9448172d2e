-- Results of completed jobs, and which of the ids have been completed and removed, and how long ago.
-- Locks nothing. Index: primary keys.
SELECT j.id, j.status, j.result, NULL::int8
FROM bunqueue.jobs j
WHERE j.ns = $1::int4 AND j.id = ANY ($2::text[])
UNION ALL
SELECT p.id, 6, p.result, bunqueue.now_ms() - p.completed_at
FROM bunqueue.proofs p
WHERE p.ns = $1::int4 AND p.id = ANY ($2::text[])
