"""wrasse jobs requeue, cancel, purge, replay, fsck: changes jobs, each under its precondition.

What cannot be undone is refused without --yes, and every one of these shows with --dry-run what it would change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta

import click

from wrasse.cli.context import DURATION, CommandContext, asks, finish
from wrasse.cli.jobs.inspect import (
    STATES,
    Span,
    died_within,
    job_filters,
    job_state_of,
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
from wrasse.ports.jobs import Cancel, Delete, JobFilter, JobInfo, JobQueue, JobState, Move, RequeueDead
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import pages

PAGE = 500
IDS_MAX = 1_000  # told by name
SHOWN_MAX = 20


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="All dead jobs that the filters let through.")
@job_filters(only="With --all: only", error=True)
@click.option("--delay", type=DURATION, default="0s", help="Not before this much later.")
@click.option("--dry-run", is_flag=True, help="Show what would be requeued, and change nothing.")
@asks
def requeue(
    asked: CommandContext, ids: Sequence[str], everything: bool, where: JobFilter, delay: timedelta, dry_run: bool
) -> None:
    """Make dead jobs ready again, with their budgets full.

    \b
    Examples:
      wrasse jobs requeue resize-a resize-b
      wrasse jobs requeue --all --reason=timeout --dry-run
    """
    if bool(ids) == everything:
        raise click.UsageError("name jobs, or say --all\ndo: wrasse jobs requeue ID..., or wrasse jobs requeue --all")
    finish(_requeue(asked, ids, where, delay, dry_run))


class _Changes:
    """What became of the jobs: how many, and the ids of the first, since there may be millions."""

    def __init__(self) -> None:
        self.count = 0
        self.changed: list[str] = []
        self.conflict: list[str] = []

    def planned(self, infos: Sequence[JobInfo]) -> None:
        """They would be changed."""
        self.add(infos, [Outcome.DONE] * len(infos))

    def add(self, infos: Sequence[JobInfo], outcomes: Sequence[Outcome]) -> None:
        """They were changed, or had changed by themselves meanwhile."""
        for info, outcome in zip(infos, outcomes, strict=True):
            self.count += outcome is Outcome.DONE
            ids = self.changed if outcome is Outcome.DONE else self.conflict
            if len(ids) < IDS_MAX:
                ids.append(info.id)


async def _requeue(
    asked: CommandContext, ids: Sequence[str], where: JobFilter, delay: timedelta, dry_run: bool
) -> None:
    changes = _Changes()
    async with opened_queue(asked.config(), create=not dry_run) as store:
        batches = _named(store.jobs, ids, JobState.DEAD) if ids else _pages(store.jobs, JobState.DEAD, where)
        async for infos in batches:
            if dry_run:
                changes.planned(infos)
            else:
                changes.add(infos, await store.jobs.move([RequeueDead(info.claim, delay) for info in infos]))
    _tell(asked, "requeue" if dry_run else "requeued", changes, dry_run)


async def _named(queue: JobQueue, ids: Sequence[str], state: JobState) -> AsyncIterator[list[JobInfo]]:
    """All of them are looked at before the first is changed, so that a mistake in one changes none."""
    infos = [(await known_job(queue, id)).info for id in dict.fromkeys(ids)]
    for info in infos:
        if info.state is not state:
            raise UsageError(
                f"the job {info.id!r} is {info.state.value}, not {state.value}",
                do=f"see it with `wrasse jobs show {info.id}`",
            )
    yield infos


async def _pages(queue: JobQueue, state: JobState, where: JobFilter) -> AsyncIterator[list[JobInfo]]:
    """Every job of a state, page by page. What a change moves elsewhere is not met again."""
    with progress("jobs") as seen:
        async for page in pages(lambda after: queue.page(state, where, after, PAGE)):
            seen(len(page))
            if page.items:
                yield [*page]


def _tell(asked: CommandContext, verb: str, changes: _Changes, dry_run: bool) -> None:
    def text() -> None:
        for id in changes.changed[:SHOWN_MAX] if dry_run else ():
            click.echo(f"would {verb} {printable(id)}")
        count = counted(changes.count, "job")
        click.echo(f"would {verb} {count}" if dry_run else f"{verb} {count}")
        if changes.conflict:
            ids = ", ".join(printable(id) for id in changes.conflict[:SHOWN_MAX])
            click.echo(f"left alone, since they changed meanwhile or were finished: {ids}")

    answer = {"count": changes.count, "changed": changes.changed, "conflict": changes.conflict, "dry_run": dry_run}
    asked.answer(answer, text)
    if changes.conflict and not changes.count:
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--why", default="", help="Kept with the job.")
@asks
def cancel(asked: CommandContext, ids: Sequence[str], why: str) -> None:
    """Stop jobs: those that wait never run, those that run are told and may not finish.

    They stay among the dead with the reason `cancelled`, and can be requeued.

    \b
    Examples:
      wrasse jobs cancel resize-a
      wrasse jobs cancel resize-a resize-b --why='wrong size'
    """
    finish(_cancel(asked, ids, why))


async def _cancel(asked: CommandContext, ids: Sequence[str], why: str) -> None:
    changes = _Changes()
    async with opened_queue(asked.config(), create=True) as store:
        infos = [(await known_job(store.jobs, id)).info for id in dict.fromkeys(ids)]
        moves: list[Move] = [Cancel(info.id, why) for info in infos]
        changes.add(infos, await store.jobs.move(moves))
    _tell(asked, "cancelled", changes, False)


@click.command()
@click.argument("state", type=click.Choice([name for name in STATES if name != "running"]))
@job_filters()
@click.option("--older", type=DURATION, help="Only jobs that finished longer ago than this.")
@click.option("--yes", is_flag=True, help="Really delete. There is no undo.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and change nothing.")
@asks
def purge(
    asked: CommandContext, state: str, where: JobFilter, older: timedelta | None, yes: bool, dry_run: bool
) -> None:
    """Delete jobs of one STATE for good. Running jobs are never deleted.

    \b
    Examples:
      wrasse jobs purge dead --older=30d --dry-run
      wrasse jobs purge done --yes
    """
    if not (yes or dry_run):
        raise Refused(f"deleting {state} jobs cannot be undone", do="look with --dry-run, then say --yes")
    finish(_purge(asked, state, where, older, dry_run))


async def _purge(asked: CommandContext, name: str, where: JobFilter, older: timedelta | None, dry_run: bool) -> None:
    state, scheduled = job_state_of(name)
    if older is not None and state is JobState.READY:
        raise UsageError("--older asks when jobs finished, and these have not", do="leave it out")
    changes = _Changes()
    async with opened_queue(asked.config(), create=not dry_run) as store:
        horizon = (await store.store.health_sample()).at - older if older is not None else None
        narrowed = replace(where, finished_before=horizon, scheduled=scheduled)
        async for infos in _pages(store.jobs, state, narrowed):
            if dry_run:
                changes.planned(infos)
            else:
                changes.add(infos, await store.jobs.delete([Delete(info.claim, info.state) for info in infos]))
    _tell(asked, "delete" if dry_run else "deleted", changes, dry_run)


_MOMENT = timedelta(milliseconds=1)


@click.command()
@job_filters(error=True, span=True)
@click.option("--rate", metavar="JOBS/TIME", help="No faster than this, such as 10/s.  [default: no limit]")
@click.option("--canary", default=10, show_default=True, type=click.IntRange(0, 500), help="How many go first.")
@click.option("--watch", type=DURATION, default="30s", show_default=True, help="How long these are watched at most.")
@click.option(
    "--share", default=0.2, show_default=True, type=click.FloatRange(0, 1), help="Which share of them may fail again."
)
@click.option("--yes", is_flag=True, help="Really make them ready.")
@click.option("--dry-run", is_flag=True, help="Show how many would be made ready, and change nothing.")
@asks
def replay(
    asked: CommandContext,
    where: JobFilter,
    span: Span,
    rate: str | None,
    canary: int,
    watch: timedelta,
    share: float,
    yes: bool,
    dry_run: bool,
) -> None:
    """Make dead jobs ready again: a few first, and the rest if not too many of those fail again.

    It ends with 3 and leaves the rest dead if they do. Begun again after an interruption, it goes on with what is left.

    \b
    Examples:
      wrasse jobs replay --reason=failed --since=1h --dry-run
      wrasse jobs replay --kind=mail --rate=10/s --yes
    """
    if not (yes or dry_run):
        raise Refused("a replay runs many jobs again", do="look with --dry-run, then say --yes")
    plan = ReplayPlan(canary, watch, share, None if rate is None else parse_rate("", rate))
    finish(_replay(asked, where, span, plan, dry_run))


async def _replay(asked: CommandContext, where: JobFilter, span: Span, plan: ReplayPlan, dry_run: bool) -> None:
    async with opened_queue(asked.config(), create=not dry_run) as store:
        # Dead letters that another program pushed are dated when they are first seen, which is in this call.
        now = (await store.jobs.counts()).at + _MOMENT
        run = JobReplay(store.jobs, SystemClock(), died_within(where, now, *span), now, plan)
        if dry_run:
            count = 0
            async for page in run.pages():
                count += len(page)
            asked.answer({"count": count, "dry_run": True}, lambda: click.echo(f"would replay {counted(count, 'job')}"))
            return
        with progress("jobs") as seen:
            done = await run.run(seen)
    asked.answer(_replayed_json(done), lambda: _tell_replayed(done))
    if done.why:
        raise Refused(
            f"the replay stopped: {done.why}",
            do="see `wrasse jobs dead --since=5m`, and whether a worker runs; then mend the cause and replay again",
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
        click.echo(f"left {counted(done.conflict, 'job')} alone, since they changed meanwhile")


NOTHING_TO_CHECK = "this backend keeps a job in one record, which cannot contradict another: there is nothing to check"


@click.command()
@click.option("--repair", is_flag=True, help="Repair what is found. Without it, nothing is changed.")
@asks
def fsck(asked: CommandContext, repair: bool) -> None:
    """Look for damage in what is kept of jobs: what other programs, evictions or lost keys left contradictory.

    Safe while workers run; a repair loses no job, though one may run again. It ends with 1 if there is damage that was
    not repaired. A backend that keeps every job in one record has nothing to check.

    \b
    Examples:
      wrasse jobs fsck
      wrasse jobs fsck --json
      wrasse jobs fsck --repair
    """
    finish(_fsck(asked, repair))


async def _fsck(asked: CommandContext, repair: bool) -> None:
    config = asked.config()
    async with opened(config) as store:
        if store.damages is None:
            asked.answer(
                {"checked": False, "damage": [], "repaired": False, "why": NOTHING_TO_CHECK},
                lambda: click.echo(NOTHING_TO_CHECK),
            )
            return
        with progress("looked at") as seen:
            found = await store.damages.check(
                repair=repair, heartbeat_timeout=config.settings.worker.heartbeat_ttl, seen=seen
            )
    damage = [picked(each, "kind about repair count repaired names") for each in found]
    answer = {"checked": True, "damage": damage, "repaired": repair}
    asked.answer(answer, lambda: _tell_damage(found, repair))
    if any(each.repaired < each.count for each in found):
        raise click.exceptions.Exit(1)


def _tell_damage(found: Sequence[Inconsistency], repair: bool) -> None:
    rows = [(each.kind, each.count, each.about, each.repair) for each in found]
    columns = ("damage", "count", "what it is", "what was done" if repair else "what --repair does")
    show_table(columns, rows, empty="no damage")
    for each in found:
        click.echo(f"{each.kind}: {', '.join(printable(name) for name in each.names)}")
    if found and not repair:
        click.echo("nothing was changed; repair it with: wrasse jobs fsck --repair")
