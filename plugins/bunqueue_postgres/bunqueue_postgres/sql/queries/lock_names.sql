-- Takes advisory locks of this transaction on names, in one order for all, so that brokers do not wait in circles.
SELECT pg_advisory_xact_lock(name.hash)
FROM (SELECT DISTINCT hashtextextended(n, 0) AS hash FROM unnest($1::text[]) AS n ORDER BY 1) AS name
