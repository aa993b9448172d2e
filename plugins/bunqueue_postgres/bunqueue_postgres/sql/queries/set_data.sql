-- Replaces the payload of a job that the caller has locked. Index: primary key.
UPDATE bunqueue.jobs SET data = $3::bytea WHERE ns = $1::int4 AND id = $2::text
