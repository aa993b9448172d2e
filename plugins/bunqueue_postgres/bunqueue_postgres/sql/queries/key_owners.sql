-- Owners of deduplication keys, until when, and whether the keys are windows. Locks nothing: the caller holds the keys' names. Index:
-- primary key.
SELECT k.queue_id, k.key, k.job_id, k.expires_at, k.windowed
FROM unnest($1::int4[], $2::text[]) AS i (queue_id, key)
    JOIN bunqueue.keys k ON k.queue_id = i.queue_id AND k.key = i.key
