-- Forgets a webhook; gives 1 if there was one. Locks: the namespace's row.
WITH changed AS (
    UPDATE bunqueue.namespaces SET webhooks_revision = webhooks_revision + 1 WHERE id = $1::int4
), dropped AS (
    DELETE FROM bunqueue.webhooks WHERE ns = $1::int4 AND id = $2::text RETURNING 1
)
SELECT count(*) FROM dropped
