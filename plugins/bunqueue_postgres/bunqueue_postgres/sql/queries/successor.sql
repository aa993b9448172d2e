-- The job that follows a completed repeat job. Index: primary key.
SELECT s.successor FROM bunqueue.successors s WHERE s.ns = $1::int4 AND s.id = $2::text
