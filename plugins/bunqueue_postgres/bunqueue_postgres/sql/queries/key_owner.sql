-- Owner of a deduplication key that is in force. Index: primary key.
SELECT k.job_id
FROM bunqueue.queues q JOIN bunqueue.keys k ON k.queue_id = q.id
WHERE q.ns = $1::int4 AND q.name = $2::text AND k.key = $3::text AND (k.expires_at IS NULL OR k.expires_at > (SELECT bunqueue.now_ms()))
