-- Renames a job that the caller has locked. Index: primary key.
UPDATE bunqueue.jobs SET name = $3::text WHERE ns = $1::int4 AND id = $2::text
