-- Notes priorities that jobs of a queue now have. Locks: the queue's row, if one is new to it.
UPDATE bunqueue.queues q
SET priorities = (SELECT array_agg(DISTINCT p ORDER BY p DESC) FROM unnest(q.priorities || $2::int4[]) p)
WHERE q.id = $1::int4 AND NOT q.priorities @> $2::int4[]
