-- Gives up this session's name.
DELETE FROM bunqueue.brokers WHERE ns = $1::int4 AND broker_id = $2::text AND session = $3::uuid
