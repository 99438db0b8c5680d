"""A group of commands that are imported when they are used, and that answers a typing error with the nearest name."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Mapping

import click


class LazyGroup(click.Group):
    """Commands by name: where they live, as module:attribute (the attribute is the name unless it is given), and one
    line for the list."""

    def __init__(self, name: str, homes: Mapping[str, tuple[str, str]], *, about: str, examples: str) -> None:
        super().__init__(name, help=about, epilog=examples, no_args_is_help=True)
        self.homes = homes
        self.context_settings = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order a newcomer meets them."""
        return list(self.homes)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command, its module imported now."""
        if name not in self.homes:
            return None
        module, _, attribute = self.homes[name][0].partition(":")
        command = getattr(importlib.import_module(f"wrasse.app.{module}"), attribute or name)
        assert isinstance(command, click.Command), f"{name} is a command"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As usual, but an unknown name is answered with the nearest known one."""
        name = args[0]
        if name not in self.homes and not name.startswith("-"):
            near = difflib.get_close_matches(name, self.homes, n=1, cutoff=0.5)
            hint = f"write {near[0]!r}" if near else f"use one of: {', '.join(self.homes)}"
            raise click.UsageError(f"there is no command {name!r}\ndo: {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """As usual, but a reader of our output who has seen enough is no failure."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Python would complain once more when it closes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise click.exceptions.Exit(0) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, without importing any command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in self.homes.items()])
