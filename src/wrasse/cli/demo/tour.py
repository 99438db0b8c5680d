"""wrasse demo: shows wrasse's guarantees on this machine in under a minute, with real processes and no server.

Every scene says what it does, waits until it has happened, and reports the result. A scene with another result ends the
demo, and its exit code is 1. No scene depends on the speed of the machine: a busy machine may delay heartbeats, so that
a job needs more attempts, which is not a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import click

from wrasse.api.app import App
from wrasse.archives.drain import GROUP
from wrasse.archives.reader import ListedArchive, list_archives
from wrasse.archives.verify import Verified, verify
from wrasse.cli.context import finish, write_json
from wrasse.cli.demo.work import LEASE
from wrasse.cli.output import show_table
from wrasse.clock import Clock, SystemClock
from wrasse.config.load import Config, load
from wrasse.config.settings import Settings
from wrasse.engine.report import Planned
from wrasse.errors import StoreUnavailable, WrasseError
from wrasse.jobs.new_job import NewJob
from wrasse.ports.jobs import JobQueue, JobRecord, JobState, WorkerState
from wrasse.ports.journal import Line, LineFilter
from wrasse.runtime.archiver import build_archiver, build_rules
from wrasse.runtime.backends import Stores
from wrasse.runtime.forecast import outlook
from wrasse.runtime.worker import owner_name
from wrasse.streams.publisher import Publication, Publisher

T = TypeVar("T")
PATIENCE = 120.0  # seconds for any one thing to happen; it takes a few on an idle machine
_POLL_SECONDS = 0.05

SETTINGS = """\
backends: {{jobs: "{url}", records: "{url}", streams: "{url}", objects: "file://{folder}/archives"}}
archiver: {{streams: [{{stream: "gbe.events.audit.*", batch_size: 10}}]}}
engine: {{lease: 5s}}
http: {{listen: ""}}
worker:
  heartbeat_ttl: 5s
  rescues_max: 1
  grace: 5s
  count: 4
  priorities: [high, low, fragile]
  queues: {{high: high, low: low, fragile: fragile}}
sweeps:
  stuck_jobs: {{interval: 1s}}
  finished_jobs: {{interval: 1h, done_kept: 5s}}
"""
AUDIT = "gbe.events.audit.change"
MESSAGES = 25
JOBS = 40


class NotSeen(WrasseError):
    """An expected result of the demo did not occur."""


class DemoStage:
    """The directory, app and processes of one demo."""

    def __init__(self, folder: Path, app: App, url: str) -> None:
        self.folder = folder
        self.app = app
        self.url = url
        self.clock: Clock = SystemClock()
        self._processes: list[Process] = []
        self._started = self.clock.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self.clock.monotonic() - self._started

    @property
    def settings(self) -> Settings:
        """The demo's settings."""
        return self.app.config.settings

    def process(self, pid: int) -> Process | None:
        """The demo's process with this id."""
        return next((process for process in self._processes if process.pid == pid), None)

    async def queue(self) -> JobQueue:
        """The job queue of the stage."""
        return (await self.app.open("jobs")).jobs.jobs

    async def start_worker(self, *, fragile: bool = False) -> Process:
        """Starts `wrasse run --role=worker`. A fragile one serves only the queue of the poison job."""
        arguments = ["--role=worker", "--handler=wrasse.cli.demo.work:handle", f"--config={self.folder / 'demo.yaml'}"]
        if fragile:
            # A worker that will be killed must not run sweeps: its lease would have to expire first.
            arguments += ["--set=worker.priorities=fragile", "--set=sweeps.stuck_jobs.enabled=false"]
        else:
            arguments.append("--set=worker.priorities=high, low")
        return await self._start("-m", "wrasse", "run", *arguments)

    async def start_holder(self) -> Process:
        """Starts a process that takes the demo's lease and keeps it."""
        return await self._start("-m", "wrasse.cli.demo.work", self.url)

    async def _start(self, *arguments: str) -> Process:
        # The child inherits the file; this process closes its own.
        with (self.folder / "processes.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, stdout=PIPE, stderr=log, cwd=self.folder, start_new_session=True
            )
        self._processes.append(process)
        return process

    async def until(self, query: Callable[[], Awaitable[T | None]], what: str) -> T:
        """Polls until there is a result."""

        async def looking() -> T:
            while True:
                with contextlib.suppress(StoreUnavailable):  # a busy machine: polled again
                    if (seen := await query()) is not None:
                        return seen
                await asyncio.sleep(_POLL_SECONDS)

        return await self.within(looking(), what)

    async def within(self, happening: Awaitable[T], what: str) -> T:
        """The result, within the timeout."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await happening
        except TimeoutError:
            raise NotSeen(f"{what} did not happen in {PATIENCE:.0f} s", do=self._log_tail()) from None

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            lines = (self.folder / "processes.log").read_text(errors="replace").splitlines()[-5:]
            return "see what the processes said: " + " | ".join(lines)
        return "try again on a machine that is less busy"

    async def drain(self) -> list[int | None]:
        """Sends SIGTERM to every process; returns the exit codes, None for one that did not end. Workers killed by the
        poison job are omitted."""
        alive = [process for process in self._processes if process.returncode is None]
        for process in alive:
            # Not process.send_signal: it polls the process first, and then the exit code is lost.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                for process in alive:
                    await process.wait()
        return [process.returncode for process in alive if process.returncode != -signal.SIGKILL]

    async def clear(self) -> None:
        """Kills all processes that still run."""
        for process in self._processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await process.communicate()
        await self.app.close()


@contextlib.asynccontextmanager
async def staged() -> AsyncIterator[DemoStage]:
    """A stage, cleaned up and removed at the end."""
    with TemporaryDirectory(prefix="wrasse-demo-") as name:
        folder = Path(name)
        url = f"sqlite://{folder / 'demo.db'}"
        (folder / "demo.yaml").write_text(SETTINGS.format(url=url, folder=folder))
        stage = DemoStage(folder, App(load(folder / "demo.yaml", environ={})), url)
        try:
            yield stage
        finally:
            await stage.clear()


@dataclass(frozen=True, slots=True)
class ArchivedTotals:
    """The archives at the end."""

    archives: tuple[ListedArchive, ...]
    streams: tuple[Verified, ...]

    @property
    def whole(self) -> bool:
        """Whether every message is archived once."""
        return sum(each.messages for each in self.streams if each.whole) == MESSAGES


async def publish_and_archive(config: Config, clock: Clock) -> ArchivedTotals:
    """Publishes messages, archives and verifies them."""
    async with Stores.of(config.settings.worker, clock) as stores:
        streams = (await stores.open_streams(config.homes.streams)).streams
        messages = [Publication(AUDIT, b'{"change": %d}' % number) for number in range(MESSAGES)]
        await Publisher(streams, clock).publish_many(messages)
        await (await build_archiver(config, stores, clock, owner_name())).drain()
        (rule,) = await build_rules(config, stores)
        archives = [each async for each in list_archives(rule.objects, rule.prefix, AUDIT)]
        proven = [each async for each in verify(rule.objects, rule.prefix, AUDIT, group=GROUP, streams=streams)]
        return ArchivedTotals(tuple(archives), tuple(proven))


@dataclass(frozen=True, slots=True)
class DemoPromise:
    """One scene of the demo, and its result."""

    promise: str
    seen: str
    ok: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class DemoText:
    """Output of the demo: a heading, a line, or a table."""

    text: str
    heading: bool = False
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = field(default_factory=tuple)


class Demo:
    """The scenes. `tell` writes their output."""

    def __init__(self, stage: DemoStage, tell: Callable[[DemoText], None]) -> None:
        self._stage = stage
        self._tell = tell
        self.seen: list[DemoPromise] = []

    async def play(self) -> bool:
        """All scenes, in order; False if one had another result."""
        scenes: Sequence[tuple[str, Callable[[], Awaitable[str]]]] = (
            ("jobs run, each once", self._jobs_run),
            ("a killed worker's job is rescued", self._killed_worker),
            ("a lease changes hands, and its token grows", self._lease),
            ("a stream is archived, and nothing is missing", self._archive),
            ("the job is done by another worker", self._comes_back),
            ("a poison job is dead-lettered after its budget", self._poison),
            ("a dry run says what would be swept next, and why", self._dry_run),
            ("the journal kept every action", self._journal),
            ("workers drain and stop cleanly", self._drain),
        )
        for promise, scene in scenes:
            started = self._stage.seconds
            try:
                what, ok = await scene(), True
            except NotSeen as why:
                what, ok = f"{why.message} ({why.do})", False
            self.seen.append(DemoPromise(promise, what, ok, self._stage.seconds - started))
            if not ok:
                return False
        return True

    def _head(self, text: str) -> None:
        self._tell(DemoText(text, heading=True))

    def _say(self, text: str) -> None:
        self._tell(DemoText(text))

    async def _jobs_run(self) -> str:
        stage = self._stage
        self._head(f"Two workers, {JOBS} jobs")
        self._say("starting four `wrasse run --role=worker` processes on one SQLite file: two for this, two for later")
        for fragile in (False, False, True, True):
            await stage.start_worker(fragile=fragile)
        await stage.until(lambda: self._workers_alive(4), "the first heartbeat of four workers")
        # It runs during the other scenes: its workers die one after the other, each after a heartbeat timeout.
        await stage.app.jobs.enqueue("poison", b"", id="poison", queue="fragile")
        await stage.app.jobs.enqueue_many(NewJob("resize", {"picture": n}, priority="high") for n in range(JOBS))
        self._say(f"enqueued {JOBS} jobs in one step; waiting until they are done")
        await stage.until(lambda: self._done("high", JOBS), f"{JOBS} jobs done")
        finished = [info async for info in stage.app.jobs.list(JobState.DONE)]
        attempts = sum(info.attempts for info in finished if info.queue == "high")
        if attempts < JOBS:
            raise NotSeen(f"{JOBS} jobs took {attempts} attempts", do="report this")
        return f"{JOBS} done with {attempts} attempts"

    async def _workers_alive(self, count: int) -> bool | None:
        counts = await self._stage.app.jobs.counts()
        return sum(1 for worker in counts.workers if worker.deadline > counts.at) >= count or None

    async def _done(self, queue: str, count: int) -> bool | None:
        counts = await self._stage.app.jobs.counts()
        return any(each.queue == queue and each.done >= count for each in counts.queues) or None

    async def _job(self, id: str, state: JobState) -> JobRecord | None:
        record = await self._stage.app.jobs.get(id)
        return record if record is not None and record.info.state is state else None

    async def _killed_worker(self) -> str:
        stage = self._stage
        self._head("kill -9")
        await stage.app.jobs.enqueue("slow", {"report": 7}, id="slow-report")
        running = await stage.until(lambda: self._job("slow-report", JobState.RUNNING), "the claim of slow-report")
        worker = await stage.until(lambda: self._worker(running.info.worker), "its worker's heartbeat")
        process = self._process(worker)
        self._say(f"worker {worker.info.id} runs slow-report; killing it with SIGKILL")
        process.send_signal(signal.SIGKILL)
        await process.wait()
        self._say("no process sends heartbeats for the job now. `wrasse explain slow-report` says:")
        counts = await stage.app.jobs.counts()
        for line in await outlook(running, stage.settings, await stage.queue(), counts.at):
            self._say(f"  next  {line}")
        return f"process {worker.info.pid} killed while it ran the job"

    async def _worker(self, id: str) -> WorkerState | None:
        counts = await self._stage.app.jobs.counts()
        return next((worker for worker in counts.workers if worker.info.id == id), None)

    def _process(self, worker: WorkerState) -> Process:
        found = self._stage.process(worker.info.pid)
        if found is None:
            raise NotSeen(f"worker {worker.info.id} is not a process of this demo", do="report this")
        return found

    async def _lease(self) -> str:
        stage = self._stage
        self._head("A lease changes hands meanwhile")
        holder = await stage.start_holder()
        assert holder.stdout is not None, "started with a pipe"
        first = int(await stage.within(holder.stdout.readline(), "the first lease") or b"0")
        self._say(f"process {holder.pid} has the lease of {LEASE} with token {first}; killing it too")
        holder.send_signal(signal.SIGKILL)
        await holder.wait()
        async with stage.app.lease(LEASE, ttl="2s", wait=f"{PATIENCE:.0f}s", owner="second") as lease:
            second = lease.token
        self._say(f"its term ended without a renewal, and this process got the lease with token {second}")
        if second <= first or not first:
            raise NotSeen(f"token {first} was followed by {second}", do="report this")
        return f"token {first} -> {second}"

    async def _archive(self) -> str:
        stage = self._stage
        self._head("A stream becomes archives")
        self._say(f"publishing {MESSAGES} messages to {AUDIT}, and archiving them ten at a time:")
        kept = await publish_and_archive(stage.app.config, stage.clock)
        rows = [(each.name, each.info.size) for each in kept.archives]
        self._tell(DemoText("each is named after the entry it follows; `wrasse archives verify` walks the chain",
                        columns=("archive", "bytes"), rows=rows))  # fmt: skip
        if not kept.whole or len(kept.archives) != 3:
            found = [problem.what for each in kept.streams for problem in each.problems]
            raise NotSeen(f"{len(kept.archives)} archives, {found}", do="report this")
        return f"{MESSAGES} messages in {len(kept.archives)} archives, each once"

    async def _comes_back(self) -> str:
        stage = self._stage
        self._head("The job is rescued")
        record = await stage.until(
            lambda: self._job("slow-report", JobState.DONE), "slow-report done by another worker"
        )
        for attempt in record.history:
            self._say(f"attempt {attempt.number}: {attempt.reason.value}, {attempt.error}")
        self._say(f"attempt {record.info.attempts}: done by {record.info.worker or 'another worker'}")
        if record.info.rescues != 1:  # its budget here: a second one would have dead-lettered it
            raise NotSeen(f"it was rescued {record.info.rescues} times", do="report this")
        return f"done with attempt {record.info.attempts}, after 1 rescue; failures spent: {record.info.failures}"

    async def _poison(self) -> str:
        stage = self._stage
        self._head("Poison")
        self._say("a job that kills every worker that claims it, with a budget of one rescue")
        record = await stage.until(lambda: self._job("poison", JobState.DEAD), "the dead-lettering of the poison job")
        for attempt in record.history:
            self._say(f"attempt {attempt.number}: {attempt.reason.value}, {attempt.error}")
        if record.info.attempts < 2:
            raise NotSeen(f"it was claimed {record.info.attempts} times", do="report this")
        return f"dead after {record.info.attempts} workers: {record.info.reason}"

    async def _dry_run(self) -> str:
        self._head("A dry run of a sweep")
        self._say("done jobs are kept for 5 s here. `wrasse sweep --dry-run` changes nothing and says:")
        engine = await self._stage.app.engine()
        plan = await self._stage.until(lambda: _planned(engine.plan("finished_jobs")), "a plan")
        rows = [(each.verb, each.suspect, each.reason) for each in plan[:4]]
        self._tell(DemoText(f"... and {len(plan) - len(rows)} more", columns=("would", "to", "because"), rows=rows))
        return f"{len(plan)} deletions planned, none made"

    async def _journal(self) -> str:
        self._head("The journal")
        lines = await self._stage.until(self._journaled, "lines of what happened to poison and slow-report")
        self._tell(DemoText("", columns=("sweep", "did", "to", "outcome", "why"), rows=[_row(line) for line in lines]))
        verbs = [line.intent.verb for line in lines]
        return f"{len(lines)} lines: {verbs.count('requeue')} requeued, {verbs.count('dead_letter')} dead-lettered"

    async def _journaled(self) -> list[Line] | None:
        """The lines of the sweep, once the expected ones have their outcome, which is written after the action."""
        opened = await self._stage.app.open("engine")
        lines = list(await opened.journal.page(LineFilter(sweep="stuck_jobs"), None, 20))
        done = {(line.intent.verb, line.intent.suspect) for line in lines if line.outcome == "done"}
        return lines if done >= {("dead_letter", "poison"), ("requeue", "poison"), ("requeue", "slow-report")} else None

    async def _drain(self) -> str:
        self._head("Shutdown")
        self._say("SIGTERM to the worker that is left")
        codes = await self._stage.drain()
        if not codes or any(codes):
            raise NotSeen(f"the processes ended with {codes}", do="report this")
        return f"{len(codes)} process ended with 0"


async def _planned(planning: Awaitable[object]) -> tuple[Planned, ...] | None:
    plan: tuple[Planned, ...] = getattr(await planning, "plan", ())
    return plan or None


def _row(line: Line) -> tuple[str, ...]:
    outcome = line.outcome.value if line.outcome is not None else "open"
    return line.intent.sweep, line.intent.verb, line.intent.suspect, outcome, line.intent.reason


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Answer with a JSON summary on stdout.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def demo(as_json: bool) -> None:
    """Demonstrate wrasse on this machine, in a temporary directory: jobs, a killed worker whose job is rescued, a lease
    that changes hands, a poison job, a dry run with its reasons. Takes about 20 seconds, longer on a busy machine, and
    needs no server.

    \b
    Examples:
      wrasse demo
      wrasse demo --json
    """
    ok, seconds, seen = finish(_play(quiet=as_json))
    if as_json:
        steps = [{"promise": e.promise, "seen": e.seen, "ok": e.ok, "seconds": round(e.seconds, 2)} for e in seen]
        write_json({"ok": ok, "seconds": round(seconds, 1), "steps": steps})
    else:
        _summary(seen, seconds)
    if not ok:
        raise click.exceptions.Exit(1)


async def _play(*, quiet: bool) -> tuple[bool, float, Sequence[DemoPromise]]:
    async with staged() as stage:
        play = Demo(stage, _silent if quiet else _tell)
        ok = await play.play()
        return ok, stage.seconds, play.seen


def _silent(told: DemoText) -> None:
    """With --json only the summary is written."""


def _tell(told: DemoText) -> None:
    if told.heading:
        click.echo()
        click.secho(f"── {told.text}", bold=True, fg="cyan")
        return
    if told.rows:
        show_table(told.columns, told.rows)
    if told.text:
        click.echo(f"   {told.text}")


def _summary(seen: Sequence[DemoPromise], seconds: float) -> None:
    click.echo()
    show_table(
        ("", "promise", "seen", "took"),
        [("ok" if each.ok else "fail", each.promise, each.seen, f"{each.seconds:.1f} s") for each in seen],
    )
    if all(each.ok for each in seen):
        click.echo(f"All of it happened, in {seconds:.0f} s. Next: `wrasse jobs enqueue` and `wrasse run --help`.")
    else:
        click.echo("Not everything happened as promised; see the last line.")
