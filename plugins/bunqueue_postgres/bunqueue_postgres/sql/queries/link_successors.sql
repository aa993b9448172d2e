-- Notes which jobs follow completed repeat jobs.
INSERT INTO bunqueue.successors (ns, id, successor)
SELECT $1::int4, * FROM unnest($2::text[], $3::text[])
ON CONFLICT (ns, id) DO UPDATE SET successor = excluded.successor
