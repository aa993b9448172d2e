-- A scheduler, and the time. At least one row.
SELECT clock.now, s.definition, s.memory
FROM (SELECT bunqueue.now_ms() AS now) clock LEFT JOIN bunqueue.schedules s ON s.ns = $1::int4 AND s.name = $2::text
