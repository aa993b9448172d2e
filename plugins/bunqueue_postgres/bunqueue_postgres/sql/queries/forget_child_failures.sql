-- Forgets the failures of the children of jobs that have ended.
DELETE FROM bunqueue.child_failures WHERE ns = $1::int4 AND parent_id = ANY ($2::text[])
