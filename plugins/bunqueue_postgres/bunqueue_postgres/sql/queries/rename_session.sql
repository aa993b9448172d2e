-- Hands the workers of a broker's session $2 to its new session $3. Locks the rows. Index: primary key.
UPDATE bunqueue.workers w SET session = $3::uuid WHERE w.ns = $1::int4 AND w.session = $2::uuid
