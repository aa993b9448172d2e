-- Stores the progress of an active job; gives its queue's number if it was one. Locks: the row. Index: primary key (+ 0: not the one of leases).
WITH changed AS (
    UPDATE bunqueue.jobs j
    SET progress = $3::bytea, heartbeat_at = bunqueue.now_ms(),
        lease_until = CASE WHEN j.lease_owner IS NULL THEN greatest(j.lease_until, bunqueue.now_ms() + $4::int8) ELSE j.lease_until END
    WHERE j.ns = $1::int4 AND j.id = $2::text AND j.status + 0 = 3
    RETURNING j.queue_id, j.id
)
INSERT INTO bunqueue.events (at, ns, queue_id, size, type, ids, extra)
SELECT bunqueue.now_ms(), $1::int4, c.queue_id, 1, 'progress', ARRAY[c.id], $5::bytea FROM changed c
RETURNING queue_id
