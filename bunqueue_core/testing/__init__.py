"""What plugin authors and users need to test with: a settable clock, repeatable ids, a journal in memory, the conformance kit.

The kit (:mod:`bunqueue_core.testing.conformance`) needs pytest and is imported by its own name only, so that this package costs
nothing where pytest is not installed.
"""

from bunqueue_core.testing.clock import SettableClock, deterministic_ports
from bunqueue_core.testing.journal import DictJournal

__all__ = ["DictJournal", "SettableClock", "deterministic_ports"]

for _public in (SettableClock, deterministic_ports, DictJournal):
    _public.__module__ = __name__
del _public
