-- Results of completed jobs for their events, of removed ones too. Locks nothing. Index: primary keys (+ 0: not the one of completed jobs).
SELECT j.id, j.result FROM bunqueue.jobs j WHERE j.ns = $1::int4 AND j.id = ANY ($2::text[]) AND j.status + 0 = 4 AND j.result IS NOT NULL
UNION ALL
SELECT p.id, p.result FROM bunqueue.proofs p WHERE p.ns = $1::int4 AND p.id = ANY ($2::text[]) AND p.result IS NOT NULL
