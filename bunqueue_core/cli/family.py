"""A family of subcommands (``bunqueue config …``): what is missing or unknown is said the same way in each."""

from __future__ import annotations

import click

from bunqueue_core.cli.output import Failure


class Family(click.Group):
    """A click group whose errors name the subcommands there are."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; without any argument the error lists the subcommands."""
        if not args:
            # The two families of limits have always said whose subcommand is missing.
            whose = f" for {self.name}" if self.name in ("rate-limit", "concurrency") else ""
            raise Failure(f"Missing subcommand{whose}. Use: {', '.join(self.list_commands(ctx))}", exit_code=2)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; an unknown subcommand's error lists those there are."""
        if self.get_command(ctx, args[0]) is None:
            names = ", ".join(self.list_commands(ctx))
            raise Failure(f"Unknown {self.name} subcommand: {args[0]}. Use: {names}", exit_code=2)
        return super().resolve_command(ctx, args)
