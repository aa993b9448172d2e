-- Writes the relations of jobs that the caller has locked; their state stays. Index: primary key.
UPDATE bunqueue.jobs j
SET extra = i.extra, parent_id = i.parent_id, flags = i.flags
FROM unnest($2::text[], $3::bytea[], $4::text[], $5::int2[]) AS i (id, extra, parent_id, flags)
WHERE j.ns = $1::int4 AND j.id = i.id
