-- Failures of a parent's children under one policy.
SELECT child_id, child_queue, error FROM bunqueue.child_failures WHERE ns = $1::int4 AND parent_id = $2::text AND mode = $3::text
