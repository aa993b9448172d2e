-- Lets ended jobs that are due, but that live jobs need, be looked at again in $3 ms. The caller holds the rows.
-- Index: primary key, one probe an id.
UPDATE bunqueue.jobs j
SET due_at = bunqueue.now_ms() + $3::int8
FROM (
    SELECT k.place FROM unnest($2::text[]) AS i (id) CROSS JOIN LATERAL (
        SELECT k.ctid AS place FROM bunqueue.jobs k WHERE k.ns = $1::int4 AND k.id = i.id LIMIT 1
    ) AS k
) AS i
WHERE j.ctid = i.place
