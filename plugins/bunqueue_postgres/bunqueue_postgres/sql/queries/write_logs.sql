-- Stores a job's log; the caller holds the job's row.
INSERT INTO bunqueue.logs (ns, id, lines) VALUES ($1::int4, $2::text, $3::bytea)
ON CONFLICT (ns, id) DO UPDATE SET lines = excluded.lines
