-- Corrects how long a job of a queue may be silent, unless the policy has changed since it was read ($2). Locks: the queue's row.
UPDATE bunqueue.queues SET stall_after = $3::int8 WHERE id = $1::int4 AND stall_config IS NOT DISTINCT FROM $2::bytea
