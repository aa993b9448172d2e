-- Stores a scheduler; it keeps its place.
INSERT INTO bunqueue.schedules (ns, name, next_run, definition, memory) VALUES ($1::int4, $2::text, $3::int8, $4::bytea, $5::bytea)
ON CONFLICT (ns, name) DO UPDATE SET next_run = excluded.next_run, definition = excluded.definition, memory = excluded.memory
