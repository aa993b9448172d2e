-- Bytes of the payloads, results, logs of attempts and dead-letter entries of jobs. Reads sizes only. Locks nothing. Index: primary key.
SELECT coalesce(sum(
    coalesce(octet_length(j.data), 0) + coalesce(octet_length(j.result), 0) + coalesce(octet_length(j.extra), 0)
    + coalesce(octet_length(j.past), 0) + coalesce(octet_length(j.dead), 0)
), 0)::int8
FROM bunqueue.jobs j WHERE j.ns = $1::int4 AND j.id = ANY ($2::text[])
