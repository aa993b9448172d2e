"""The statements, read from ``sql/``: one file a statement, with a header that says what it locks, in which order, by which index.

The text that is sent has no comments and no line breaks, so that the header costs nothing on the wire.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from importlib import resources

_COMMENT = re.compile(r"--[^\n]*")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Queries:
    """Every statement of ``sql/queries`` by its file's name, positional parameters ``$1``…"""

    ack: bytes
    ack_plain: bytes
    active: bytes
    add_child_failures: bytes
    add_edges: bytes
    add_levels: bytes
    add_metrics: bytes
    add_webhook: bytes
    beat: bytes
    behind: bytes
    blocked_count: bytes
    blockers: bytes
    bounds: bytes
    child_failures: bytes
    child_results: bytes
    claim: bytes
    claim_check: bytes
    claim_groups: bytes
    claim_keys: bytes
    clean: bytes
    clock: bytes
    complete: bytes
    completed_surplus: bytes
    count: bytes
    counts: bytes
    dead: bytes
    dead_due: bytes
    dead_surplus: bytes
    debounced: bytes
    delayed: bytes
    dependents: bytes
    drop_edges: bytes
    drop_schedule: bytes
    drop_webhook: bytes
    due_schedules: bytes
    due_times: bytes
    edges_of: bytes
    ended: bytes
    erase: bytes
    expire: bytes
    expired: bytes
    feed: bytes
    forget_child_failures: bytes
    forget_logs: bytes
    forget_queue: bytes
    forget_workers: bytes
    gated: bytes
    group: bytes
    group_sizes: bytes
    grouped: bytes
    held: bytes
    held_count: bytes
    hold_queue: bytes
    hold_reader: bytes
    journal: bytes
    key_owner: bytes
    key_owners: bytes
    lanes: bytes
    lifetime: bytes
    limits: bytes
    link_successors: bytes
    list: bytes
    lock: bytes
    lock_names: bytes
    lock_schedules: bytes
    meet_edges: bytes
    mend_due: bytes
    mend_edges: bytes
    mend_events: bytes
    mend_queues: bytes
    mend_silence: bytes
    metrics: bytes
    move_reader: bytes
    namespace: bytes
    next_expiry: bytes
    next_schedule: bytes
    note_debounces: bytes
    obliterate: bytes
    outcome_feed: bytes
    outcomes: bytes
    policies: bytes
    postpone: bytes
    priorities: bytes
    probe: bytes
    proved: bytes
    prune_events: bytes
    prune_proofs: bytes
    push: bytes
    push_named: bytes
    put_schedule: bytes
    queue: bytes
    queue_numbers: bytes
    queues: bytes
    read: bytes
    read_logs: bytes
    register_broker: bytes
    register_queues: bytes
    release_keys: bytes
    remove_key: bytes
    remove_queued: bytes
    rename_session: bytes
    renew: bytes
    retie: bytes
    rewrite: bytes
    schedule: bytes
    schedules: bytes
    serve_groups: bytes
    set_data: bytes
    set_group: bytes
    set_limits: bytes
    set_name: bytes
    set_paused: bytes
    set_policies: bytes
    set_progress: bytes
    share_workers: bytes
    silences: bytes
    snapshot: bytes
    spend_rate: bytes
    states: bytes
    successor: bytes
    sweep_groups: bytes
    sweep_keys: bytes
    sweep_remains: bytes
    switch_webhook: bytes
    tally_webhooks: bytes
    totals: bytes
    trim_events: bytes
    unmeet_edges: bytes
    unmet: bytes
    unregister_broker: bytes
    vitals: bytes
    waited_for: bytes
    waiters: bytes
    waiting_for: bytes
    webhooks: bytes
    webhooks_revision: bytes
    weigh: bytes
    workers: bytes
    write_logs: bytes


def compact(text: str) -> str:
    """``text`` without comments and line breaks. The statements hold neither ``--`` nor spaces of meaning in literals."""
    return _SPACE.sub(" ", _COMMENT.sub("", text)).strip()


def load_queries() -> Queries:
    """Read all statements.

    Raises:
        LookupError: a file is missing, or one is there that no field names.
    """
    folder = resources.files(__package__) / "sql" / "queries"
    found = {entry.name[:-4]: entry.read_text("utf-8") for entry in folder.iterdir() if entry.name.endswith(".sql")}
    named = {field.name for field in fields(Queries)}
    if found.keys() != named:
        raise LookupError(f"statements without file or name: {', '.join(sorted(found.keys() ^ named))}")
    return Queries(**{name: compact(text).encode() for name, text in found.items()})


def load_schema() -> str:
    """The statements that build the schema."""
    return (resources.files(__package__) / "sql" / "schema.sql").read_text("utf-8")


def load_migration(version: int) -> str:
    """The statements that change the tables from the version before to ``version``."""
    return (resources.files(__package__) / "sql" / "migrations" / f"{version}.sql").read_text("utf-8")
