-- Keeps failures of children that their parents survive.
INSERT INTO bunqueue.child_failures (ns, parent_id, child_id, child_queue, mode, error)
SELECT $1::int4, * FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[])
ON CONFLICT (ns, parent_id, child_id) DO UPDATE SET mode = excluded.mode, error = excluded.error
