-- Removes workers of a namespace that have been silent for $2 ms. Locks the rows. Index: primary key.
DELETE FROM bunqueue.workers w WHERE w.ns = $1::int4 AND w.seen_at <= (SELECT bunqueue.now_ms()) - $2::int8
