"""wrasse jobs put: one job from an argument, a file or stdin, or one per line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import click

from wrasse.app.building import JOBS, build_producer, open_homes
from wrasse.app.cli_asked import DURATION, Asked, asks, finish
from wrasse.app.cli_input import check_sources, fields_of, from_lines, one_payload, payload_of
from wrasse.app.wiring import Stores
from wrasse.clock import SystemClock
from wrasse.duration import parse_duration
from wrasse.errors import UsageError, WrasseError
from wrasse.jobs.producer import Producer, Put
from wrasse.jobs.tally import Tally
from wrasse.ports.jobs import BATCH_MAX, PAYLOAD_BYTES_MAX, Job

SHOWN_MAX = 20
LINE_BYTES_MAX = 2 * PAYLOAD_BYTES_MAX
FIELDS = ("data", "payload_b64", "kind", "id", "queue", "priority", "delay", "timeout", "headers", "unique", "keep")


@dataclass(frozen=True, slots=True)
class Given:
    """What the options say about every job of this call."""

    kind: str
    id: str | None
    queue: str | None
    priority: str | None
    delay: timedelta
    timeout: timedelta | None
    headers: Mapping[str, str]
    unique: str
    window: timedelta
    keep: timedelta | None


@click.command(context_settings={"allow_extra_args": True})
@click.argument("payload", required=False)
@click.option("--kind", default="", help="Which handler does it.")
@click.option("--id", help="The job's id; an id that is known already is not put again.")
@click.option("--queue", help="The queue.  [default: that of the priority]")
@click.option("--priority", help="A name in worker.priorities.  [default: producer.default_priority]")
@click.option("--delay", type=DURATION, default="0s", help="Not before this much later.")
@click.option("--timeout", type=DURATION, help="How long its handler may take.  [default: worker.timeout]")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header; may be repeated.")
@click.option("--unique", default="", metavar="NAME", help="Not put while a job of this name is not finished.")
@click.option("--window", type=DURATION, default="0s", help="With --unique: nor for this long after its put.")
@click.option("--keep", type=DURATION, help="How long its result is kept.  [default: worker.result_kept]")
@click.option("--file", "path", type=click.Path(dir_okay=False), help="Read the payload from this file; -: from stdin.")
@click.option("--lines", is_flag=True, help="One job per line of the file or stdin, the line being the payload.")
@click.option("--json-lines", is_flag=True, help=f"One job per line, as a JSON object with {', '.join(FIELDS)}.")
@asks
def put(
    asked: Asked,
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
    """Put a job. The PAYLOAD is stored byte for byte; without one it is read from stdin.

    \b
    Examples:
      wrasse jobs put --kind=resize '{"path": "a.png"}'
      wrasse jobs put --kind=mail --delay=5m --id=welcome-42 --file=letter.txt
      find . -name '*.png' | wrasse jobs put --kind=resize --lines
      wrasse jobs put --json-lines --file=jobs.jsonl
    """
    _check_arguments(payload, click.get_current_context().args)
    check_sources(payload, path, lines=lines, json_lines=json_lines)
    if id is not None and (lines or json_lines):
        raise click.UsageError("one id cannot name many jobs\ndo: put ids into the lines with --json-lines")
    named = dict(_header(each) for each in headers)
    given = Given(kind, id, queue, priority, delay, timeout, named, unique, window, keep)
    if lines or json_lines:
        finish(_put(asked, lambda producer: _many(producer, given, path, described=json_lines)))
    else:
        data = one_payload(payload, path, PAYLOAD_BYTES_MAX)
        finish(_put(asked, lambda producer: iter([_job(producer, given, data)])))


def _check_arguments(payload: str | None, more: Sequence[str]) -> None:
    """More than one argument is most likely a kind, as in other tools, and then the payload."""
    if not more:
        return
    kind = payload if payload is not None and payload.isidentifier() else "KIND"
    raise click.UsageError(
        f"there are {len(more) + 1} arguments, and a job has one payload\n"
        f"do: name the kind with an option, as in: wrasse jobs put --kind={kind} PAYLOAD; quote a payload with spaces"
    )


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"the header {text!r} has no value", do="write --header name=value")
    return name, value


def _job(producer: Producer, given: Given, payload: bytes) -> Job:
    return producer.job(
        given.kind,
        payload,
        id=given.id,
        queue=given.queue,
        priority=given.priority,
        delay=given.delay,
        timeout=given.timeout,
        headers=given.headers,
        unique=given.unique,
        window=given.window,
        keep=given.keep,
    )


def _many(producer: Producer, given: Given, path: str | None, *, described: bool) -> Iterator[Job]:
    made = partial(_described if described else _job, producer, given)
    return from_lines(path, made, what="jobs", bytes_max=LINE_BYTES_MAX, spaces=not described)


def _described(producer: Producer, given: Given, line: bytes) -> Job:
    fields = fields_of(line, FIELDS, '{"kind": ..., "data": ...}')
    timeout, keep = fields.get("timeout"), fields.get("keep")
    return producer.job(
        str(fields.get("kind", given.kind)),
        payload_of(fields),
        id=None if fields.get("id") is None else str(fields["id"]),
        queue=given.queue if fields.get("queue") is None else str(fields["queue"]),
        priority=given.priority if fields.get("priority") is None else str(fields["priority"]),
        delay=parse_duration(str(fields["delay"])) if "delay" in fields else given.delay,
        timeout=given.timeout if timeout is None else parse_duration(str(timeout)),
        headers={**given.headers, **_headers(fields.get("headers"))},
        unique=str(fields.get("unique", given.unique)),
        window=given.window,
        keep=given.keep if keep is None else parse_duration(str(keep)),
    )


def _headers(value: object) -> Mapping[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise UsageError("headers is not a map of texts", do='write "headers": {"name": "value"}')
    return value


async def _put(asked: Asked, jobs: Callable[[Producer], Iterator[Job]]) -> None:
    config = asked.config()
    clock = SystemClock()
    stores = Stores(clock, done_max=config.settings.worker.done_max)
    answers: list[Put] = []
    count = known = 0
    try:
        producer = build_producer(config.settings, await open_homes(config, stores, JOBS), clock, Tally())
        for piece in _pieces(jobs(producer)):
            for answer in await producer.put_many(piece):
                count, known = count + answer.new, known + (not answer.new)
                if len(answers) < BATCH_MAX:
                    answers.append(answer)
    except WrasseError as why:
        if count:
            # Whoever puts all of them once more would put these twice.
            why.message = f"{why.message}; {count} jobs before it were put and stay"
            why.do = why.do if isinstance(why, UsageError) else f"{why.do.partition(';')[0]}, then put the rest"
        raise
    finally:
        await stores.close()
    listed = [{"id": each.id, "new": each.new} for each in answers]
    asked.answer({"put": count, "known": known, "jobs": listed}, lambda: _tell(answers, count, known))


def _pieces(jobs: Iterator[Job]) -> Iterator[list[Job]]:
    piece: list[Job] = []
    size = 0
    for job in jobs:
        piece.append(job)
        size += len(job.payload)
        if len(piece) == BATCH_MAX or size > PAYLOAD_BYTES_MAX:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _tell(answers: Sequence[Put], count: int, known: int) -> None:
    if len(answers) <= SHOWN_MAX:
        for answer in answers:
            click.echo(f"{answer.id}" if answer.new else f"{answer.id} is known already and stays as it is")
        return
    click.echo(f"put {count} jobs" + (f"; {known} were known already" if known else ""))
