"""What plugin authors and users need to test with: a settable clock, repeatable ids, a broker that stands still with the clock, a
journal in memory, the conformance kit.

The kit (:mod:`bunqueue_core.testing.conformance`) needs pytest and is imported by its own name only, so that this package costs
nothing where pytest is not installed.
"""

from bunqueue_core.testing.clock import SettableClock, deterministic_ports
from bunqueue_core.testing.journal import DictJournal
from bunqueue_core.testing.manual import manual_broker

__all__ = ["DictJournal", "SettableClock", "deterministic_ports", "manual_broker"]

for _public in (SettableClock, deterministic_ports, DictJournal, manual_broker):
    _public.__module__ = __name__
del _public
