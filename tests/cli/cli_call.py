"""The shape of the fixture that runs the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str


class Call(Protocol):
    """Runs ``bunqueue`` with arguments."""

    def __call__(self, *arguments: str) -> Outcome: ...
