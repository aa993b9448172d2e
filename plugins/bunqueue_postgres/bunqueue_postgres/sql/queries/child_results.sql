-- Results of completed children, of removed ones too, with their queues. Index: primary keys.
SELECT j.id, q.name, j.result
FROM bunqueue.jobs j JOIN bunqueue.queues q ON q.id = j.queue_id
WHERE j.ns = $1::int4 AND j.id = ANY ($2::text[]) AND j.status = 4
UNION ALL
SELECT p.id, q.name, p.result
FROM bunqueue.proofs p JOIN bunqueue.queues q ON q.id = p.queue_id
WHERE p.ns = $1::int4 AND p.id = ANY ($2::text[])
