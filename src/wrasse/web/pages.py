"""The status page: complete HTML generated here, without external resources; readable without scripts.

Every value is escaped, since ids, kinds and errors come from other programs. Payloads and results of jobs are not
shown. The script updates only what differs, from the same HTML that this file generates.

Rows and sections have a key, so that the script can distinguish a changed row from a new one. A time is written as its
instant; the text ("5s ago") is filled in here for `now`, or left to the script if `now` is None: then the same facts
give the same text, regardless of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape

from wrasse import __version__
from wrasse.duration import format_duration
from wrasse.engine.loop import SweepStatus
from wrasse.engine.report import Report
from wrasse.observability.json_format import ago, plain
from wrasse.ports.journal import Line
from wrasse.ports.streams import GroupState
from wrasse.web.snapshot import STUCK, ProcessSnapshot

ROWS_MAX = 100  # of one table; the rest is counted, and complete in /status.json
UNAVAILABLE = "its backend does not answer"
_FISH = (
    '<svg class="fish" viewBox="0 0 32 20" aria-hidden="true" focusable="false">'
    '<path d="M2 10C7 2 17 1 23 8l7-5c-2 5-2 9 0 14l-7-5C17 19 7 18 2 10z"/><circle cx="8.5" cy="8.5" r="1.4"/></svg>'
)


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column; `number` columns are right-aligned."""

    title: str
    number: bool = False


@dataclass(frozen=True, slots=True)
class HtmlRow:
    """A row: its key within the table, and its cells as HTML."""

    key: str
    cells: tuple[str, ...]


def section(key: str, title: str, body: str, *, wide: bool = True) -> str:
    """A section with its own heading. Two sections that are not wide stand side by side if there is space."""
    css = "wide" if wide else "half"
    return (
        f'<section data-key="{key}" class="{css}" aria-labelledby="{key}">'
        f'<h2 id="{key}">{escape(title)}</h2>{body}</section>'
    )


def table(title: str, columns: Sequence[Column], rows: Sequence[HtmlRow], *, empty: str, more: bool = False) -> str:
    """A table; on a phone a list of cards. Roles are explicit, since that layout removes the implicit ones."""
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


def _row(columns: Sequence[Column], css: Sequence[str], row: HtmlRow) -> str:
    cells = "".join(
        f'<td role="cell" data-label="{escape(column.title)}"{name}>{cell}</td>'
        for column, name, cell in zip(columns, css, row.cells, strict=True)
    )
    return f'<tr role="row" data-key="{escape(row.key)}">{cells}</tr>'


def code(text: str) -> str:
    """A name from another program."""
    # Long subjects wrap after a dot rather than within a word.
    return f"<code>{escape(text).replace('.', '.<wbr>')}</code>"


def soft(text: str) -> str:
    """Less important text."""
    return f'<span class="soft">{escape(text)}</span>'


def state(text: str, css: str) -> str:
    """A state: a word and a mark, not only a colour."""
    return f'<span class="state {css}">{escape(text)}</span>'


def moment(at: datetime | None, now: datetime | None, *, lasting: bool = False) -> str:
    """A time, shown as its age; with `lasting`, as a duration."""
    if at is None:
        return ""
    instant = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    form = ' data-lasting=""' if lasting else ""
    text = "" if now is None else ago(at, now).removesuffix(" ago" if lasting else "")
    title = at.strftime("%Y-%m-%d %H:%M:%S UTC")
    return f'<time datetime="{instant}" title="{title}"{form}>{escape(text)}</time>'


def size(count: int) -> str:
    """Bytes for people."""
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count} B"


def page(snapshot: ProcessSnapshot, now: datetime) -> str:
    """The whole page, as read without scripts."""
    about = " · ".join((__version__, ", ".join(snapshot.roles), snapshot.backend))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>wrasse</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<link rel="icon" href="/static/icon.svg" type="image/svg+xml"><link rel="stylesheet" href="/static/status.css">
<script src="/static/status.js" defer></script></head>
<body data-version="{escape(__version__)}" data-at="{escape(str(plain(now)))}">
<a class="skip" href="#main">To the tables</a><header><h1>{_FISH}wrasse</h1><p class="soft">{escape(about)}</p>
<nav aria-label="Other views"><a href="/metrics">metrics</a><a href="/readyz">checks</a>
<a href="/status.json">json</a></nav><p id="live" role="status" class="state">as of when it was loaded</p></header>
<main id="main" tabindex="-1">{tables(snapshot, now)}</main>
<p id="told" class="unseen" role="status" aria-live="polite"></p></body></html>
"""


def tables(snapshot: ProcessSnapshot, now: datetime | None = None) -> str:
    """The part that changes: everything below the title. Without `now`, times are left to the script."""
    view = _View(snapshot, now)
    parts = (_summary, _checks, _stuck, _shut, _queues, _workers, _sweeps, _leases, _streams, _journal)
    return "".join(part(view) for part in parts)


@dataclass(frozen=True, slots=True)
class _View:
    snapshot: ProcessSnapshot
    now: datetime | None

    def time(self, at: datetime | None, by: datetime | None = None, *, lasting: bool = False) -> str:
        """A time of our clock, or of a backend whose clock showed `by`."""
        if at is None:
            return ""
        # Whole seconds: differences in round-trip time are no change.
        offset = 0 if by is None else round((self.snapshot.at - by).total_seconds())
        return moment(at + timedelta(seconds=offset), self.now, lasting=lasting)


def _summary(view: _View) -> str:
    snapshot, counts = view.snapshot, view.snapshot.counts
    if counts is None:
        return ""
    alive = sum(each.deadline > counts.at for each in counts.workers)
    stuck, dead = len(snapshot.stuck), sum(each.dead for each in counts.queues)
    tiles = (
        ("ready", str(sum(each.ready for each in counts.queues)), ""),
        ("running", str(sum(each.running for each in counts.queues)), ""),
        ("stuck", f"{stuck}{'+' if stuck == STUCK else ''}", "bad" if stuck else ""),
        ("dead", str(dead), "bad" if dead else ""),
        ("workers", f"{alive} of {len(counts.workers)}", "bad" if alive < len(counts.workers) else ""),
    )
    html = "".join(
        f'<div data-key="{name}" class="tile {css}"><dt>{name}</dt><dd data-tell="{name}">{text}</dd></div>'
        for name, text, css in tiles
    )
    return f'<section data-key="summary" class="bare" aria-label="Summary"><dl class="tiles">{html}</dl></section>'


def _checks(view: _View) -> str:
    checks = "".join(
        f'<li data-key="{escape(each.name)}" data-tell="check">'
        f"{state(each.name, 'good' if each.ok else 'bad')} {soft(each.detail)}</li>"
        for each in view.snapshot.checks
    )
    up = f"<li>{soft('up')} {view.time(view.snapshot.started_at, lasting=True)}</li>"
    return f'<section data-key="checks" class="bare" aria-label="Checks"><ul class="checks">{checks}{up}</ul></section>'


def _stuck(view: _View) -> str:
    counts = view.snapshot.counts
    if counts is None or not view.snapshot.stuck:
        return ""
    rows = [
        HtmlRow(
            each.id,
            (code(each.id), code(each.queue), escape(each.kind), code(each.worker),
             view.time(each.heartbeat_at, counts.at), str(each.attempts), str(each.rescues)),
        )
        for each in view.snapshot.stuck
    ]  # fmt: skip
    texts = map(Column, ("job", "queue", "kind", "worker", "last heartbeat"))
    columns = (*texts, Column("attempts", True), Column("rescues", True))
    body = table("Stuck jobs", columns, rows, empty="", more=len(rows) == STUCK)
    return section("stuck", "Stuck: running on a worker without a heartbeat", body)


def _shut(view: _View) -> str:
    if not view.snapshot.shut:
        return ""
    rows = [
        HtmlRow(
            f"{each.queue} {each.worker}",
            (code(each.queue), state(each.state, "bad" if each.state == "open" else "warn"), code(each.worker),
             view.time(each.since, lasting=True)),
        )
        for each in view.snapshot.shut
    ]  # fmt: skip
    columns = tuple(map(Column, ("queue", "breaker", "of the worker", "for")))
    return section(
        "breakers", "Paused queues: too many of their jobs failed", table("Breakers", columns, rows, empty="")
    )


def _queues(view: _View) -> str:
    counts = view.snapshot.counts
    if counts is None:
        return _unavailable(view, "queues", "Queues")
    rows = [
        HtmlRow(
            each.queue,
            (code(each.queue), str(each.ready), str(each.scheduled), str(each.running), str(each.done),
             f'<span class="bad">{each.dead}</span>' if each.dead else "0", view.time(each.oldest_ready_at, counts.at)),
        )
        for each in counts.queues
    ]  # fmt: skip
    numbers = (Column(name, True) for name in ("ready", "scheduled", "running", "done", "dead"))
    columns = (Column("queue"), *numbers, Column("oldest ready"))
    empty = "No jobs yet: <code>wrasse jobs enqueue</code>"
    return section("queues", "Queues", table("Queues", columns, rows, empty=empty), wide=False)


def _workers(view: _View) -> str:
    counts = view.snapshot.counts
    if counts is None:
        return _unavailable(view, "workers", "Workers")
    # Dead ones first, since they need attention.
    rows = [
        HtmlRow(
            each.info.id,
            (code(each.info.id), state("alive", "good") if each.deadline > counts.at else state("dead", "bad"),
             str(each.info.slots), view.time(each.heartbeat_at, counts.at)),
        )
        for each in sorted(counts.workers, key=lambda each: each.deadline > counts.at)
    ]  # fmt: skip
    columns = (Column("worker"), Column("state"), Column("slots", True), Column("last heartbeat"))
    return section("workers", "Workers", table("Workers", columns, rows, empty="None is alive."), wide=False)


def _sweeps(view: _View) -> str:
    rows = [
        HtmlRow(each.name, (code(each.name), _state(view, each), _last(view, each.last), _next(view, each)))
        for each in view.snapshot.sweeps
    ]
    columns = tuple(map(Column, ("sweep", "state", "last run", "next")))
    return section("sweeps", "Sweeps", table("Sweeps", columns, rows, empty="This process runs none."))


def _state(view: _View, status: SweepStatus) -> str:
    if status.paused is not None:
        since = f"{soft('since')} {view.time(status.paused.since)}"
        return f"{state(f'paused by {status.paused.guard}', 'hold')} {since}<br>{soft(status.paused.reason)}"
    if not status.enabled:
        return state("off here", "soft")
    if status.running:
        return state("running", "good")
    if status.elsewhere:
        return f"{state('running elsewhere', 'good')}<br>{soft(status.elsewhere)}"
    if status.last is not None and not status.last.good:
        return f"{state('failed', 'bad')}<br>{soft(status.last.why)}"
    return state("waiting", "good")


def _last(view: _View, report: Report | None) -> str:
    if report is None:
        return soft("none yet")
    kept = ", ".join(f"{count} {reason}" for reason, count in report.kept.items())
    text = f"{report.seen} seen, {report.done} done, {report.conflict} in conflict, {report.failed} failed"
    more = [f"kept: {kept}"] if kept else []
    more += [*report.notes, *report.errors]
    if report.stopped_by:
        more.append(f"stopped by {report.stopped_by}")
    return f"{escape(text)} {view.time(report.ended_at)}" + "".join(f"<br>{soft(each)}" for each in more)


def _next(view: _View, status: SweepStatus) -> str:
    every = soft(f"every {format_duration(status.interval)}")
    return f"{view.time(status.next_at)}, {every}" if status.enabled and status.next_at else every


def _leases(view: _View) -> str:
    leases = view.snapshot.leases
    if leases is None:
        return _unavailable(view, "leases", "Leases")
    rows = [
        HtmlRow(
            each.key,
            (code(each.key), code(each.owner), code(str(each.token)),
             view.time(each.expires_at, leases.at)
             + ("" if leases.at < each.expires_at else f" {state('ended', 'warn')}")),
        )
        for each in leases.items
    ]  # fmt: skip
    columns = (Column("key"), Column("owner"), Column("token"), Column("expires"))
    body = table("Leases", columns, rows, empty="No key is leased.", more=leases.more)
    return section("leases", "Leases", body, wide=False)


def _streams(view: _View) -> str:
    streams = view.snapshot.streams
    if streams is None:
        return _unavailable(view, "streams", "Streams")
    rows = []
    for each in streams.items:
        newest = None if each.last is None else each.last.at
        groups = "<br>".join(_group(view, group, each.at) for group in each.groups) or soft("none")
        cells = (code(each.subject), str(each.length), size(each.bytes), view.time(newest, each.at), groups)
        rows.append(HtmlRow(each.subject, cells))
    columns = (Column("stream"), Column("length", True), Column("size", True), Column("newest"), Column("groups"))
    empty = "None yet: <code>wrasse streams publish</code>"
    return section("streams", "Streams", table("Streams", columns, rows, empty=empty, more=streams.more), wide=False)


def _group(view: _View, group: GroupState, at: datetime) -> str:
    if group.invalid:
        return f"{code(group.name)} {state('invalid', 'bad')} {soft(group.invalid)}"
    behind = "" if group.lag is None else f", {group.lag} to read"
    oldest = f" {soft('since')} {view.time(group.oldest_pending_at, at)}" if group.oldest_pending_at else ""
    return f"{code(group.name)} {group.pending} pending{oldest}{behind}"


def _journal(view: _View) -> str:
    rows = [_line(view, line) for line in view.snapshot.lines]
    columns = tuple(map(Column, ("when", "sweep", "did", "to", "outcome", "why")))
    return section("journal", "Journal", table("Journal", columns, rows, empty="No actions yet."))


def _line(view: _View, line: Line) -> HtmlRow:
    intent = line.intent
    outcome = line.outcome.value if line.outcome is not None else "open"
    css = {"done": "good", "conflict": "warn", "failed": "bad"}.get(outcome, "hold")
    many = f" {soft(f'and {intent.count - 1} more')}" if intent.count > 1 else ""
    why = escape(intent.reason) + (f"<br>{soft(line.detail)}" if line.detail else "")
    when = view.time(line.intended_at)
    cells = (when, code(intent.sweep), escape(intent.verb), code(intent.suspect) + many, state(outcome, css), why)
    return HtmlRow(intent.id, cells)


def _unavailable(view: _View, key: str, title: str) -> str:
    if key in view.snapshot.unused:
        return ""
    return section(key, title, f'<p class="bad">{UNAVAILABLE}</p>', wide=False)
