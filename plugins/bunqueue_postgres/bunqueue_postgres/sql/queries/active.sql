-- Active jobs of a queue whose lease has not ended. Locks nothing. Index: jobs_leased.
SELECT count(*) FROM bunqueue.jobs j WHERE j.queue_id = $1::int4 AND j.status = 3 AND j.lease_until > (SELECT bunqueue.now_ms())
