"""wrasse streams info: streams in numbers, and how far each group is."""

from __future__ import annotations

from collections.abc import Sequence

import click

from wrasse.app.ago import ago
from wrasse.app.cli_asked import Asked, asks, finish
from wrasse.app.cli_streams import opened
from wrasse.app.cli_table import show_table
from wrasse.app.plain import stream_json
from wrasse.clock import from_micros
from wrasse.ports.streams import EntryId, StreamState
from wrasse.ports.subjects import check_pattern


@click.command()
@click.argument("pattern", default=">")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000), help="Streams per page.")
@click.option("--after", help="Go on after this subject, which the last page gave.")
@asks
def info(asked: Asked, pattern: str, limit: int, after: str | None) -> None:
    """Show the streams that match PATTERN, all without one: length, size, age of the oldest entry, and for each group
    its floor (everything up to there is acked), what is pending, and what it has still to read.

    \b
    Examples:
      wrasse streams info
      wrasse streams info 'gbe.events.>' --json
    """
    check_pattern(pattern)
    finish(_info(asked, pattern, after, limit))


async def _info(asked: Asked, pattern: str, after: str | None, limit: int) -> None:
    async with opened(asked.config()) as store:
        page = await store.streams.subjects(pattern, after, limit)
        found = [state for subject in page if (state := await store.streams.info(subject)) is not None]
    asked.answer(
        {"streams": [stream_json(state) for state in found], "next": page.cursor},
        lambda: _tell(found, page.cursor),
    )


def _tell(found: Sequence[StreamState], more: str | None) -> None:
    if not found:
        click.echo("there is no such stream")
        return
    rows = [
        (state.subject, state.length, state.bytes, _age(state.first, state), state.appended, _age(state.last, state))
        for state in found
    ]
    show_table(("stream", "length", "bytes", "oldest", "ever", "newest"), rows)
    groups = [
        (state.subject, g.name, g.floor, g.pending, "" if g.lag is None else g.lag, g.consumers)
        for state in found
        for g in state.groups
    ]
    if groups:
        click.echo("")
        show_table(("stream", "group", "floor", "pending", "lag", "consumers"), groups)
    if more:
        click.echo(f"more: --after={more}")


def _age(id: EntryId | None, state: StreamState) -> str:
    return "" if id is None else ago(from_micros(id.ms * 1_000), state.at)
