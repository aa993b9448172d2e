"""The scheduler's decisions: what an upsert, a start and a due run mean. Pure: no I/O, no clock, no timers.

Whoever holds the schedulers (the in-process engine, or a driver in its own transaction) brings the time and carries out what is
decided. The interface, from the outside in:

* :class:`Scheduler` holds the entries of one broker. Its host keeps one deadline for each entry, at ``entry.next_run``, and stores
  an entry whenever a method says that it changed (``reader.to_row(entry)`` gives the row).

  - ``load(rows, now)`` once at start, after jobs were recovered;
  - ``upsert(request, now)``, ``remove(name)``, ``get(name)``, ``entries()`` for the commands;
  - ``run(name, now, has_worker)`` when an entry's deadline has come. It applies the decision and returns it: push
    ``decision.job`` to ``decision.queue`` if there is one, store or delete the row, set the next deadline. A push that is
    refused is a missed run: the run stays counted, the slot is over.

* :func:`decide` and :func:`settle` are the two halves of ``run`` for a host that keeps its entries elsewhere: make an entry of the
  locked row (``reader.from_row``), decide, push, settle, write the row back, all in one transaction.

How a due run is decided, in this order:

=====================================================================  =======================================================
if                                                                     then
=====================================================================  =======================================================
it has had ``maxLimit`` runs                                           it is removed, with its row
``skipIfNoWorker`` and no active worker has the queue                  skipped (``no-worker``); not counted
it ran out of turn less than 0.8 intervals before this slot            skipped (``overlap``); not counted
otherwise                                                              fires; counted even if the job is a duplicate
=====================================================================  =======================================================

In every case but the first the next run is set: the first slot after now, on an interval's own grid. Several slots that have
passed are made up for by one run. A run is *out of turn* when it is the one at creation (``immediately``) or comes so late that
at least one more slot has passed meanwhile; the run of a slot that follows such a one closely would be the same run twice. The
interval is the schedule's own around that slot, for expressions at most a minute, so that a daily run is not lost to a late one
an hour before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from bunqueue_core.model.errors import ConfigurationError, NotFound, ValidationError
from bunqueue_core.model.job import JobSpec
from bunqueue_core.scheduling.definition import Definition, DefinitionReader, Entry, StoredScheduleError, Upsert
from bunqueue_core.scheduling.kinds import MAX_PREVIEW, AnchoredSchedule, following_run, upcoming_runs

#: Part of the interval within which a slot after an unscheduled run counts as the same run.
DUPLICATE_FRACTION: Final = 0.8

#: Longest interval that this is a part of, for schedules by the clock, ms.
MAX_DUPLICATE_INTERVAL_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Decision:
    """What a due run comes to.

    Attributes:
        action: ``fire`` (push ``job``), ``skip`` or ``remove``.
        name: of the scheduler.
        queue: where its job goes.
        slot: the time that the run was meant for, epoch ms.
        next_run: when the next one is due, epoch ms; None if there is none, then the entry and its row go.
        job: the job to push, when it fires.
        reason: why it is skipped.
        out_of_turn: the run at creation, or one so late that other slots have passed.
    """

    action: Literal["fire", "skip", "remove"]
    name: str
    queue: str
    slot: int
    next_run: int | None
    job: JobSpec | None = None
    reason: Literal["no-worker", "overlap"] | None = None
    out_of_turn: bool = False

    @property
    def removes(self) -> bool:
        """The entry has no further run: it is gone, and its row is to be deleted."""
        return self.next_run is None


class Upserted(NamedTuple):
    """What an upsert came to.

    ``changed`` is False when the definition is the one that was there: then nothing is stored, set or announced. ``displaced`` is a
    unique key in the entry's queue whose job, if it is still queued, is to be deleted.
    """

    entry: Entry
    created: bool
    changed: bool
    displaced: str | None


class Loaded(NamedTuple):
    """What a start came to: entries whose next run was moved (store them), names whose schedule has ended (delete their rows)."""

    moved: list[Entry]
    ended: list[str]


def decide(entry: Entry, now: int, has_worker: Callable[[str], bool]) -> Decision:
    """Decide the run of ``entry`` that is due at ``now`` (epoch ms). Changes nothing.

    Args:
        entry: with ``next_run`` at or before ``now``.
        now: epoch ms.
        has_worker: whether an active worker is registered for that queue; asked only where it matters.
    """
    definition = entry.definition
    name, queue, slot = definition.name, definition.queue, entry.next_run
    if entry.exhausted:
        return Decision("remove", name, queue, slot, None)
    following, passed = following_run(definition.timing, slot, now)
    if definition.skip_if_no_worker and not has_worker(queue):
        return Decision("skip", name, queue, slot, following, reason="no-worker")
    unscheduled = entry.unscheduled_run
    if unscheduled is not None and slot - unscheduled < _duplicate_window(entry):
        return Decision("skip", name, queue, slot, following, reason="overlap")
    return Decision("fire", name, queue, slot, following, definition.job(), out_of_turn=passed or entry.immediate)


def settle(entry: Entry, decision: Decision, now: int) -> None:
    """Make ``entry`` what ``decision``, taken at the same ``now`` (epoch ms), says it is."""
    if decision.action == "fire":
        entry.executions += 1
        entry.unscheduled_run = now if decision.out_of_turn else None
    if not entry.immediate:
        entry.previous_slot = decision.slot
    entry.immediate = False
    if decision.next_run is not None:
        entry.next_run = decision.next_run


def _duplicate_window(entry: Entry) -> float:
    """How long before the slot at hand a run out of turn stands for it too, ms."""
    slot = entry.next_run
    # The slot after this one, even if it has passed: the next run of one that is noticed late says nothing of the interval.
    following = entry.definition.timing.next_after(slot)
    distances = []
    if following is not None:
        distances.append(following - slot)
    if entry.previous_slot is not None:
        distances.append(slot - entry.previous_slot)
    interval = min(distances, default=0)
    if not isinstance(entry.definition.timing, AnchoredSchedule):
        interval = min(interval, MAX_DUPLICATE_INTERVAL_MS)
    return DUPLICATE_FRACTION * interval


def make_entry(upsert: Upsert, now: int) -> Entry:
    """A new scheduler, created at ``now`` (epoch ms).

    Raises:
        ValidationError: its schedule has no run any more.
    """
    definition = upsert.definition
    entry = Entry(definition, _first_run(definition, now))
    if upsert.immediately:
        entry.next_run = now
        entry.immediate = True
    return entry


def apply_upsert(entry: Entry, upsert: Upsert, now: int) -> bool:
    """Give an existing scheduler another definition: its runs so far still count, its next run starts over from ``now`` (epoch ms).

    Returns:
        False, with nothing changed, if the definition says the same as the present one.

    Raises:
        ValidationError: the new schedule has no run any more; nothing changed.
    """
    if entry.definition.same_as(upsert.definition):
        return False
    next_run = _first_run(upsert.definition, now)
    entry.definition = upsert.definition
    entry.next_run = next_run
    entry.immediate = False
    entry.previous_slot = entry.unscheduled_run = None
    return True


def apply_restart(entry: Entry, now: int) -> Literal["kept", "moved", "ended"]:
    """Apply what a definition says about runs that were missed while nobody was there.

    Without such a rule an overdue run stays due: one run, at once, makes up for all that were missed.

    Returns:
        ``kept``, ``moved`` (``next_run`` has changed) or ``ended`` (the run that was missed was the last; nothing changed).
    """
    definition = entry.definition
    if entry.next_run >= now or not (definition.skip_missed_on_restart or definition.skip_if_no_worker):
        return "kept"
    next_run = definition.timing.next_after(now)
    if next_run is None:
        return "ended"
    entry.next_run = next_run
    return "moved"


def preview(entry: Entry, count: int) -> list[int]:
    """The next ``count`` runs of a scheduler (epoch ms), beginning with one that is due; fewer if it ends, at most 1000."""
    limit = entry.definition.max_limit
    if limit is not None:
        count = min(count, limit - entry.executions)
    if count <= 0:
        return []
    return [entry.next_run, *upcoming_runs(entry.definition.timing, entry.next_run, min(count, MAX_PREVIEW) - 1)]


def _first_run(definition: Definition, now: int) -> int:
    first = definition.timing.next_after(now)
    if first is None:
        raise ValidationError("Cron job has no future occurrences")
    return first


class Scheduler:
    """The schedulers of one broker, by name, in the order of their creation. See the module's head.

    Args:
        reader: reads requests and rows.
    """

    __slots__ = ("_entries", "reader")

    def __init__(self, reader: DefinitionReader) -> None:
        self.reader = reader
        self._entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def pending(self) -> int:
        """Schedulers that still have runs to make."""
        return sum(not entry.exhausted for entry in self._entries.values())

    def entries(self) -> list[Entry]:
        """All of them, oldest first; an upsert keeps the place."""
        return list(self._entries.values())

    def get(self, name: Any) -> Entry:
        """The scheduler of that name.

        Raises:
            NotFound: ``Cron job not found``.
        """
        entry = self._entries.get(name) if isinstance(name, str) else None
        if entry is None:
            raise NotFound("Cron job not found")
        return entry

    def load(self, rows: Iterable[Sequence[Any]], now: int) -> Loaded:
        """Take over the stored schedulers, all or none, and apply the rules for missed runs.

        Raises:
            ConfigurationError: stored schedules that cannot be used, all of them at once.
        """
        entries, problems = [], []
        for row in rows:
            try:
                entries.append(self.reader.from_row(row))
            except StoredScheduleError as error:
                problems.append(str(error))
        if problems:
            raise ConfigurationError(problems)
        loaded = Loaded([], [])
        self._entries = {}
        for entry in entries:
            fate = apply_restart(entry, now)
            if fate == "ended":
                loaded.ended.append(entry.definition.name)
                continue
            self._entries[entry.definition.name] = entry
            if fate == "moved":
                loaded.moved.append(entry)
        return loaded

    def upsert(self, request: Mapping[str, Any], now: int) -> Upserted:
        """Create the scheduler that a ``Cron`` request describes, or give the one of that name its definition.

        Raises:
            ValidationError: the first violation; nothing changed.
        """
        upsert = self.reader.read(request)
        definition = upsert.definition
        entry = self._entries.get(definition.name)
        created = entry is None
        if entry is None:
            entry = self._entries[definition.name] = make_entry(upsert, now)
        elif not apply_upsert(entry, upsert, now):
            return Upserted(entry, False, False, None)
        return Upserted(entry, created, True, definition.job_key if upsert.replaces_queued else None)

    def remove(self, name: Any) -> Entry:
        """Forget a scheduler; jobs that it has made stay.

        Raises:
            NotFound: ``Cron job not found``.
        """
        entry = self.get(name)
        del self._entries[entry.definition.name]
        return entry

    def run(self, name: str, now: int, has_worker: Callable[[str], bool]) -> Decision | None:
        """Decide and apply the run that is due; None if there is none (the scheduler is gone, or was moved meanwhile).

        Args:
            name: of the scheduler whose deadline has come.
            now: epoch ms.
            has_worker: whether an active worker is registered for a queue.
        """
        entry = self._entries.get(name)
        if entry is None or entry.next_run > now:
            return None
        decision = decide(entry, now, has_worker)
        settle(entry, decision, now)
        if decision.removes:
            del self._entries[name]
        return decision

    def preview_request(self, request: Mapping[str, Any], now: int, count: int) -> list[int]:
        """The runs that a ``Cron`` request would lead to if it were sent at ``now`` (epoch ms) under a new name.

        Raises:
            ValidationError: as :meth:`upsert`.
        """
        return preview(make_entry(self.reader.read(request), now), count)
