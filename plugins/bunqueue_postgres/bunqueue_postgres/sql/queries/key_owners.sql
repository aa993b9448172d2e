-- Owners of deduplication keys, and the time. Locks nothing: the caller holds the keys' names. Index: primary key.
SELECT k.queue_id, k.key, k.job_id, k.expires_at
FROM unnest($1::int4[], $2::text[]) AS i (queue_id, key)
    JOIN bunqueue.keys k ON k.queue_id = i.queue_id AND k.key = i.key
