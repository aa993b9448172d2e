-- Removes a scheduler; gives 1 if there was one.
WITH dropped AS (DELETE FROM bunqueue.schedules WHERE ns = $1::int4 AND name = $2::text RETURNING 1) SELECT count(*) FROM dropped
