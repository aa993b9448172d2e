-- Frees a deduplication key; gives 1 if there was one. Locks: its row.
WITH freed AS (
    DELETE FROM bunqueue.keys k USING bunqueue.queues q
    WHERE q.ns = $1::int4 AND q.name = $2::text AND k.queue_id = q.id AND k.key = $3::text
    RETURNING 1
)
SELECT count(*) FROM freed
