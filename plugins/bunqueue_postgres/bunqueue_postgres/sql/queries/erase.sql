-- Deletes jobs that the caller has locked. Index: primary key.
DELETE FROM bunqueue.jobs WHERE ns = $1::int4 AND id = ANY ($2::text[])
