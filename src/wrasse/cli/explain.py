"""wrasse explain: everything known about a job, a lease, a stream or a run, and what happens next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import click
from msgspec.structs import replace

from wrasse.cli.context import CommandContext, finish, with_context
from wrasse.cli.jobs.inspect import show_record
from wrasse.cli.journal import LINE_COLUMNS, line_row
from wrasse.cli.leases.inspect import invalid_json
from wrasse.cli.output import show_pairs, show_table
from wrasse.errors import StoreBroken, UsageError
from wrasse.leases.lease import Lease
from wrasse.leases.names import DEFAULT_NAMESPACE, BadName, checked_key
from wrasse.observability.json_format import ago, line_json, record_json
from wrasse.ports.jobs import JobRecord
from wrasse.ports.journal import Line, LineFilter
from wrasse.runtime.backends import Stores
from wrasse.runtime.forecast import StreamOutlook, outlook, stream_outlook
from wrasse.runtime.open_ports import ENGINE, JOBS, LEASES, RECORDS, STREAMS, OpenPorts, open_homes

LINES = 50


@click.command()
@click.argument("id")
@with_context
def explain(ctx: CommandContext, id: str) -> None:
    """Explain an ID: of a job or a run, the key of a lease, or the subject of a stream. Its state, what sweeps did to
    it and why, and what happens next.

    \b
    Examples:
      wrasse explain resize-a
      wrasse explain orders/42 --json
      wrasse explain gbe.events.audit.change
    """
    finish(_explain(ctx, id))


async def _explain(ctx: CommandContext, id: str) -> None:
    config = ctx.config()
    async with Stores.of(config.settings.worker, create=False) as stores:
        where = config.homes
        needs = [port for port in (JOBS, RECORDS) if where.serves(port)]
        opened = await open_homes(config, stores, ENGINE, *(LEASES if port == RECORDS else port for port in needs))
        record = await opened.queue.get(id) if JOBS in needs else None
        lease = await _lease(opened, id) if RECORDS in needs else None
        about = await _lines(opened, LineFilter(suspect=id))
        of_run = await _lines(opened, LineFilter(run=id))
        now = (await (opened.jobs if JOBS in needs else opened.engine).health_sample()).at
        next_lines = await outlook(record, config.settings, opened.queue, now) if record is not None else ()
        known = record is not None or (isinstance(lease, Lease) and lease.owner)
        stream = await stream_outlook(config, stores, id) if not known and where.serves(STREAMS) else None
    lines = (*about, *of_run)
    if record is None and lease is None and stream is None and not lines:
        raise UsageError(
            f"nothing is known about {id!r}: no job, lease, stream or run has this name, and no sweep has touched it",
            do="see what there is: `wrasse jobs list`, `wrasse streams info`, `wrasse journal`",
        )
    answer = {
        "id": id,
        "job": None if record is None else record_json(record),
        "lease": _lease_json(lease, id),
        "stream": None if stream is None else stream.plain(),
        "journal": [line_json(line) for line in lines],
        "next": list(next_lines if stream is None else stream.next),
    }
    if stream is None:
        ctx.answer(answer, lambda: _text(id, record, lease, lines, next_lines, now))
    else:
        ctx.answer(answer, lambda: _stream_text(stream, lines, now))


def _stream_text(stream: StreamOutlook, lines: Sequence[Line], now: datetime) -> None:
    show_pairs(stream.pairs())
    _show_journal(lines, stream.next, now)


async def _lease(opened: OpenPorts, key: str) -> Lease | StoreBroken | None:
    """The lease of this key of the default namespace, without an owner if it is free; None if there is no such key; an
    error if its record cannot be read."""
    assert opened.leasing is not None, "the lease port is open"
    leases = opened.leasing.leases
    try:
        meta = await leases.describe(DEFAULT_NAMESPACE, checked_key(key))
    except BadName:
        return None
    except StoreBroken as broken:
        return broken
    if meta is None:
        return None
    now, lease = await leases.now(DEFAULT_NAMESPACE), meta.lease
    if lease is None or lease.expires_at <= now:
        lease = Lease("", "", meta.token, now, "")
    return replace(lease, key=key)


async def _lines(opened: OpenPorts, where: LineFilter) -> Sequence[Line]:
    return (await opened.journal.page(where, None, LINES, newest=True)).items


def _lease_json(lease: Lease | StoreBroken | None, id: str) -> Mapping[str, object] | None:
    if not isinstance(lease, Lease):
        return None if lease is None else invalid_json(id, DEFAULT_NAMESPACE, lease)
    leased = bool(lease.owner)
    return {
        "key": lease.key,
        "owner": lease.owner if leased else None,
        "token": lease.token,
        "expires_at": lease.expires_at if leased else None,
    }


def _text(
    id: str,
    record: JobRecord | None,
    lease: Lease | StoreBroken | None,
    lines: Sequence[Line],
    next_lines: Sequence[str],
    now: datetime,
) -> None:
    if record is not None:
        show_record(record, now)
    if isinstance(lease, StoreBroken):
        show_pairs([*invalid_json(id, DEFAULT_NAMESPACE, lease).items()])
    elif lease is not None:
        ends = ago(lease.expires_at, now) if lease.owner else ""
        owner = lease.owner or "none: the key is free"
        show_pairs([("lease", lease.key), ("owner", owner), ("token", lease.token), ("ends", ends)])
    _show_journal(lines, next_lines, now, untouched=record is not None)


def _show_journal(lines: Sequence[Line], next_lines: Sequence[str], now: datetime, *, untouched: bool = True) -> None:
    if lines:
        show_table(LINE_COLUMNS, [line_row(line, now) for line in lines], title="journal")
    elif untouched:
        click.echo("journal: no sweep has touched it")
    for line in next_lines:
        click.echo(f"{click.style('next', bold=True)}  {line}")
