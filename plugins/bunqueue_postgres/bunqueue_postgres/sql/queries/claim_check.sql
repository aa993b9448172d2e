-- Takes over the check of the namespace's derived data if it is $2 ms since the last one began. Gives a row if so. Locks: the namespace.
UPDATE bunqueue.namespaces SET checked_at = bunqueue.now_ms()
WHERE id = $1::int4 AND checked_at <= bunqueue.now_ms() - $2::int8
RETURNING 1
