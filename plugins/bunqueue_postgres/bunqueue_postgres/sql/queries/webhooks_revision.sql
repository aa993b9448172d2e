-- How often the webhooks have been changed.
SELECT webhooks_revision FROM bunqueue.namespaces WHERE id = $1::int4
