-- Writes events to the outbox: for each row a kind of event of one queue, with the ids from position lo to hi of $8.
-- A queue's own event has no ids. Rows are numbered in the order of the arrays.
INSERT INTO bunqueue.events (at, ns, queue_id, size, type, ids, extra)
SELECT $2::int8, $1::int4, i.queue_id, greatest(1, i.hi - i.lo + 1), i.type, ($8::text[])[i.lo:i.hi], i.extra
FROM unnest($3::int4[], $4::text[], $5::int4[], $6::int4[], $7::bytea[]) WITH ORDINALITY AS i (queue_id, type, lo, hi, extra, n)
ORDER BY i.n
