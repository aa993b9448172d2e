-- Workers of a namespace that were heard of within $2 ms: record, silence in ms, and the session of the broker that keeps it.
-- Locks nothing. Index: primary key.
SELECT w.record, clock.now - w.seen_at, w.session
FROM (SELECT bunqueue.now_ms() AS now OFFSET 0) clock JOIN bunqueue.workers w ON w.ns = $1::int4 AND w.seen_at > clock.now - $2::int8
ORDER BY w.id
