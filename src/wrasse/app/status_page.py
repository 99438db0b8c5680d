"""The status page: plain HTML made here, whole and without anything from elsewhere; it reads well without scripts.

Every value is escaped where it is put in, since ids, kinds and errors are whatever somebody's program wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape

from wrasse import __version__
from wrasse.app.ago import ago
from wrasse.app.status import Snapshot
from wrasse.duration import format_duration
from wrasse.engine.loop import SweepStatus
from wrasse.engine.report import Report
from wrasse.ports.journal import Line

STYLE = """
:root { color-scheme: light dark; --ink: #1b2328; --soft: #5b6870; --line: #dde3e6; --page: #f6f8f9; --card: #fff;
        --good: #12805c; --warn: #a86400; --bad: #c0352b; --hold: #6b4fbb }
@media (prefers-color-scheme: dark) { :root { --ink: #e4eaed; --soft: #94a3ab; --line: #2b353b; --page: #12171a;
        --card: #1a2125; --good: #3ecf9b; --warn: #e8a33d; --bad: #ff7a6e; --hold: #b39dff } }
* { box-sizing: border-box }
body { margin: 0; background: var(--page); color: var(--ink);
       font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif }
header, main { max-width: 72rem; margin: 0 auto; padding: 0 1.25rem }
header { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; align-items: baseline; padding-top: 1.5rem }
h1 { font-size: 1.35rem; margin: 0; letter-spacing: -.01em } h2 { font-size: 1rem; margin: 0 0 .5rem }
header span, small, .soft { color: var(--soft) }
section { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: 1rem 1.1rem;
          margin: 1rem 0; overflow-x: auto }
table { border-collapse: collapse; width: 100% }
th { text-align: left; font-weight: 500; color: var(--soft); font-size: .85rem; white-space: nowrap }
th, td { padding: .3rem .8rem .3rem 0; vertical-align: top; border-bottom: 1px solid var(--line) }
tr:last-child td { border-bottom: 0 }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
code { font: .85rem/1.5 ui-monospace, "Cascadia Mono", Menlo, monospace; overflow-wrap: anywhere }
.good { color: var(--good) } .warn { color: var(--warn) } .bad { color: var(--bad) } .hold { color: var(--hold) }
.flat { margin: 0 } a { color: inherit }
.dot::before { content: "●"; margin-right: .4em }
"""

# Swaps the tables for newer ones every two seconds; without it the page is read once, like any other.
SCRIPT = """
setInterval(async () => {
  if (document.hidden) return;
  try {
    const answer = await fetch("/?part=main", {cache: "no-store"});
    if (answer.ok) document.querySelector("main").innerHTML = await answer.text();
    document.body.classList.toggle("stale", !answer.ok);
  } catch { document.getElementById("live").textContent = "this process does not answer"; }
}, 2000);
"""


def page(snapshot: Snapshot, nonce: str) -> str:
    """The whole page. `nonce` lets this one script run and no other."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>wrasse</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,"><style nonce="{nonce}">{STYLE}</style></head>
<body><header><h1>wrasse</h1><span>{escape(__version__)}</span><span>{escape(", ".join(snapshot.roles))}</span>
<span>{escape(snapshot.backend)}</span><span id="live">
<a href="/metrics">metrics</a> · <a href="/readyz">checks</a> · <a href="/status.json">json</a></span></header>
<main>{tables(snapshot)}</main><script nonce="{nonce}">{SCRIPT}</script></body></html>"""


def tables(snapshot: Snapshot) -> str:
    """What changes: everything below the title."""
    return "".join((_checks(snapshot), _queues(snapshot), _sweeps(snapshot), _workers(snapshot), _journal(snapshot)))


def _checks(snapshot: Snapshot) -> str:
    up = format_duration((snapshot.at - snapshot.started_at) // 1_000_000 * 1_000_000)
    shown = " &nbsp; ".join(
        f'<span class="dot {"good" if check.ok else "bad"}">{escape(check.name)}</span> '
        f'<span class="soft">{escape(check.detail)}</span>'
        for check in snapshot.checks
    )
    return f'<section><p class="flat">{shown} &nbsp; <span class="soft">up {up}</span></p></section>'


def _queues(snapshot: Snapshot) -> str:
    counts = snapshot.counts
    if counts is None:
        return _section("Queues", '<p class="bad">the backend does not answer</p>')
    rows = [
        (
            _code(each.queue), each.ready, each.delayed, each.held, each.done,
            f'<span class="bad">{each.dead}</span>' if each.dead else 0, escape(ago(each.oldest_ready_at, counts.at)),
        )
        for each in counts.queues
    ]  # fmt: skip
    columns = ("queue", "ready", "delayed", "held", "done", "dead", "oldest ready")
    return _section("Queues", _table(columns, rows, numbers=5, empty="No jobs yet: <code>wrasse jobs put</code>"))


def _sweeps(snapshot: Snapshot) -> str:
    rows = [
        (_code(each.name), _state(each, snapshot.at), _last(each.last, snapshot.at), _next(each, snapshot.at))
        for each in snapshot.sweeps
    ]
    return _section("Sweeps", _table(("sweep", "state", "last run", "next"), rows, empty="This process runs none."))


def _state(status: SweepStatus, now: datetime) -> str:
    if status.held is not None:
        since = ago(status.held.since, now)
        return f'<span class="dot hold">held by {escape(status.held.guard)}</span> since {escape(since)}<br>' + _soft(
            status.held.reason
        )
    if not status.enabled:
        return '<span class="dot soft">off</span>'
    if status.running:
        return '<span class="dot good">running</span>'
    if status.elsewhere:
        return f'<span class="dot good">running elsewhere</span><br>{_soft(status.elsewhere)}'
    if status.last is not None and not status.last.good:
        return f'<span class="dot bad">failed</span><br>{_soft(status.last.why)}'
    return '<span class="dot good">waiting</span>'


def _last(report: Report | None, now: datetime) -> str:
    if report is None:
        return '<span class="soft">none yet</span>'
    kept = ", ".join(f"{count} {reason}" for reason, count in report.kept.items())
    text = f"{report.seen} seen, {report.done} done, {report.lost} lost, {report.failed} failed"
    more = [f"kept: {kept}"] if kept else []
    more += [*report.notes, *report.errors]
    if report.stopped_by:
        more.append(f"stopped by {report.stopped_by}")
    return f"{escape(text)} {_soft(ago(report.ended_at, now))}" + "".join(f"<br>{_soft(each)}" for each in more)


def _next(status: SweepStatus, now: datetime) -> str:
    when = ago(status.next_at, now) if status.enabled else ""
    return f"{escape(when)} {_soft('every ' + format_duration(status.interval))}"


def _workers(snapshot: Snapshot) -> str:
    counts = snapshot.counts
    rows = []
    for each in () if counts is None else counts.workers:
        assert counts is not None, "workers come with counts"
        alive = each.until > counts.at
        state = '<span class="dot good">beating</span>' if alive else '<span class="dot bad">silent</span>'
        rows.append((_code(each.info.id), state, each.info.slots, escape(ago(each.beat_at, counts.at))))
    return _section("Workers", _table(("worker", "state", "slots", "last beat"), rows, empty="None beats."))


def _journal(snapshot: Snapshot) -> str:
    rows = [_line(line, snapshot.at) for line in snapshot.lines]
    empty = "Nothing has been swept yet."
    return _section("Journal", _table(("when", "sweep", "did", "to", "outcome", "why"), rows, empty=empty))


def _line(line: Line, now: datetime) -> tuple[str, ...]:
    intent = line.intent
    outcome = line.outcome.value if line.outcome is not None else "open"
    css = {"done": "good", "lost": "warn", "failed": "bad"}.get(outcome, "hold")
    many = f" {_soft(f'and {intent.count - 1} more')}" if intent.count > 1 else ""
    why = escape(intent.reason) + (f"<br>{_soft(line.detail)}" if line.detail else "")
    when = f'<span title="{escape(line.intended_at.isoformat())}">{escape(ago(line.intended_at, now))}</span>'
    shown = f'<span class="{css}">{escape(outcome)}</span>'
    return when, _code(intent.sweep), escape(intent.verb), _code(intent.suspect) + many, shown, why


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _table(
    columns: Sequence[str], rows: Sequence[Iterable[object]], *, numbers: int = 0, empty: str = "nothing"
) -> str:
    """Cells are HTML already. `numbers`: so many columns after the first are numbers."""
    if not rows:
        return f'<p class="soft flat">{empty}</p>'
    css = ["n" if 0 < index <= numbers else "" for index in range(len(columns))]
    head = "".join(f'<th class="{name}">{escape(text)}</th>' for name, text in zip(css, columns, strict=True))
    body = "".join(
        "<tr>" + "".join(f'<td class="{name}">{cell}</td>' for name, cell in zip(css, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _soft(text: str) -> str:
    return f'<span class="soft">{escape(text)}</span>'
