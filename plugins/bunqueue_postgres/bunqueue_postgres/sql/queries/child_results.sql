-- Results of completed children, of removed ones too, with the queues of those that are kept. Index: primary keys (+ 0: not the one of completed jobs).
SELECT j.id, q.name, j.result
FROM bunqueue.jobs j JOIN bunqueue.queues q ON q.id = j.queue_id
WHERE j.ns = $1::int4 AND j.id = ANY ($2::text[]) AND j.status + 0 = 4
UNION ALL
SELECT p.id, NULL, p.result
FROM bunqueue.proofs p
WHERE p.ns = $1::int4 AND p.id = ANY ($2::text[])
