-- Gives up this session's name, and forgets its workers. Locks: the broker's row and the workers'.
WITH gone AS (
    DELETE FROM bunqueue.workers w WHERE w.ns = $1::int4 AND w.session = $3::uuid
)
DELETE FROM bunqueue.brokers WHERE ns = $1::int4 AND broker_id = $2::text AND session = $3::uuid
