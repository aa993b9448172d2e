-- Jobs that wait for others, with what they wait for and the number of their queue. Locks nothing.
-- Index: primary keys: one range an id, one probe an edge.
SELECT e.dependency_id, e.job_id, j.queue_id
FROM (SELECT DISTINCT u.id FROM unnest($2::text[]) AS u (id)) AS i CROSS JOIN LATERAL (
    SELECT d.dependency_id, d.job_id FROM bunqueue.edges d
    WHERE d.ns = $1::int4 AND d.dependency_id = i.id AND NOT d.met
    OFFSET 0
) AS e CROSS JOIN LATERAL (
    SELECT k.queue_id FROM bunqueue.jobs k WHERE k.ns = $1::int4 AND k.id = e.job_id AND k.status = 1 LIMIT 1
) AS j
