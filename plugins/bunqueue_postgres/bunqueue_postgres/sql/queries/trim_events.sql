-- Keeps the newest $3 events of a queue; gives how many went. The row in which the bound falls keeps its newest events.
-- Locks: the removed and shortened rows. Index: events_retention, from the newest event back.
WITH counted AS MATERIALIZED (
    SELECT e.id, e.size, sum(e.size) OVER (ORDER BY e.id DESC) - $3::int8 AS surplus
    FROM bunqueue.queues q JOIN bunqueue.events e ON e.queue_id = q.id
    WHERE q.ns = $1::int4 AND q.name = $2::text
), shortened AS (
    UPDATE bunqueue.events e
    SET ids = e.ids[c.surplus + 1:], size = e.size - c.surplus::int4, skipped = e.skipped + c.surplus::int4
    FROM counted c
    WHERE e.id = c.id AND c.surplus > 0 AND c.surplus < c.size
    RETURNING c.surplus AS removed
), removed AS (
    DELETE FROM bunqueue.events e USING counted c WHERE e.id = c.id AND c.surplus >= c.size RETURNING c.size AS removed
)
SELECT coalesce((SELECT sum(removed) FROM shortened), 0)::int8 + coalesce((SELECT sum(removed) FROM removed), 0)::int8
