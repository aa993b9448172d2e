-- Frees deduplication keys that these jobs still own; gives how many. Locks: the keys' rows. Index: primary key.
WITH freed AS (
    DELETE FROM bunqueue.keys k
    USING unnest($1::int4[], $2::text[], $3::text[]) AS i (queue_id, key, job_id)
    WHERE k.queue_id = i.queue_id AND k.key = i.key AND k.job_id = i.job_id
    RETURNING 1
)
SELECT count(*) FROM freed
