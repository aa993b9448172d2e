-- Log of a job. Index: primary key.
SELECT lines FROM bunqueue.logs WHERE ns = $1::int4 AND id = $2::text
