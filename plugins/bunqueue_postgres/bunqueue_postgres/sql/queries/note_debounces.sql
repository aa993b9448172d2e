-- Notes which jobs wait for the last add under debounce ids. Locks: the ids' rows.
INSERT INTO bunqueue.debounces (queue_id, key, job_id)
SELECT * FROM unnest($1::int4[], $2::text[], $3::text[])
ON CONFLICT (queue_id, key) DO UPDATE SET job_id = excluded.job_id
