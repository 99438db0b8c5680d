"""wrasse jobs enqueue: one job from an argument, a file or stdin, or one per line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

import click

from wrasse.cli.context import DURATION, CommandContext, finish, with_context
from wrasse.cli.payload import check_sources, fields_of, from_lines, one_payload, payload_of, pieces_of
from wrasse.clock import SystemClock
from wrasse.errors import UsageError, WrasseError
from wrasse.jobs.new_job import NewJob, made
from wrasse.jobs.producer import Enqueued, Producer
from wrasse.jobs.tally import Tally
from wrasse.ports.jobs import BATCH_MAX, PAYLOAD_BYTES_MAX, Job
from wrasse.runtime.backends import Stores
from wrasse.runtime.open_ports import JOBS, open_homes
from wrasse.runtime.worker import build_producer

SHOWN_MAX = 20
LINE_BYTES_MAX = 2 * PAYLOAD_BYTES_MAX
FIELDS = ("data", "payload_b64", "kind", "id", "queue", "priority", "delay", "timeout", "headers", "unique", "keep")


@click.command(context_settings={"allow_extra_args": True})
@click.argument("payload", required=False)
@click.option("--kind", default="", help="The kind, which selects the handler.")
@click.option("--id", help="The job's id; an existing id is not enqueued again.")
@click.option("--queue", help="The queue.  [default: that of the priority]")
@click.option("--priority", help="A name in worker.priorities.  [default: producer.default_priority]")
@click.option("--delay", type=DURATION, default="0s", help="Earliest start, from now.")
@click.option("--timeout", type=DURATION, help="How long its handler may run.  [default: worker.timeout]")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header; may be repeated.")
@click.option("--unique", default="", metavar="NAME", help="Not enqueued while a job of this name is not finished.")
@click.option("--window", type=DURATION, default="0s", help="With --unique: nor for this long after it was enqueued.")
@click.option("--keep", type=DURATION, help="How long its result is kept.  [default: worker.result_kept]")
@click.option("--file", "path", type=click.Path(dir_okay=False), help="Read the payload from this file; -: from stdin.")
@click.option("--lines", is_flag=True, help="One job per line of the file or stdin, the line being the payload.")
@click.option("--json-lines", is_flag=True, help=f"One job per line, as a JSON object with {', '.join(FIELDS)}.")
@with_context
def enqueue(
    ctx: CommandContext,
    payload: str | None,
    kind: str,
    id: str | None,
    queue: str | None,
    priority: str | None,
    delay: timedelta,
    timeout: timedelta | None,
    headers: Sequence[str],
    unique: str,
    window: timedelta,
    keep: timedelta | None,
    path: str | None,
    lines: bool,
    json_lines: bool,
) -> None:
    """Enqueue a job. The PAYLOAD is stored byte for byte; without one it is read from stdin.

    \b
    Examples:
      wrasse jobs enqueue --kind=resize '{"path": "a.png"}'
      wrasse jobs enqueue --kind=mail --delay=5m --id=welcome-42 --file=letter.txt
      find . -name '*.png' | wrasse jobs enqueue --kind=resize --lines
      wrasse jobs enqueue --json-lines --file=jobs.jsonl
    """
    _check_arguments(payload, click.get_current_context().args)
    check_sources(payload, path, lines=lines, json_lines=json_lines)
    if id is not None and (lines or json_lines):
        raise click.UsageError("one id cannot name many jobs\ndo: put ids into the lines with --json-lines")
    named = dict(_header(each) for each in headers)
    new = NewJob(kind, b"", priority, queue, delay, None, id, timeout, named, unique, window, keep)
    if lines or json_lines:
        finish(_enqueue(ctx, lambda producer: _many(producer, new, path, described=json_lines)))
    else:
        one = replace(new, data=one_payload(payload, path, PAYLOAD_BYTES_MAX))
        finish(_enqueue(ctx, lambda producer: iter([made(producer, one)])))


def _check_arguments(payload: str | None, more: Sequence[str]) -> None:
    """A second argument usually means that the first one is a kind, as in other tools."""
    if not more:
        return
    kind = payload if payload is not None and payload.isidentifier() else "KIND"
    raise click.UsageError(
        f"there are {len(more) + 1} arguments, and a job has one payload\n"
        f"do: name the kind with an option: wrasse jobs enqueue --kind={kind} PAYLOAD; quote a payload with spaces"
    )


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"the header {text!r} has no value", do="write --header name=value")
    return name, value


def _many(producer: Producer, new: NewJob, path: str | None, *, described: bool) -> Iterator[Job]:
    def job(line: bytes) -> Job:
        return made(producer, _described(new, line) if described else replace(new, data=line))

    return from_lines(path, job, what="jobs", bytes_max=LINE_BYTES_MAX, spaces=not described)


def _described(new: NewJob, line: bytes) -> NewJob:
    """A job with the fields of its line, which have precedence over the options."""
    fields = fields_of(line, FIELDS, '{"kind": ..., "data": ...}')
    given = {name: str(fields[name]) for name in ("kind", "unique", "delay") if name in fields}
    given |= {
        name: str(fields[name])
        for name in ("id", "queue", "priority", "timeout", "keep")
        if fields.get(name) is not None
    }
    headers = {**new.headers, **_headers(fields.get("headers"))}
    return replace(new, data=payload_of(fields), headers=headers, **given)  # type: ignore[arg-type]  # by name


def _headers(value: object) -> Mapping[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise UsageError("headers is not a map of texts", do='write "headers": {"name": "value"}')
    return value


async def _enqueue(ctx: CommandContext, jobs: Callable[[Producer], Iterator[Job]]) -> None:
    config, clock = ctx.config(), SystemClock()
    answers: list[Enqueued] = []
    count = known = 0
    try:
        async with Stores.of(config.settings.worker, clock) as stores:
            producer = build_producer(config.settings, await open_homes(config, stores, JOBS), clock, Tally())
            for piece in pieces_of(jobs(producer), BATCH_MAX, PAYLOAD_BYTES_MAX):
                for answer in await producer.enqueue_many(piece):
                    count, known = count + answer.new, known + (not answer.new)
                    if len(answers) < BATCH_MAX:
                        answers.append(answer)
    except WrasseError as why:
        if count:
            # Enqueuing all of them again would enqueue these twice.
            why.message = f"{why.message}; {count} jobs before it were enqueued and stay"
            why.do = why.do if isinstance(why, UsageError) else f"{why.do.partition(';')[0]}, then enqueue the rest"
        raise
    listed = [{"id": each.id, "new": each.new} for each in answers]
    ctx.answer({"enqueued": count, "known": known, "jobs": listed}, lambda: _tell(answers, count, known))


def _tell(answers: Sequence[Enqueued], count: int, known: int) -> None:
    if len(answers) <= SHOWN_MAX:
        for answer in answers:
            click.echo(f"{answer.id}" if answer.new else f"{answer.id} exists already and is not changed")
        return
    click.echo(f"enqueued {count} jobs" + (f"; {known} existed already" if known else ""))
