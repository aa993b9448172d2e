-- Writes the relations of jobs that the caller has locked; their state stays. Index: primary key.
UPDATE bunqueue.jobs j
SET extra = i.extra, parent_id = i.parent_id, flags = i.flags
FROM (
    SELECT i.*, k.place
    FROM unnest($2::text[], $3::bytea[], $4::text[], $5::int2[]) AS i (id, extra, parent_id, flags) CROSS JOIN LATERAL (
        SELECT k.ctid AS place FROM bunqueue.jobs k WHERE k.ns = $1::int4 AND k.id = i.id LIMIT 1
    ) AS k
) AS i
WHERE j.ctid = i.place
