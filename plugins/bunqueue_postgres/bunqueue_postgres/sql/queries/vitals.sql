-- How the database is: age of the oldest transaction in this database (seconds; of other users' sessions only what may be seen), age of
-- the oldest snapshot that keeps dead rows from being removed (in transactions), age of the database's oldest row (in transactions);
-- of jobs and events: dead rows and last vacuum (epoch seconds, 0: never), and rows of the outbox, all as the statistics say; number of
-- schedulers, webhooks, and those that are switched on. Locks nothing.
SELECT
    coalesce((
        SELECT extract(epoch FROM max(clock_timestamp() - a.xact_start))
        FROM pg_stat_activity a WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
    ), 0)::float8,
    coalesce((
        SELECT max(held.age) FROM (
            SELECT age(a.backend_xmin) FROM pg_stat_activity a
            WHERE (a.datname = current_database() OR a.datname IS NULL) AND a.pid <> pg_backend_pid()
            UNION ALL
            SELECT age(s.xmin) FROM pg_replication_slots s
            UNION ALL
            SELECT age(p.transaction) FROM pg_prepared_xacts p WHERE p.database = current_database()
        ) AS held (age)
    ), 0)::int8,
    (SELECT age(d.datfrozenxid) FROM pg_database d WHERE d.datname = current_database())::int8,
    pg_stat_get_dead_tuples('bunqueue.jobs'::regclass),
    pg_stat_get_dead_tuples('bunqueue.events'::regclass),
    coalesce(extract(epoch FROM greatest(
        pg_stat_get_last_vacuum_time('bunqueue.jobs'::regclass), pg_stat_get_last_autovacuum_time('bunqueue.jobs'::regclass)
    )), 0)::float8,
    coalesce(extract(epoch FROM greatest(
        pg_stat_get_last_vacuum_time('bunqueue.events'::regclass), pg_stat_get_last_autovacuum_time('bunqueue.events'::regclass)
    )), 0)::float8,
    pg_stat_get_live_tuples('bunqueue.events'::regclass),
    (SELECT count(*) FROM bunqueue.schedules s WHERE s.ns = $1::int4),
    (SELECT count(*) FROM bunqueue.webhooks w WHERE w.ns = $1::int4),
    (SELECT count(*) FROM bunqueue.webhooks w WHERE w.ns = $1::int4 AND w.enabled)
