"""The command ``bunqueue``."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code.

    Args:
        arguments: what follows the program's name; None takes the process's own.
    """
    import sys

    from bunqueue_core.cli.app import run

    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


__all__ = ["main"]
