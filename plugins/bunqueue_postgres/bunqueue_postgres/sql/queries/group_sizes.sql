-- Queued jobs of groups. Locks nothing: the caller holds the groups' names. Index: jobs_group.
SELECT i.queue_id, i.group_id, (
    SELECT count(*) FROM bunqueue.jobs j WHERE j.queue_id = i.queue_id AND j.group_id = i.group_id AND j.status = 0
)
FROM unnest($1::int4[], $2::text[]) AS i (queue_id, group_id)
