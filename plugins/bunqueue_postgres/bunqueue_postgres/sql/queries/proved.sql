-- Which of these ids have a completion proof, and the time. At least one row. Locks nothing. Index: primary key.
SELECT p.id, clock.now
FROM (SELECT bunqueue.now_ms() AS now) clock LEFT JOIN bunqueue.proofs p ON p.ns = $1::int4 AND p.id = ANY ($2::text[])
