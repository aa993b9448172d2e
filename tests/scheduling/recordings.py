"""Recorded scenarios of the wire tests, whose notes hold expectations about schedules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_RECORDINGS = Path(__file__).parents[1] / "oracle" / "golden"


def recorded(scenario: str) -> list[Any]:
    """The notes of a recorded scenario, in order."""
    entries = json.loads((_RECORDINGS / f"{scenario}.json").read_text())
    return [entry["note"] for entry in entries if "note" in entry]
