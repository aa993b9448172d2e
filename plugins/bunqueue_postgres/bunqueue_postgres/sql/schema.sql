-- The whole schema, idempotent. Run in one transaction under the advisory lock of schema changes, on an empty database or after the
-- changes of sql/migrations that lead from an older version to this one; see schema.py.
--
-- Shape. One row a job in bunqueue.jobs, whatever its state: its row lock is the one place where claims, acknowledgements,
-- renewals, recovery and control commands of all brokers meet. Columns that statements lock, filter, order or count by are
-- scalars; everything else is MessagePack, packed and unpacked by the broker. A job that is pushed, claimed and completed at the
-- first attempt writes three row versions and, over all indexes, six index entries: each index is partial, on the state that it
-- serves, because every claim and acknowledgement pays for the indexes that its new row version is in.
--
-- Text that may hold U+0000, which PostgreSQL's text cannot, is escaped by the broker (keys.py).
-- Times are integer milliseconds since the epoch on the database's clock, bunqueue.now_ms().

CREATE SCHEMA IF NOT EXISTS bunqueue;

-- fingerprint: digest of the definitions of all objects, by which a start knows that nobody changed them (structure.py).
CREATE TABLE IF NOT EXISTS bunqueue.schema_versions (
    version int4 PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    fingerprint text
);

-- Migrations whose rows are still being brought to the new version, and the last job that was: brokers go on from there.
CREATE TABLE IF NOT EXISTS bunqueue.schema_progress (
    version int4 PRIMARY KEY,
    ns int4 NOT NULL,
    id text COLLATE "C" NOT NULL
);

-- The only clock of every statement. Tests of time replace it in a database of their own.
CREATE OR REPLACE FUNCTION bunqueue.now_ms() RETURNS int8
    LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::int8 $$;

-- Namespaces are independent of each other; the small number stands for the name in every row. checked_at: when the last check of
-- derived data began (verbs/repair.py).
CREATE TABLE IF NOT EXISTS bunqueue.namespaces (
    id int4 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    webhooks_revision int8 NOT NULL DEFAULT 0,
    checked_at int8 NOT NULL DEFAULT 0
);

-- Queue registry and controls. Rows are never deleted, so that a broker may remember a queue's number for ever; a queue without
-- jobs and settings is merely not listed.
--
-- priorities: every priority that a queued job of the queue may have. A claim visits these levels one by one, so that jobs which
--   are not due yet, however many, never stand between it and the due ones. Grows with the push that brings a new level.
-- features: bits of features.py; what the queue's jobs have ever used and a claim must therefore look after.
-- limited: a rate or concurrency limit is set; claims then lock this row. rate_tokens: the bucket's content at rate_at.
-- stall_after: how long a job without an owner may be silent, ms; NULL is the default of 35 s.
CREATE TABLE IF NOT EXISTS bunqueue.queues (
    id int4 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ns int4 NOT NULL,
    name text COLLATE "C" NOT NULL,
    listed bool NOT NULL DEFAULT false,
    paused bool NOT NULL DEFAULT false,
    limited bool NOT NULL DEFAULT false,
    features int4 NOT NULL DEFAULT 0,
    priorities int4[] NOT NULL DEFAULT '{}',
    rate_limit float8,
    rate_duration int8,
    rate_expires_at int8,
    rate_tokens float8,
    rate_at int8,
    concurrency_limit float8,
    stall_after int8,
    stall_config bytea,
    dlq_config bytea,
    UNIQUE (ns, name)
);

-- status is Location of the core's model: 0 queued (waiting, prioritized or delayed by run_at and priority), 1 waits for
--   dependencies, 2 parked by hand, 3 active, 4 completed, 5 dead letter.
-- flags: bits of records.py.
-- finished_at: when it completed or became a dead letter.
-- due_at: of an ended job, when it is removed or, a dead letter, retried by itself, whichever comes first.
-- past: timeline, stack trace and attempt history of earlier attempts; NULL on the straight way, where the timeline follows from
--   the other columns.
CREATE TABLE IF NOT EXISTS bunqueue.jobs (
    created_at int8 NOT NULL,
    run_at int8 NOT NULL,
    admitted_at int8 NOT NULL,
    started_at int8,
    finished_at int8,
    heartbeat_at int8,
    lease_until int8,
    lease_ttl int8,
    expires_at int8,
    timeout int8,
    stall_timeout int8,
    group_order int8,
    due_at int8,
    ns int4 NOT NULL,
    queue_id int4 NOT NULL,
    priority int4 NOT NULL,
    attempts int4 NOT NULL DEFAULT 0,
    stall_count int4 NOT NULL DEFAULT 0,
    lease_renewals int4 NOT NULL DEFAULT 0,
    status int2 NOT NULL,
    admitted_as int2 NOT NULL,
    flags int2 NOT NULL,
    lifo bool NOT NULL,
    lease_session uuid,
    id text COLLATE "C" NOT NULL,
    name text,
    data bytea,
    options bytea,
    extra bytea,
    past bytea,
    progress bytea,
    unique_key text COLLATE "C",
    group_id text COLLATE "C",
    parent_id text COLLATE "C",
    lease_token text,
    lease_owner text,
    result bytea,
    dead bytea,
    PRIMARY KEY (ns, id)
) WITH (
    -- Three versions a job: dead rows come at twice the rate of jobs, so vacuum by number rather than by share of the table.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 1,
    autovacuum_vacuum_cost_limit = 2000
);

-- Claims, first in first out, level by level.
CREATE INDEX IF NOT EXISTS jobs_fifo ON bunqueue.jobs (queue_id, priority, run_at, id)
    WHERE status = 0 AND group_id IS NULL AND NOT lifo;
-- Claims, last in first out; these go before the others of their priority.
CREATE INDEX IF NOT EXISTS jobs_lifo ON bunqueue.jobs (queue_id, priority, id DESC)
    WHERE status = 0 AND group_id IS NULL AND lifo;
-- Group lanes.
CREATE INDEX IF NOT EXISTS jobs_group ON bunqueue.jobs (queue_id, group_id, priority, group_order)
    WHERE status = 0 AND group_id IS NOT NULL;
-- Queued jobs that expire.
CREATE INDEX IF NOT EXISTS jobs_expiring ON bunqueue.jobs (queue_id, expires_at)
    WHERE status = 0 AND expires_at IS NOT NULL;
-- Jobs that wait for others, or are parked.
CREATE INDEX IF NOT EXISTS jobs_gated ON bunqueue.jobs (queue_id, created_at, id)
    WHERE status IN (1, 2);
-- Recovery of expired leases, and the number of active jobs.
CREATE INDEX IF NOT EXISTS jobs_leased ON bunqueue.jobs (queue_id, lease_until)
    WHERE status = 3;
-- Active jobs of groups, for their limits.
CREATE INDEX IF NOT EXISTS jobs_group_leased ON bunqueue.jobs (queue_id, group_id, lease_until)
    WHERE status = 3 AND group_id IS NOT NULL;
-- Completed jobs and dead letters: counts, oldest first for cleaning.
CREATE INDEX IF NOT EXISTS jobs_ended ON bunqueue.jobs (queue_id, status, finished_at, id)
    WHERE status IN (4, 5);
-- Ended jobs that are to be removed at some time, and dead letters that are to be retried by themselves.
CREATE INDEX IF NOT EXISTS jobs_due ON bunqueue.jobs (queue_id, due_at)
    WHERE status IN (4, 5) AND due_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS jobs_children ON bunqueue.jobs (ns, parent_id)
    WHERE parent_id IS NOT NULL;

-- Order of admission inside a group. One number at a time, so that brokers do not take turns in blocks.
CREATE SEQUENCE IF NOT EXISTS bunqueue.group_order AS int8 CACHE 1;

-- Owners of deduplication keys. windowed: the key stays taken until it expires, whatever becomes of its owner.
CREATE TABLE IF NOT EXISTS bunqueue.keys (
    queue_id int4 NOT NULL,
    key text COLLATE "C" NOT NULL,
    job_id text COLLATE "C" NOT NULL,
    expires_at int8,
    windowed bool NOT NULL DEFAULT false,
    PRIMARY KEY (queue_id, key)
);

-- Which job waits for the last of the adds under a debounce id. A row may outlive the waiting of its job: the job's own row decides.
CREATE TABLE IF NOT EXISTS bunqueue.debounces (
    queue_id int4 NOT NULL,
    key text COLLATE "C" NOT NULL,
    job_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (queue_id, key)
);

-- Which live job waits, or waited, for which: rows live as long as the waiting job, so that the completions that it needs are kept
-- (a completed job, or its proof, with a row here is pinned). met: that job has completed.
CREATE TABLE IF NOT EXISTS bunqueue.edges (
    ns int4 NOT NULL,
    dependency_id text COLLATE "C" NOT NULL,
    job_id text COLLATE "C" NOT NULL,
    met bool NOT NULL,
    PRIMARY KEY (ns, dependency_id, job_id)
);
CREATE INDEX IF NOT EXISTS edges_job ON bunqueue.edges (ns, job_id);

-- Which job follows a completed repeat job, so that new data for that one reaches the one that will run.
CREATE TABLE IF NOT EXISTS bunqueue.successors (
    ns int4 NOT NULL,
    id text COLLATE "C" NOT NULL,
    successor text COLLATE "C" NOT NULL,
    PRIMARY KEY (ns, id)
);

-- Failures of children that their parent's policy let it survive.
CREATE TABLE IF NOT EXISTS bunqueue.child_failures (
    ns int4 NOT NULL,
    parent_id text COLLATE "C" NOT NULL,
    child_id text COLLATE "C" NOT NULL,
    child_queue text NOT NULL,
    mode text NOT NULL,
    error bytea NOT NULL,
    PRIMARY KEY (ns, parent_id, child_id)
);

-- Completions whose job row is gone (removed on completion): an id here has been completed.
CREATE TABLE IF NOT EXISTS bunqueue.proofs (
    ns int4 NOT NULL,
    id text COLLATE "C" NOT NULL,
    queue_id int4 NOT NULL,
    completed_at int8 NOT NULL,
    result bytea,
    PRIMARY KEY (ns, id)
);
CREATE INDEX IF NOT EXISTS proofs_age ON bunqueue.proofs (ns, completed_at, id);

-- Logs of jobs: a short list each, packed.
CREATE TABLE IF NOT EXISTS bunqueue.logs (
    ns int4 NOT NULL,
    id text COLLATE "C" NOT NULL,
    lines bytea NOT NULL,
    PRIMARY KEY (ns, id)
);

-- Completed and failed jobs by minute; minute -1 holds the total.
CREATE TABLE IF NOT EXISTS bunqueue.metrics (
    queue_id int4 NOT NULL,
    type text NOT NULL,
    minute int8 NOT NULL,
    count int8 NOT NULL,
    latest_at int8 NOT NULL,
    PRIMARY KEY (queue_id, type, minute)
);

-- Readers of the outbox that brokers share: whoever holds the row reads on for all, from the snapshot that it remembers.
CREATE TABLE IF NOT EXISTS bunqueue.readers (
    ns int4 NOT NULL,
    name text NOT NULL,
    next_xid text NOT NULL,
    open text[] NOT NULL,
    PRIMARY KEY (ns, name)
);

-- Policies and positions of groups. last_served orders the rotation; window and count are those of the rate limit.
CREATE TABLE IF NOT EXISTS bunqueue.groups (
    queue_id int4 NOT NULL,
    id text COLLATE "C" NOT NULL,
    paused bool NOT NULL DEFAULT false,
    concurrency int8,
    rate_max int8,
    rate_duration int8,
    blocked_until int8,
    window_at int8,
    window_max int8,
    window_duration int8,
    window_count int8 NOT NULL DEFAULT 0,
    last_served int8,
    PRIMARY KEY (queue_id, id)
);
CREATE SEQUENCE IF NOT EXISTS bunqueue.group_turn AS int8 CACHE 1;

-- Schedulers. definition: the columns of the core's table cron_jobs, packed; memory: what the core remembers of the last run.
CREATE TABLE IF NOT EXISTS bunqueue.schedules (
    ns int4 NOT NULL,
    name text COLLATE "C" NOT NULL,
    place int8 GENERATED ALWAYS AS IDENTITY,
    next_run int8 NOT NULL,
    definition bytea NOT NULL,
    memory bytea NOT NULL,
    PRIMARY KEY (ns, name)
);
CREATE INDEX IF NOT EXISTS schedules_due ON bunqueue.schedules (ns, next_run);

-- Webhooks; namespaces.webhooks_revision counts their changes, counters apart.
CREATE TABLE IF NOT EXISTS bunqueue.webhooks (
    ns int4 NOT NULL,
    id text COLLATE "C" NOT NULL,
    enabled bool NOT NULL,
    record bytea NOT NULL,
    successes int8 NOT NULL DEFAULT 0,
    failures int8 NOT NULL DEFAULT 0,
    last_success_at int8,
    PRIMARY KEY (ns, id)
);

-- Live brokers and the fence of each broker id: whoever holds the row's session is the broker of that name. version: of the schema
-- that the broker knows. A migration ends all sessions, and brokers of older versions cannot register again.
CREATE TABLE IF NOT EXISTS bunqueue.brokers (
    ns int4 NOT NULL,
    broker_id text COLLATE "C" NOT NULL,
    session uuid NOT NULL,
    started_at int8 NOT NULL,
    heartbeat_at int8 NOT NULL,
    version int4 NOT NULL,
    PRIMARY KEY (ns, broker_id)
);

-- Workers that brokers have registered, for everybody to see. session: of the broker that keeps the row; seen_at: last sign of life.
-- Not logged: what a crash of the database loses is written again within the workers' next heartbeat.
CREATE UNLOGGED TABLE IF NOT EXISTS bunqueue.workers (
    ns int4 NOT NULL,
    id text COLLATE "C" NOT NULL,
    session uuid NOT NULL,
    seen_at int8 NOT NULL,
    record bytea NOT NULL,
    PRIMARY KEY (ns, id)
);

-- The outbox: one row a statement, queue and kind of event, written in the transaction that makes it true. Readers follow it in
-- commit order by transaction snapshots (see events.py); notifications only wake them. size: its events that are kept; skipped: the
-- first ones of extra whose events were pruned.
CREATE TABLE IF NOT EXISTS bunqueue.events (
    id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at int8 NOT NULL,
    ns int4 NOT NULL,
    queue_id int4 NOT NULL,
    size int4 NOT NULL,
    skipped int4 NOT NULL DEFAULT 0,
    type text NOT NULL,
    ids text[] NOT NULL,
    extra bytea
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 1
);
CREATE INDEX IF NOT EXISTS events_feed ON bunqueue.events (ns, xid, id);
CREATE INDEX IF NOT EXISTS events_retention ON bunqueue.events (queue_id, id);
