"""Tables and pairs for a person: with lines and colour on a terminal, plain columns elsewhere.

Values may come from untrusted jobs, so no markup or control characters in them are interpreted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import click

from wrasse.observability.json_format import plain

ID_CHARS = 26
STYLES = {
    "ok": "green", "done": "green", "ready": "cyan", "running": "yellow", "dead": "red", "fail": "red", "failed": "red",
    "warn": "yellow", "conflict": "yellow", "unknown": "magenta", "requeue": "yellow", "dead_letter": "red",
    "delete": "blue",
}  # fmt: skip


def show_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str = "",
    empty: str = "",
    after: str | None = None,
) -> None:
    """Writes the rows under their headings, or `empty` without rows. `after`: the cursor of the next page."""
    if not rows and empty:
        click.echo(empty)
        return
    _write_table(columns, rows, title)
    if after is not None:
        click.echo(f"more: --after={after}")


def show_facts(columns: Sequence[str], facts: Sequence[Mapping[str, object]], *, empty: str) -> None:
    """Writes these columns of a JSON answer, or `empty` without rows."""
    show_table(columns, [[_cell(each[name]) for name in columns] for each in facts], empty=empty)


def _cell(value: object) -> object:
    return ("no", "yes")[value] if isinstance(value, bool) else plain(value)


def _write_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str) -> None:
    texts = [[printable(cell) for cell in row] for row in rows]
    columns = [name.replace("_", " ") for name in columns]
    if sys.stdout.isatty():
        _rich(columns, texts, title)
        return
    if title:
        click.echo(title)
    widths = [max(len(cell) for cell in column) for column in zip(columns, *texts, strict=True)]
    for row in ([name.upper() for name in columns], *texts):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _rich(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", pad_edge=False)
    for place, name in enumerate(columns):
        # An id must not be wrapped, so that it can be copied, however narrow the terminal is.
        id_there = any(len(row[place]) == ID_CHARS for row in rows)
        table.add_column(name, overflow="fold", min_width=ID_CHARS if id_there else None)
    for row in rows:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    Console().print(table)


def show_pairs(pairs: Sequence[tuple[str, object]]) -> None:
    """Writes name and value, one pair per line; empty values are omitted."""
    texts = [(name, printable(value)) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in texts), default=0)
    for name, text in texts:
        click.echo(f"{click.style(name.ljust(width), bold=True)}  {text}")


def counted(count: int, thing: str) -> str:
    """1 job, 2 jobs."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def printable(value: object) -> str:
    """The value as one line that cannot move the cursor or end the line."""
    text = "" if value is None else str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Yields a function that advances the progress by a count."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task(what, total=total)
        yield lambda count: bar.update(line, advance=count)
