-- Locks up to $2 schedulers that are due, passing by those that another broker runs, and gives them with the time.
-- Index: schedules_due.
SELECT bunqueue.now_ms(), s.definition, s.memory
FROM bunqueue.schedules s
WHERE s.ns = $1::int4 AND s.next_run <= (SELECT bunqueue.now_ms())
ORDER BY s.next_run
LIMIT $2::int4
FOR UPDATE SKIP LOCKED
