"""docs/reference/cli.md: every command with its help text, as `--help` prints it."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tools.docs.markdown import block, page
from wrasse.cli.main import wrasse as main

INTRO = """\
What `--help` prints for every command. `--json` writes one JSON document to stdout wherever it is offered; logs go to
stderr. Exit codes: 0 done, 1 failed, 2 usage, 3 refused for safety."""
WIDTH = 100


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command by its full name, groups before what is in them."""
    return _below(main, "wrasse", None)


def _below(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name.rsplit(" ", 1)[-1], parent=parent)
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found, f"{name} lists {inner} and does not have it"
            if not found.hidden:
                yield from _below(found, f"{name} {inner}", context)


def render() -> str:
    """The page."""
    return page("Command line", INTRO, (part for name, command in commands() for part in _entry(name, command)))


def _entry(name: str, command: click.Command) -> list[str]:
    *before, last = name.split(" ")
    help_names = main.context_settings["help_option_names"]
    parent = click.Context(main, info_name=" ".join(before)) if before else None
    context = click.Context(
        command,
        info_name=last,
        parent=parent,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=help_names,
    )
    return [f"## {name}", block(click.unstyle(command.get_help(context)))]
