-- Switches a webhook on or off; gives 1 if there is one. Locks: the namespace's and the webhook's rows.
WITH changed AS (
    UPDATE bunqueue.namespaces SET webhooks_revision = webhooks_revision + 1 WHERE id = $1::int4
), switched AS (
    UPDATE bunqueue.webhooks SET enabled = $3::bool WHERE ns = $1::int4 AND id = $2::text RETURNING 1
)
SELECT count(*) FROM switched
