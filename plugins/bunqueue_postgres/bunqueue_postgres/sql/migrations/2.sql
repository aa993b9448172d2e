-- From version 1 to 2: windows of deduplication keys are known by the key, debounced jobs are found by their id, and brokers say which
-- version they know. schema.sql, which runs after this, makes the new tables; see migrations.py for the rows.
--
-- Locks: the changed tables, until the end of the transaction; none of them is ever large.

CREATE TABLE bunqueue.schema_progress (
    version int4 PRIMARY KEY,
    ns int4 NOT NULL,
    id text COLLATE "C" NOT NULL
);

ALTER TABLE bunqueue.schema_versions ADD COLUMN IF NOT EXISTS fingerprint text;
ALTER TABLE bunqueue.keys ADD COLUMN IF NOT EXISTS windowed bool NOT NULL DEFAULT false;
ALTER TABLE bunqueue.namespaces ADD COLUMN IF NOT EXISTS checked_at int8 NOT NULL DEFAULT 0;

-- Ends the sessions of all brokers of the old version. They cannot register again: they do not know the column.
LOCK TABLE bunqueue.brokers IN ACCESS EXCLUSIVE MODE;
DELETE FROM bunqueue.brokers;
ALTER TABLE bunqueue.brokers ADD COLUMN IF NOT EXISTS version int4 NOT NULL;
