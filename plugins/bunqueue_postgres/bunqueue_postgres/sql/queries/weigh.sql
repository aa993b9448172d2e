-- Bytes of the payloads, results, logs of attempts and dead-letter entries of jobs. Reads sizes only. Locks nothing.
-- Index: primary key, one probe an id. The caller gives each id once.
SELECT coalesce(sum(
    coalesce(octet_length(j.data), 0) + coalesce(octet_length(j.result), 0) + coalesce(octet_length(j.extra), 0)
    + coalesce(octet_length(j.past), 0) + coalesce(octet_length(j.dead), 0)
), 0)::int8
FROM unnest($2::text[]) AS i (id) CROSS JOIN LATERAL (
    SELECT k.data, k.result, k.extra, k.past, k.dead FROM bunqueue.jobs k WHERE k.ns = $1::int4 AND k.id = i.id LIMIT 1
) AS j
