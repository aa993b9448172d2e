-- Looks at $3 rows of the outbox after id $2 and corrects their number of events. Gives the last id looked at, and how many were wrong. No
-- row: there are no more. Locks: the corrected rows. Index: primary key.
WITH page AS MATERIALIZED (
    SELECT e.id, e.ns, e.size, greatest(1, cardinality(e.ids)) AS true_size
    FROM bunqueue.events e WHERE e.id > $2::int8 ORDER BY e.id LIMIT $3::int4
), mended AS (
    UPDATE bunqueue.events e SET size = greatest(1, cardinality(e.ids))
    FROM page p
    WHERE p.ns = $1::int4 AND p.size <> p.true_size AND e.id = p.id
    RETURNING 1
)
SELECT p.id, (SELECT count(*) FROM mended) FROM page p ORDER BY p.id DESC LIMIT 1
