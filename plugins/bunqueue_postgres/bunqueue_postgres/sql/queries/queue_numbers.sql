-- Numbers of all queues of the namespace. Locks nothing.
SELECT q.id FROM bunqueue.queues q WHERE q.ns = $1::int4 ORDER BY q.id
