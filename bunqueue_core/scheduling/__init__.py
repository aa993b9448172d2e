"""When schedulers and repeat jobs run: kinds of schedule, definitions, and the decisions at each run. Pure code, no timers."""

from __future__ import annotations

from bunqueue_core.scheduling.kinds import KINDS

__all__ = ["KINDS"]
