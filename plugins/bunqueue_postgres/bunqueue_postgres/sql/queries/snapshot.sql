-- Where a reader of events begins: xmax and the transactions in progress.
SELECT pg_snapshot_xmax(s)::text, ARRAY(SELECT pg_snapshot_xip(s)::text) FROM pg_current_snapshot() AS s
