"""The pieces of the status page: tables, times and states as HTML. Whatever comes in as text is escaped here.

Rows and sections carry a key, so that the script can tell a changed row from a new one. A time is written as the
instant it means; what a reader sees ("5s ago") is filled in here for `now`, or left to the script when `now` is None:
then the same facts give the same text, however much time has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

from wrasse.app.ago import ago

ROWS_MAX = 100  # of one table; what is more is counted, and whole in /status.json


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column; `number` ones stand to the right."""

    title: str
    number: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A row: its key within the table, and its cells, which are HTML already."""

    key: str
    cells: tuple[str, ...]


def section(key: str, title: str, body: str, *, wide: bool = True) -> str:
    """A part of the page under its own heading. Two that are not wide stand side by side where there is room."""
    css = "wide" if wide else "half"
    return (
        f'<section data-key="{key}" class="{css}" aria-labelledby="{key}">'
        f'<h2 id="{key}">{escape(title)}</h2>{body}</section>'
    )


def table(title: str, columns: Sequence[Column], rows: Sequence[Row], *, empty: str, more: bool = False) -> str:
    """A table; on a phone a list of cards. Roles are written out, since that layout takes away the built-in ones."""
    if not rows:
        return f'<p class="empty">{empty}</p>'
    css = [' class="n"' if column.number else "" for column in columns]
    head = "".join(
        f'<th role="columnheader" scope="col"{name}>{escape(column.title)}</th>'
        for name, column in zip(css, columns, strict=True)
    )
    body = "".join(_row(columns, css, row) for row in rows[:ROWS_MAX])
    left = len(rows) - ROWS_MAX
    note = f"and {left} more in /status.json" if left > 0 else "and more" if more else ""
    return (
        f'<table role="table" aria-label="{escape(title)}"><thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{body}</tbody></table>' + (f'<p class="empty">{note}</p>' if note else "")
    )


def _row(columns: Sequence[Column], css: Sequence[str], row: Row) -> str:
    cells = "".join(
        f'<td role="cell" data-label="{escape(column.title)}"{name}>{cell}</td>'
        for column, name, cell in zip(columns, css, row.cells, strict=True)
    )
    return f'<tr role="row" data-key="{escape(row.key)}">{cells}</tr>'


def code(text: str) -> str:
    """A name that somebody's program gave."""
    # Long subjects break behind a dot rather than within a word.
    return f"<code>{escape(text).replace('.', '.<wbr>')}</code>"


def soft(text: str) -> str:
    """What matters less."""
    return f'<span class="soft">{escape(text)}</span>'


def state(text: str, css: str) -> str:
    """A state: a word and a mark, never a colour alone."""
    return f'<span class="state {css}">{escape(text)}</span>'


def moment(at: datetime | None, now: datetime | None, *, lasting: bool = False) -> str:
    """An instant, shown as how long ago it was; `lasting`, as how long it has lasted."""
    if at is None:
        return ""
    instant = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    form = ' data-lasting=""' if lasting else ""
    text = "" if now is None else ago(at, now).removesuffix(" ago" if lasting else "")
    title = at.strftime("%Y-%m-%d %H:%M:%S UTC")
    return f'<time datetime="{instant}" title="{title}"{form}>{escape(text)}</time>'


def size(count: int) -> str:
    """Bytes as a person reads them."""
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count} B"
