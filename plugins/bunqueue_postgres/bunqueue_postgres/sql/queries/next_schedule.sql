-- In how many ms the first scheduler is due (negative: it is); null without schedulers. Index: schedules_due.
SELECT min(s.next_run) - bunqueue.now_ms() FROM bunqueue.schedules s WHERE s.ns = $1::int4
