"""wrasse jobs requeue, cancel, purge, replay, fsck: change jobs, each under its precondition.

What cannot be undone needs --yes; every one of these commands has --dry-run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta

import click

from wrasse.cli.context import DURATION, CommandContext, finish, with_context
from wrasse.cli.jobs.inspect import (
    STATES,
    Span,
    died_within,
    job_filters,
    known_job,
    opened,
    opened_queue,
)
from wrasse.cli.output import counted, printable, progress, show_table
from wrasse.clock import SystemClock
from wrasse.errors import Refused, UsageError
from wrasse.jobs.replay import JobReplay, ReplayPlan, ReplayResult
from wrasse.jobs.worker.queue_selector import parse_rate
from wrasse.observability.json_format import picked
from wrasse.ports.inconsistency import Inconsistency
from wrasse.ports.jobs import Cancel, Delete, JobFilter, JobInfo, JobQueue, JobState, JobStatus, Move, RequeueDead
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import pages

PAGE = 500
IDS_MAX = 1_000  # ids in an answer
SHOWN_MAX = 20


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="All dead jobs that match the filters.")
@job_filters(only="With --all: only", error=True)
@click.option("--delay", type=DURATION, default="0s", help="Earliest start, from now.")
@click.option("--dry-run", is_flag=True, help="Show what would be requeued, and change nothing.")
@with_context
def requeue(
    ctx: CommandContext, ids: Sequence[str], everything: bool, where: JobFilter, delay: timedelta, dry_run: bool
) -> None:
    """Make dead jobs ready again, with their budgets full.

    \b
    Examples:
      wrasse jobs requeue resize-a resize-b
      wrasse jobs requeue --all --reason=timeout --dry-run
    """
    if bool(ids) == everything:
        raise click.UsageError("name jobs, or add --all\ndo: wrasse jobs requeue ID..., or wrasse jobs requeue --all")
    finish(_requeue(ctx, ids, where, delay, dry_run))


class _ChangeResults:
    """The results: a count, and the first ids, since there may be millions."""

    def __init__(self) -> None:
        self.count = 0
        self.changed: list[str] = []
        self.conflict: list[str] = []

    def planned(self, infos: Sequence[JobInfo]) -> None:
        """These would be changed."""
        self.add(infos, [Outcome.DONE] * len(infos))

    def add(self, infos: Sequence[JobInfo], outcomes: Sequence[Outcome]) -> None:
        """These were changed, or are in conflict."""
        for info, outcome in zip(infos, outcomes, strict=True):
            self.count += outcome is Outcome.DONE
            ids = self.changed if outcome is Outcome.DONE else self.conflict
            if len(ids) < IDS_MAX:
                ids.append(info.id)


async def _requeue(ctx: CommandContext, ids: Sequence[str], where: JobFilter, delay: timedelta, dry_run: bool) -> None:
    changes = _ChangeResults()
    async with opened_queue(ctx.config(), create=not dry_run) as store:
        batches = _named(store.jobs, ids, JobState.DEAD) if ids else _pages(store.jobs, JobState.DEAD, where)
        async for infos in batches:
            if dry_run:
                changes.planned(infos)
            else:
                changes.add(infos, await store.jobs.move([RequeueDead(info.claim, delay) for info in infos]))
    _tell(ctx, "requeue" if dry_run else "requeued", changes, dry_run)


async def _named(queue: JobQueue, ids: Sequence[str], state: JobState) -> AsyncIterator[list[JobInfo]]:
    """All of them are read before the first is changed, so that a mistake in one changes none."""
    infos = [(await known_job(queue, id)).info for id in dict.fromkeys(ids)]
    for info in infos:
        if info.state is not state:
            raise UsageError(
                f"the job {info.id!r} is {info.status}, not {state}",
                do=f"see it with `wrasse jobs show {info.id}`",
            )
    yield infos


async def _pages(queue: JobQueue, state: JobState, where: JobFilter) -> AsyncIterator[list[JobInfo]]:
    """Every job of a state, page by page. A job that a change moves elsewhere is not read again."""
    with progress("jobs") as seen:
        async for page in pages(lambda after: queue.page(state, where, after, PAGE)):
            seen(len(page))
            if page.items:
                yield [*page]


def _tell(ctx: CommandContext, verb: str, changes: _ChangeResults, dry_run: bool) -> None:
    def text() -> None:
        for id in changes.changed[:SHOWN_MAX] if dry_run else ():
            click.echo(f"would {verb} {printable(id)}")
        count = counted(changes.count, "job")
        click.echo(f"would {verb} {count}" if dry_run else f"{verb} {count}")
        if changes.conflict:
            ids = ", ".join(printable(id) for id in changes.conflict[:SHOWN_MAX])
            click.echo(f"not changed, because they changed meanwhile or were finished: {ids}")

    answer = {"count": changes.count, "changed": changes.changed, "conflict": changes.conflict, "dry_run": dry_run}
    ctx.answer(answer, text)
    if changes.conflict and not changes.count:
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--why", default="", help="Stored with the job.")
@with_context
def cancel(ctx: CommandContext, ids: Sequence[str], why: str) -> None:
    """Cancel jobs: waiting ones never run, running ones are cancelled and may not complete.

    They stay among the dead with the reason `cancelled`, and can be requeued.

    \b
    Examples:
      wrasse jobs cancel resize-a
      wrasse jobs cancel resize-a resize-b --why='wrong size'
    """
    finish(_cancel(ctx, ids, why))


async def _cancel(ctx: CommandContext, ids: Sequence[str], why: str) -> None:
    changes = _ChangeResults()
    async with opened_queue(ctx.config(), create=True) as store:
        infos = [(await known_job(store.jobs, id)).info for id in dict.fromkeys(ids)]
        moves: list[Move] = [Cancel(info.id, why) for info in infos]
        changes.add(infos, await store.jobs.move(moves))
    _tell(ctx, "cancelled", changes, False)


@click.command()
@click.argument("state", type=click.Choice([name for name in STATES if name != "running"]))
@job_filters()
@click.option("--older", type=DURATION, help="Only jobs that finished longer ago than this.")
@click.option("--yes", is_flag=True, help="Confirm the deletion. There is no undo.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and change nothing.")
@with_context
def purge(ctx: CommandContext, state: str, where: JobFilter, older: timedelta | None, yes: bool, dry_run: bool) -> None:
    """Delete jobs of one STATE permanently. Running jobs are never deleted.

    \b
    Examples:
      wrasse jobs purge dead --older=30d --dry-run
      wrasse jobs purge done --yes
    """
    if not (yes or dry_run):
        raise Refused(f"deleting {state} jobs cannot be undone", do="check with --dry-run, then add --yes")
    finish(_purge(ctx, state, where, older, dry_run))


async def _purge(ctx: CommandContext, name: str, where: JobFilter, older: timedelta | None, dry_run: bool) -> None:
    status = JobStatus(name)
    if older is not None and status.state is JobState.READY:
        raise UsageError("--older refers to when jobs finished, and these have not", do="omit it")
    changes = _ChangeResults()
    async with opened_queue(ctx.config(), create=not dry_run) as store:
        horizon = (await store.store.health_sample()).at - older if older is not None else None
        narrowed = replace(where, finished_before=horizon, scheduled=status.scheduled)
        async for infos in _pages(store.jobs, status.state, narrowed):
            if dry_run:
                changes.planned(infos)
            else:
                changes.add(infos, await store.jobs.delete([Delete(info.claim, info.state) for info in infos]))
    _tell(ctx, "delete" if dry_run else "deleted", changes, dry_run)


_MOMENT = timedelta(milliseconds=1)


@click.command()
@job_filters(error=True, span=True)
@click.option("--rate", metavar="JOBS/TIME", help="Maximum rate, such as 10/s.  [default: no limit]")
@click.option(
    "--canary",
    default=10,
    show_default=True,
    type=click.IntRange(0, 500),
    help="Number of canaries, which are requeued first.",
)
@click.option(
    "--watch", type=DURATION, default="30s", show_default=True, help="How long the canaries are watched at most."
)
@click.option(
    "--share",
    default=0.2,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Share of the canaries that may fail again.",
)
@click.option("--yes", is_flag=True, help="Confirm the replay.")
@click.option("--dry-run", is_flag=True, help="Show how many would be made ready, and change nothing.")
@with_context
def replay(
    ctx: CommandContext,
    where: JobFilter,
    span: Span,
    rate: str | None,
    canary: int,
    watch: timedelta,
    share: float,
    yes: bool,
    dry_run: bool,
) -> None:
    """Make dead jobs ready again: a few canaries first, and the rest unless too many canaries fail again.

    If too many fail, the exit code is 3 and the rest stays dead. After an interruption, a new replay continues.

    \b
    Examples:
      wrasse jobs replay --reason=failed --since=1h --dry-run
      wrasse jobs replay --kind=mail --rate=10/s --yes
    """
    if not (yes or dry_run):
        raise Refused("a replay runs many jobs again", do="check with --dry-run, then add --yes")
    plan = ReplayPlan(canary, watch, share, None if rate is None else parse_rate("", rate))
    finish(_replay(ctx, where, span, plan, dry_run))


async def _replay(ctx: CommandContext, where: JobFilter, span: Span, plan: ReplayPlan, dry_run: bool) -> None:
    async with opened_queue(ctx.config(), create=not dry_run) as store:
        # Dead letters of other programs are dated when they are first read, which is in this call.
        now = (await store.jobs.counts()).at + _MOMENT
        run = JobReplay(store.jobs, SystemClock(), died_within(where, now, *span), now, plan)
        if dry_run:
            count = 0
            async for page in run.pages():
                count += len(page)
            ctx.answer({"count": count, "dry_run": True}, lambda: click.echo(f"would replay {counted(count, 'job')}"))
            return
        with progress("jobs") as seen:
            done = await run.run(seen)
    ctx.answer(_replayed_json(done), lambda: _tell_replayed(done))
    if done.why:
        raise Refused(
            f"the replay stopped: {done.why}",
            do="see `wrasse jobs dead --since=5m`, and whether a worker runs; then fix the cause and replay again",
        )


def _replayed_json(done: ReplayResult) -> dict[str, object]:
    canaries = {"count": done.canaries.count, "done": done.canaries.done, "failed": done.canaries.failed}
    sums = {"requeued": done.requeued, "conflict": done.conflict}
    return {**sums, "canaries": canaries, "why": done.why, "dry_run": False}


def _tell_replayed(done: ReplayResult) -> None:
    if done.canaries.count:
        click.echo(f"of {done.canaries.count} canaries {done.canaries.done} are done, {done.canaries.failed} failed")
    click.echo(f"replayed {counted(done.requeued, 'job')}")
    if done.conflict:
        click.echo(f"left {counted(done.conflict, 'job')} unchanged, because they changed meanwhile")


NOTHING_TO_CHECK = "this backend stores each job in one record, so there is nothing to check"


@click.command()
@click.option("--repair", is_flag=True, help="Repair what is found; without it, nothing is changed.")
@with_context
def fsck(ctx: CommandContext, repair: bool) -> None:
    """Check stored jobs for inconsistencies that other programs, evictions or lost keys left.

    Safe while workers run; a repair loses no job, but a job may run again. The exit code is 1 if inconsistencies
    remain. A backend that stores every job in one record has nothing to check.

    \b
    Examples:
      wrasse jobs fsck
      wrasse jobs fsck --json
      wrasse jobs fsck --repair
    """
    finish(_fsck(ctx, repair))


async def _fsck(ctx: CommandContext, repair: bool) -> None:
    config = ctx.config()
    async with opened(config) as store:
        if store.fsck is None:
            ctx.answer(
                {"checked": False, "inconsistencies": [], "repaired": False, "why": NOTHING_TO_CHECK},
                lambda: click.echo(NOTHING_TO_CHECK),
            )
            return
        with progress("checked") as seen:
            found = await store.fsck.check(
                repair=repair, heartbeat_timeout=config.settings.worker.heartbeat_ttl, seen=seen
            )
    inconsistencies = [picked(each, "kind about repair count repaired names") for each in found]
    answer = {"checked": True, "inconsistencies": inconsistencies, "repaired": repair}
    ctx.answer(answer, lambda: _tell_inconsistencies(found, repair))
    if any(each.repaired < each.count for each in found):
        raise click.exceptions.Exit(1)


def _tell_inconsistencies(found: Sequence[Inconsistency], repair: bool) -> None:
    rows = [(each.kind, each.count, each.about, each.repair) for each in found]
    columns = ("inconsistency", "count", "what it is", "what was done" if repair else "what --repair does")
    show_table(columns, rows, empty="no inconsistency")
    for each in found:
        click.echo(f"{each.kind}: {', '.join(printable(name) for name in each.names)}")
    if found and not repair:
        click.echo("nothing was changed; repair it with: wrasse jobs fsck --repair")
