-- Writes workers of broker $2 ($5 ids, $6 records), and removes those of ids $4, if session $3 is still that broker's; gives 1 if it
-- is, else 0. A worker that another broker knew has come here. Locks: the workers' rows, in the order of their ids.
WITH mine AS MATERIALIZED (
    SELECT bunqueue.now_ms() AS now FROM bunqueue.brokers b WHERE b.ns = $1::int4 AND b.broker_id = $2::text AND b.session = $3::uuid
), gone AS (
    DELETE FROM bunqueue.workers w
    USING unnest($4::text[]) AS i (id), mine
    WHERE w.ns = $1::int4 AND w.id = i.id AND w.session = $3::uuid
), put AS (
    INSERT INTO bunqueue.workers AS w (ns, id, session, seen_at, record)
    SELECT $1::int4, i.id, $3::uuid, m.now, i.record
    FROM mine m CROSS JOIN unnest($5::text[], $6::bytea[]) AS i (id, record)
    ON CONFLICT (ns, id) DO UPDATE SET session = excluded.session, seen_at = excluded.seen_at, record = excluded.record
)
SELECT count(*) FROM mine
