-- The namespace's number, registering it if it is new. One row, also when another broker registers it at the same moment: its row,
-- which no snapshot of this statement shows, is then taken by the conflict.
INSERT INTO bunqueue.namespaces (name) VALUES ($1::text)
ON CONFLICT (name) DO UPDATE SET name = excluded.name
RETURNING id
