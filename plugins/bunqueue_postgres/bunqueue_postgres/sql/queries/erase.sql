-- Deletes jobs that the caller has locked, with their logs. Index: primary keys.
WITH logs AS (
    DELETE FROM bunqueue.logs WHERE ns = $1::int4 AND id = ANY ($2::text[])
)
DELETE FROM bunqueue.jobs WHERE ns = $1::int4 AND id = ANY ($2::text[])
