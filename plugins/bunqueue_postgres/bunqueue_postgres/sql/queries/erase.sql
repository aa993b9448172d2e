-- Deletes jobs that the caller has locked, with their logs. Index: primary keys, one probe an id.
WITH logs AS (
    DELETE FROM bunqueue.logs WHERE ns = $1::int4 AND id = ANY ($2::text[])
)
DELETE FROM bunqueue.jobs j
USING (
    SELECT k.place FROM unnest($2::text[]) AS i (id) CROSS JOIN LATERAL (
        SELECT k.ctid AS place FROM bunqueue.jobs k WHERE k.ns = $1::int4 AND k.id = i.id LIMIT 1
    ) AS k
) AS i
WHERE j.ctid = i.place
