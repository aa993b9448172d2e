-- Which jobs wait, or waited, for the last add under debounce ids. Locks nothing: the caller holds their names. Index: primary key.
SELECT d.queue_id, d.key, d.job_id
FROM unnest($1::int4[], $2::text[]) AS i (queue_id, key)
    JOIN bunqueue.debounces d ON d.queue_id = i.queue_id AND d.key = i.key
