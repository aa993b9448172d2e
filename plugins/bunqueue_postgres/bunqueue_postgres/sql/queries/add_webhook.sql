-- Keeps a new webhook, unless there are $5 already; gives whether it did. Locks: the namespace's row, so that changes come one by one.
WITH changed AS (
    UPDATE bunqueue.namespaces SET webhooks_revision = webhooks_revision + 1 WHERE id = $1::int4
), added AS (
    INSERT INTO bunqueue.webhooks (ns, id, enabled, record)
    SELECT $1::int4, $2::text, $3::bool, $4::bytea
    WHERE (SELECT count(*) FROM bunqueue.webhooks w WHERE w.ns = $1::int4) < $5::int4
    RETURNING 1
)
SELECT count(*) FROM added
