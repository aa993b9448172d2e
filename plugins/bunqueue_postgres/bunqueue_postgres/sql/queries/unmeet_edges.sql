-- Notes that jobs count as completed no longer. Locks: the edges.
UPDATE bunqueue.edges SET met = false WHERE ns = $1::int4 AND dependency_id = ANY ($2::text[]) AND met
