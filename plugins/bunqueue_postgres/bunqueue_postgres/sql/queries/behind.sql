-- The first claimable job that stands before each low-water mark (queue $1, priority $2, run_at $3, id $4), by the mark's position.
-- Jobs that somebody is just claiming do not count.
-- Locks: the jobs found, passing by rows that others hold, until the statement ends.
-- Index: jobs_fifo, one range a mark, from the head of its level. Marks are in the past, so what stands before them is due; a bound
-- on run_at beside the mark's would keep the scan from ending at the mark.
SELECT m.n, j.run_at, j.id
FROM unnest($1::int4[], $2::int4[], $3::int8[], $4::text[]) WITH ORDINALITY AS m (queue_id, priority, run_at, id, n)
    CROSS JOIN (SELECT bunqueue.now_ms() AS now OFFSET 0) clock
    CROSS JOIN LATERAL (
        SELECT k.run_at, k.id
        FROM bunqueue.jobs k
        WHERE k.queue_id = m.queue_id AND k.priority = m.priority AND k.status = 0 AND k.group_id IS NULL AND NOT k.lifo
            AND (k.run_at, k.id) < (m.run_at, m.id)
            AND (k.expires_at IS NULL OR k.expires_at >= clock.now)
        ORDER BY k.run_at, k.id
        LIMIT 1
        FOR UPDATE SKIP LOCKED
    ) AS j
