-- Names of the queues that are listed, in order of first appearance.
SELECT name FROM bunqueue.queues WHERE ns = $1::int4 AND listed ORDER BY id
