-- The namespace's number, registering it if it is new.
WITH registered AS (
    INSERT INTO bunqueue.namespaces (name) VALUES ($1::text) ON CONFLICT (name) DO NOTHING RETURNING id
)
SELECT id FROM registered UNION ALL SELECT id FROM bunqueue.namespaces WHERE name = $1::text
