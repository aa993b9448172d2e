-- Makes jobs the owners of deduplication keys. Locks: the keys' rows.
INSERT INTO bunqueue.keys (queue_id, key, job_id, expires_at, windowed)
SELECT * FROM unnest($1::int4[], $2::text[], $3::text[], $4::int8[], $5::bool[])
ON CONFLICT (queue_id, key) DO UPDATE
SET job_id = excluded.job_id, expires_at = excluded.expires_at, windowed = excluded.windowed
