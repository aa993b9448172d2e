-- Adds to the counters of minutes and totals, and drops minutes beyond the newest $6 of these queues.
WITH added AS (
    INSERT INTO bunqueue.metrics AS m (queue_id, type, minute, count, latest_at)
    SELECT * FROM unnest($1::int4[], $2::text[], $3::int8[], $4::int8[], $5::int8[])
    ON CONFLICT (queue_id, type, minute) DO UPDATE
    SET count = m.count + excluded.count, latest_at = greatest(m.latest_at, excluded.latest_at)
)
DELETE FROM bunqueue.metrics m
USING (SELECT queue_id, type, max(minute) AS newest FROM unnest($1::int4[], $2::text[], $3::int8[]) AS i (queue_id, type, minute) GROUP BY 1, 2) AS i
WHERE m.queue_id = i.queue_id AND m.type = i.type AND m.minute >= 0 AND m.minute <= i.newest - $6::int8
