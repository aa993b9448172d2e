-- Looks at $4 deduplication keys from (queue, key) = ($2, $3) on, and removes those that mean nothing any more: expired, or without a
-- window and of a job that is not live. Gives the last one looked at, and how many went. No row: there are no more.
-- Locks: the removed rows; one that got another owner meanwhile stays. Index: primary keys.
WITH page AS MATERIALIZED (
    SELECT k.queue_id, k.key, k.job_id, k.expires_at, k.windowed
    FROM bunqueue.keys k
    WHERE (k.queue_id, k.key) > ($2::int4, $3::text)
    ORDER BY k.queue_id, k.key
    LIMIT $4::int4
), removed AS (
    DELETE FROM bunqueue.keys k
    USING page p JOIN bunqueue.queues q ON q.id = p.queue_id
    WHERE q.ns = $1::int4 AND k.queue_id = p.queue_id AND k.key = p.key AND k.job_id = p.job_id
        AND k.expires_at IS NOT DISTINCT FROM p.expires_at
        AND (p.expires_at <= (SELECT bunqueue.now_ms()) OR (
            NOT p.windowed
            AND NOT EXISTS (SELECT FROM bunqueue.jobs j WHERE j.ns = $1::int4 AND j.id = p.job_id AND j.status < 4 OFFSET 0)
        ))
    RETURNING 1
)
SELECT p.queue_id, p.key, (SELECT count(*) FROM removed) FROM page p ORDER BY p.queue_id DESC, p.key DESC LIMIT 1
