-- Makes this session the broker of its name: if the name is free, its own, or its holder has been silent for $4 ms; and only while the
-- schema has version $5, which this broker knows.
-- Gives a row if it did. Locks: the broker's row.
INSERT INTO bunqueue.brokers AS b (ns, broker_id, session, started_at, heartbeat_at, version)
SELECT $1::int4, $2::text, $3::uuid, now, now, $5::int4
FROM (SELECT bunqueue.now_ms() AS now) clock
WHERE (SELECT max(v.version) FROM bunqueue.schema_versions v) = $5::int4
ON CONFLICT (ns, broker_id) DO UPDATE
SET session = excluded.session, started_at = excluded.started_at, heartbeat_at = excluded.heartbeat_at, version = excluded.version
WHERE b.session = excluded.session OR b.heartbeat_at <= excluded.heartbeat_at - $4::int8
RETURNING 1
