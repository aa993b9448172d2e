-- Locks all schedulers of the namespace, by name, and gives them with the time, if $2 is the session of the oldest of the live brokers.
-- Index: primary keys.
SELECT bunqueue.now_ms(), s.definition, s.memory
FROM bunqueue.schedules s
WHERE s.ns = $1::int4 AND (
    SELECT b.session FROM bunqueue.brokers b WHERE b.ns = $1::int4 ORDER BY b.started_at, b.broker_id, b.session LIMIT 1
) = $2::uuid
ORDER BY s.name
FOR UPDATE
