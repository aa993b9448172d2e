-- Whether a scheduler is due. Index: schedules_due.
SELECT EXISTS (SELECT FROM bunqueue.schedules s WHERE s.ns = $1::int4 AND s.next_run <= (SELECT bunqueue.now_ms()))
