-- All schedulers, oldest first.
SELECT definition, memory FROM bunqueue.schedules WHERE ns = $1::int4 ORDER BY place
