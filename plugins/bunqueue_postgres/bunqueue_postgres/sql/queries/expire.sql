-- Removes up to $2 queued jobs of a queue whose time to live is over. Locks the rows, passing by held ones. Index: jobs_expiring.
DELETE FROM bunqueue.jobs j
USING (
    SELECT e.ctid AS place
    FROM bunqueue.jobs e
    WHERE e.queue_id = $1::int4 AND e.status = 0 AND e.expires_at IS NOT NULL AND e.expires_at < (SELECT bunqueue.now_ms())
    ORDER BY e.expires_at
    LIMIT $2::int4
    FOR UPDATE SKIP LOCKED
) AS expired
WHERE j.ctid = expired.place
