-- Numbers of queues by name, registering those that are new (not listed until they have a job or a setting).
WITH registered AS (
    INSERT INTO bunqueue.queues (ns, name)
    SELECT $1::int4, name FROM unnest($2::text[]) AS i (name)
    ON CONFLICT (ns, name) DO NOTHING
    RETURNING id, name
)
SELECT id, name FROM registered
UNION ALL
SELECT q.id, q.name FROM bunqueue.queues q WHERE q.ns = $1::int4 AND q.name = ANY ($2::text[])
