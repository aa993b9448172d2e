"""The event sink ``tally``: how many events of each type each queue had, in a JSON file that is always whole.

.. code-block:: toml

    [[events.sinks]]
    type = "tally"
    path = "tally.json"
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bunqueue_core.model.errors import ConfigurationError
from bunqueue_core.model.requests import Event


class TallySink:
    """Counts events. What it missed because it was too slow is counted as ``dropped``.

    Args:
        path: the file; written anew after each batch, under another name first.
    """

    name = "tally"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._counts: Counter[str] = Counter()

    @classmethod
    def configured(cls, table: Mapping[str, Any]) -> TallySink:
        """The sink that a table of ``events.sinks`` asks for.

        Raises:
            ConfigurationError: the table has something else than ``path``, or no path.
        """
        path = table.get("path")
        unknown = sorted(set(table) - {"type", "path"})
        if not isinstance(path, str) or not path or unknown:
            problem = f"has the unknown key {unknown[0]}" if unknown else f"has path {path!r}"
            raise ConfigurationError(f"events.sinks: the sink 'tally' {problem}; it takes path, the name of a file")
        return cls(Path(path))

    def write(self, events: Sequence[Event]) -> None:
        """Take a batch. Whole or not at all: a batch that fails comes again."""
        counts = self._counts.copy()
        for event in events:
            if event.type == "dropped":
                counts["dropped"] += int((event.extra or {}).get("count", 1))
            else:
                counts[f"{event.queue} {event.type}"] += 1
        unfinished = self._path.with_name(self._path.name + ".part")
        unfinished.write_text(json.dumps(dict(sorted(counts.items())), indent=1), encoding="utf-8")
        unfinished.replace(self._path)
        self._counts = counts

    def close(self) -> None:
        """Everything is written already."""
