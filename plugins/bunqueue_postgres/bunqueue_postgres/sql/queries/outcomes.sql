-- Results of completed jobs, and which of the ids have been completed and removed, and how long ago.
-- Locks nothing. Index: primary keys, one probe an id.
SELECT j.id, j.status, j.result, NULL::int8
FROM unnest($2::text[]) AS i (id) CROSS JOIN LATERAL (
    SELECT k.id, k.status, k.result FROM bunqueue.jobs k WHERE k.ns = $1::int4 AND k.id = i.id LIMIT 1
) AS j
UNION ALL
SELECT p.id, 6, p.result, bunqueue.now_ms() - p.completed_at
FROM bunqueue.proofs p
WHERE p.ns = $1::int4 AND p.id = ANY ($2::text[])
