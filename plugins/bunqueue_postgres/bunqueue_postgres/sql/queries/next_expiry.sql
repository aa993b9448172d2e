-- In how many ms the first lease of the namespace runs out (negative: it has); null without leases. Index: jobs_leased.
SELECT min(j.lease_until) - bunqueue.now_ms()
FROM bunqueue.queues q CROSS JOIN LATERAL (
    SELECT j.lease_until FROM bunqueue.jobs j WHERE j.queue_id = q.id AND j.status = 3 ORDER BY j.lease_until LIMIT 1
) AS j
WHERE q.ns = $1::int4
