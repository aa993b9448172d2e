-- Corrects when ended jobs are due; gives the number that were not right. The caller holds the rows. Index: primary key, one probe an id.
WITH mended AS (
    UPDATE bunqueue.jobs j
    SET due_at = i.due_at
    FROM (
        SELECT i.due_at, k.place FROM unnest($2::text[], $3::int8[]) AS i (id, due_at) CROSS JOIN LATERAL (
            SELECT k.ctid AS place FROM bunqueue.jobs k WHERE k.ns = $1::int4 AND k.id = i.id LIMIT 1
        ) AS k
    ) AS i
    WHERE j.ctid = i.place AND j.due_at IS DISTINCT FROM i.due_at
    RETURNING 1
)
SELECT count(*) FROM mended
