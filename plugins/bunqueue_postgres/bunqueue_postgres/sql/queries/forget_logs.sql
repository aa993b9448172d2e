-- Deletes a job's log.
DELETE FROM bunqueue.logs WHERE ns = $1::int4 AND id = $2::text
