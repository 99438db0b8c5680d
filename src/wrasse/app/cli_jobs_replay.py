"""wrasse jobs replay: dead jobs made ready again, a few first, then the rest if those do well."""

from __future__ import annotations

from datetime import timedelta

import click

from wrasse.app.cli_asked import DURATION, Asked, asks, finish
from wrasse.app.cli_jobs import opened_queue
from wrasse.app.cli_jobs_look import REASONS, died_within
from wrasse.app.progress import progress
from wrasse.clock import SystemClock
from wrasse.errors import Refused
from wrasse.jobs.rates import parse_rate
from wrasse.jobs.replay import Plan, Replay, Replayed
from wrasse.ports.jobs import JobFilter, Reason

_MOMENT = timedelta(milliseconds=1)


@click.command()
@click.option("--queue", help="Only jobs of this queue.")
@click.option("--kind", help="Only jobs of this kind.")
@click.option("--reason", type=click.Choice(REASONS), help="Only jobs that died for this reason.")
@click.option("--error", "error_contains", metavar="TEXT", help="Only jobs whose error contains this.")
@click.option("--since", type=DURATION, help="Only jobs that died within this time.")
@click.option("--until", type=DURATION, help="Only jobs that died longer ago than this.")
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
    asked: Asked,
    queue: str | None,
    kind: str | None,
    reason: str | None,
    error_contains: str | None,
    since: timedelta | None,
    until: timedelta | None,
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
    where = JobFilter(queue, kind, None if reason is None else Reason(reason), error_contains)
    plan = Plan(canary, watch, share, None if rate is None else parse_rate("", rate))
    finish(_replay(asked, where, (since, until), plan, dry_run))


async def _replay(
    asked: Asked, where: JobFilter, span: tuple[timedelta | None, timedelta | None], plan: Plan, dry_run: bool
) -> None:
    async with opened_queue(asked.config(), create=not dry_run) as store:
        # Dead letters that another program pushed are dated when they are first seen, which is in this call.
        now = (await store.jobs.counts()).at + _MOMENT
        run = Replay(store.jobs, SystemClock(), died_within(where, now, *span), now, plan)
        if dry_run:
            count = 0
            async for page in run.pages():
                count += len(page)
            asked.answer({"count": count, "dry_run": True}, lambda: click.echo(f"would replay {_jobs(count)}"))
            return
        with progress("jobs") as seen:
            done = await run.run(seen)
    asked.answer(_json(done), lambda: _tell(done))
    if done.why:
        raise Refused(
            f"the replay stopped: {done.why}",
            do="see `wrasse jobs dead --since=5m`, and whether a worker runs; then mend the cause and replay again",
        )


def _json(done: Replayed) -> dict[str, object]:
    canaries = {"count": done.canaries.count, "done": done.canaries.done, "failed": done.canaries.failed}
    return {"revived": done.revived, "lost": done.lost, "canaries": canaries, "why": done.why, "dry_run": False}


def _tell(done: Replayed) -> None:
    if done.canaries.count:
        click.echo(f"of {done.canaries.count} canaries {done.canaries.done} are done, {done.canaries.failed} failed")
    click.echo(f"replayed {_jobs(done.revived)}")
    if done.lost:
        click.echo(f"left {_jobs(done.lost)} alone, since they changed meanwhile")


def _jobs(count: int) -> str:
    return f"{count} job{'' if count == 1 else 's'}"
