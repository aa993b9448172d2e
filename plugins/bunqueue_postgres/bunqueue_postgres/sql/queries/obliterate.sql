-- Deletes up to $2 jobs of a queue, whatever their state; gives their number. Locks: the rows.
WITH removed AS (
    DELETE FROM bunqueue.jobs j
    USING (
        SELECT d.ns, d.id FROM bunqueue.jobs d WHERE d.queue_id = $1::int4 AND d.status IN (0, 1, 2, 3, 4, 5) LIMIT $2::int8 FOR UPDATE
    ) AS doomed
    WHERE j.ns = doomed.ns AND j.id = doomed.id
    RETURNING 1
)
SELECT count(*) FROM removed
