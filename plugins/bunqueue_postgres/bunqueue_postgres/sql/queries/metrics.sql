-- Counters of a queue: the total (minute -1) and its minutes, newest first. Index: primary key.
SELECT m.minute, m.count, m.latest_at
FROM bunqueue.queues q JOIN bunqueue.metrics m ON m.queue_id = q.id
WHERE q.ns = $1::int4 AND q.name = $2::text AND m.type = $3::text
ORDER BY m.minute DESC
