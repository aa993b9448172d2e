-- Deletes the oldest dead letters of a queue beyond $2. Locks the deleted rows. Index: jobs_ended.
DELETE FROM bunqueue.jobs j
USING (
    SELECT d.ctid AS place
    FROM bunqueue.jobs d
    WHERE d.queue_id = $1::int4 AND d.status = 5
    ORDER BY d.finished_at DESC, d.id DESC
    OFFSET $2::int8
    FOR UPDATE SKIP LOCKED
) AS surplus
WHERE j.ctid = surplus.place
