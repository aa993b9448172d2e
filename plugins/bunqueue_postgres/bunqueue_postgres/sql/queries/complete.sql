-- Completes jobs that the caller has locked: keeps them with their result, or removes them and leaves a proof.
-- Locks: nothing that is not locked. Index: primary key.
WITH input AS MATERIALIZED (
    SELECT i.*, k.place
    FROM unnest($2::text[], $3::bytea[], $4::bool[], $5::int4[], $7::int8[]) AS i (id, result, remove, queue_id, due_at)
        CROSS JOIN LATERAL (
            SELECT k.ctid AS place FROM bunqueue.jobs k WHERE k.ns = $1::int4 AND k.id = i.id LIMIT 1
        ) AS k
), kept AS (
    UPDATE bunqueue.jobs j
    SET status = 4, finished_at = $6::int8, result = i.result, lease_until = NULL, lease_session = NULL, due_at = i.due_at
    FROM input i
    WHERE j.ctid = i.place AND NOT i.remove
), removed AS (
    DELETE FROM bunqueue.jobs j USING input i WHERE j.ctid = i.place AND i.remove
)
INSERT INTO bunqueue.proofs (ns, id, queue_id, completed_at, result)
SELECT $1::int4, i.id, i.queue_id, $6::int8, i.result FROM input i WHERE i.remove
ON CONFLICT (ns, id) DO UPDATE SET completed_at = excluded.completed_at, result = excluded.result, queue_id = excluded.queue_id
