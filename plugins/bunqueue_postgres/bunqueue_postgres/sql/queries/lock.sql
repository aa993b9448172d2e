-- Locks jobs and gives their whole records, the policies of their queues, and the time.
--
-- Locks: the rows, in the order of the array, which the caller sorts by id. A row that another transaction changed meanwhile is given
-- as it is once it is held.
-- Index: primary key, one probe an id.
SELECT
    j.id, q.name, j.name, j.data, j.options, j.extra, j.past, j.progress, j.priority, j.created_at, j.run_at, j.admitted_at,
    j.admitted_as, j.status, j.started_at, j.finished_at, j.heartbeat_at, j.lease_until, j.attempts, j.stall_count,
    j.lease_renewals, j.flags, j.unique_key, j.group_id, j.group_order, j.parent_id, j.lease_token, j.lease_owner,
    j.lease_session, j.result, j.dead, j.queue_id, bunqueue.now_ms(), q.stall_config, q.dlq_config
FROM unnest($2::text[]) WITH ORDINALITY AS i (id, n) CROSS JOIN LATERAL (
    SELECT k.* FROM bunqueue.jobs k WHERE k.ns = $1::int4 AND k.id = i.id FOR UPDATE
) AS j CROSS JOIN LATERAL (
    SELECT k.name, k.stall_config, k.dlq_config FROM bunqueue.queues k WHERE k.id = j.queue_id LIMIT 1
) AS q
ORDER BY i.n
