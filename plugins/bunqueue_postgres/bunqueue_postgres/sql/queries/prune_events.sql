-- Keeps the newest $3 events of each queue that has had events after id $2; gives the highest id seen.
--
-- The row in which the bound falls keeps its newest events. Only queues with new events are looked at, each from its newest event
-- back to the bound. Locks: the removed and shortened rows, passing by held ones.
-- Index: events_retention; primary key for the queues with news.
WITH news AS MATERIALIZED (
    SELECT e.queue_id, max(e.id) AS id FROM bunqueue.events e WHERE e.id > $2::int8 AND e.ns = $1::int4 GROUP BY e.queue_id
), edge AS MATERIALIZED (
    SELECT n.queue_id, e.id, e.size, e.total - $3::int8 AS surplus
    FROM news n CROSS JOIN LATERAL (
        SELECT counted.id, counted.size, counted.total
        FROM (
            SELECT e.id, e.size, sum(e.size) OVER (ORDER BY e.id DESC) AS total
            FROM bunqueue.events e
            WHERE e.queue_id = n.queue_id
            ORDER BY e.id DESC
        ) AS counted
        WHERE counted.total > $3::int8
        LIMIT 1
    ) AS e
), shortened AS (
    UPDATE bunqueue.events e
    SET ids = e.ids[g.surplus + 1:], size = e.size - g.surplus, skipped = e.skipped + g.surplus
    FROM edge g
    WHERE e.id = g.id AND g.surplus < g.size
), removed AS (
    DELETE FROM bunqueue.events e USING edge g
    WHERE e.queue_id = g.queue_id AND (e.id < g.id OR (e.id = g.id AND g.surplus >= g.size))
)
SELECT max(id) FROM news
