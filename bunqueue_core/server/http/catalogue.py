"""Names of events as streams show them, and the patterns by which WebSocket clients choose among them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

#: Job events whose public name is not ``job:`` and their type.
_OTHER_NAMES: Final = {"pulled": "job:active", "drained": "queue:drained"}

#: Names that can be subscribed to one by one, by family. Others can be had through their family or ``*``.
FAMILIES: Final[dict[str, tuple[str, ...]]] = {
    "job": (
        "pushed",
        "active",
        "completed",
        "failed",
        "removed",
        "promoted",
        "progress",
        "delayed",
        "stalled",
        "retried",
        "discarded",
        "priority-changed",
        "data-updated",
        "delay-changed",
        "timeout",
        "lock-expired",
        "deduplicated",
        "waiting-children",
        "dependencies-resolved",
        "moved-to-delayed",
        "expired",
    ),
    "queue": (
        "created",
        "removed",
        "paused",
        "resumed",
        "drained",
        "cleaned",
        "obliterated",
        "counts",
        "idle",
        "threshold",
    ),
    "dlq": ("added", "retried", "retry-all", "purged", "auto-retried", "expired"),
    "flow": ("completed", "failed"),
    "cron": ("created", "updated", "deleted", "fired", "missed", "skipped"),
    "worker": ("connected", "disconnected", "heartbeat", "idle", "removed-stale", "overloaded", "error"),
    "ratelimit": ("set", "cleared", "hit", "rejected"),
    "concurrency": ("set", "cleared", "rejected"),
    "webhook": ("added", "removed", "fired", "failed", "enabled", "disabled"),
    "batch": ("pushed", "pulled"),
    "client": ("connected", "disconnected"),
    "auth": ("failed",),
    "cleanup": ("orphans-removed", "stale-deps-removed"),
    "health": ("status",),
    "stats": ("snapshot",),
    "storage": ("status", "backup-started", "backup-completed", "backup-failed", "size-warning"),
    "server": ("started", "shutdown", "recovered", "memory-warning"),
    "memory": ("compacted",),
    "config": ("stall-changed", "dlq-changed"),
}

#: Everything that a client may subscribe to.
PATTERNS: Final = frozenset(
    ("*", *(f"{family}:{name}" for family, names in FAMILIES.items() for name in (*names, "*")))
)


def public_name(type: str) -> str:
    """The name of a job event of that type."""
    return _OTHER_NAMES.get(type) or f"job:{type}"


def matches(patterns: Collection[str], name: str) -> bool:
    """Whether a client that subscribed to ``patterns`` wants the event ``name``."""
    return name in patterns or "*" in patterns or f"{name.partition(':')[0]}:*" in patterns
