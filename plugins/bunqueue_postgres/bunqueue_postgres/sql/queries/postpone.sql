-- Lets ended jobs that are due, but that live jobs need, be looked at again in $3 ms. The caller holds the rows. Index: primary key.
UPDATE bunqueue.jobs SET due_at = bunqueue.now_ms() + $3::int8 WHERE ns = $1::int4 AND id = ANY ($2::text[])
