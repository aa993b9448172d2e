-- Results of completed children, of removed ones too, with the queues of those that are kept. Index: primary keys, one probe an id.
SELECT j.id, j.name, j.result
FROM unnest($2::text[]) AS i (id) CROSS JOIN LATERAL (
    SELECT k.id, k.status, k.result, (SELECT q.name FROM bunqueue.queues q WHERE q.id = k.queue_id) AS name
    FROM bunqueue.jobs k
    WHERE k.ns = $1::int4 AND k.id = i.id
    LIMIT 1
) AS j
WHERE j.status = 4
UNION ALL
SELECT p.id, NULL, p.result
FROM bunqueue.proofs p
WHERE p.ns = $1::int4 AND p.id = ANY ($2::text[])
