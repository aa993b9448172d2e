-- Remembers how far a shared reader has read.
UPDATE bunqueue.readers SET next_xid = $3::text, open = $4::text[] WHERE ns = $1::int4 AND name = $2::text
