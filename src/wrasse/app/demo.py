"""The demo: what wrasse promises, seen to happen on this machine in under a minute, with real processes and no server.

Every scene tells what it does, waits until it has happened, and says what was seen. A scene that does not end as
promised ends the demo, and its exit code says so. No scene depends on how fast the machine is: where a worker may be
taken for dead since the machine is busy, and its job is given to another, more attempts than needed are no failure.
"""

from __future__ import annotations

import signal
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from wrasse.app.app_jobs import NewJob
from wrasse.app.demo_archive import AUDIT, MESSAGES, publish_and_archive
from wrasse.app.demo_stage import PATIENCE, NotSeen, Stage
from wrasse.app.demo_work import LEASE
from wrasse.app.outlook import outlook
from wrasse.engine.report import Planned
from wrasse.ports.jobs import JobRecord, Place, WorkerState
from wrasse.ports.journal import Line, LineFilter

JOBS = 40


@dataclass(frozen=True, slots=True)
class Seen:
    """One promise of the demo, and what was seen of it."""

    promise: str
    seen: str
    ok: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Told:
    """What a narrator says: a heading of a scene, a line of it, or a table."""

    text: str
    heading: bool = False
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = field(default_factory=tuple)


class Demo:
    """The play. `tell` is whoever shows it."""

    def __init__(self, stage: Stage, tell: Callable[[Told], None]) -> None:
        self._stage = stage
        self._tell = tell
        self.seen: list[Seen] = []

    async def play(self) -> bool:
        """All scenes, in order; False if one did not end as promised."""
        scenes: Sequence[tuple[str, Callable[[], Awaitable[str]]]] = (
            ("jobs run, each once", self._jobs_run),
            ("a killed worker's job comes back by itself", self._killed_worker),
            ("a lease changes hands, and its token grows", self._lease),
            ("a stream is archived, and nothing is missing", self._archive),
            ("the job is done by another worker", self._comes_back),
            ("a poison job is buried after its budget", self._poison),
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
            self.seen.append(Seen(promise, what, ok, self._stage.seconds - started))
            if not ok:
                return False
        return True

    def _head(self, text: str) -> None:
        self._tell(Told(text, heading=True))

    def _say(self, text: str) -> None:
        self._tell(Told(text))

    async def _jobs_run(self) -> str:
        stage = self._stage
        self._head(f"Two workers, {JOBS} jobs")
        self._say("starting four `wrasse run --role=worker` processes on one SQLite file: two for this, two for later")
        for fragile in (False, False, True, True):
            await stage.start_worker(fragile=fragile)
        await stage.until(lambda: self._beating(4), "the first beat of four workers")
        await self._put_poison()
        await stage.app.jobs.put_many(NewJob("resize", {"picture": n}, priority="high") for n in range(JOBS))
        self._say(f"put {JOBS} jobs in one step; waiting until they are done")
        await stage.until(lambda: self._done("high", JOBS), f"{JOBS} jobs done")
        finished = [state async for state in stage.app.jobs.list(Place.DONE)]
        attempts = sum(state.attempts for state in finished if state.queue == "high")
        if attempts < JOBS:
            raise NotSeen(f"{JOBS} jobs took {attempts} attempts", do="report this")
        return f"{JOBS} done with {attempts} attempts"

    async def _put_poison(self) -> None:
        """Runs beside the other scenes: its workers die one after the other, each after a silence."""
        await self._stage.app.jobs.put("poison", b"", id="poison", queue="fragile")

    async def _beating(self, count: int) -> bool | None:
        counts = await self._stage.app.jobs.counts()
        return sum(1 for worker in counts.workers if worker.until > counts.at) >= count or None

    async def _done(self, queue: str, count: int) -> bool | None:
        counts = await self._stage.app.jobs.counts()
        return any(each.queue == queue and each.done >= count for each in counts.queues) or None

    async def _job(self, id: str, place: Place) -> JobRecord | None:
        record = await self._stage.app.jobs.get(id)
        return record if record is not None and record.state.place is place else None

    async def _killed_worker(self) -> str:
        stage = self._stage
        self._head("kill -9")
        await stage.app.jobs.put("slow", {"report": 7}, id="slow-report")
        held = await stage.until(lambda: self._job("slow-report", Place.HELD), "the take of slow-report")
        worker = await stage.until(lambda: self._worker(held.state.worker), "its worker's beat")
        process = self._process(worker)
        self._say(f"worker {worker.info.id} holds slow-report; killing it with SIGKILL")
        process.send_signal(signal.SIGKILL)
        await process.wait()
        self._say("nobody beats for the job now. `wrasse explain slow-report` says:")
        counts = await stage.app.jobs.counts()
        for line in await outlook(held, stage.settings, await stage.queue(), counts.at):
            self._say(f"  next  {line}")
        return f"process {worker.info.pid} killed while it held the job"

    async def _worker(self, id: str) -> WorkerState | None:
        counts = await self._stage.app.jobs.counts()
        return next((worker for worker in counts.workers if worker.info.id == id), None)

    def _process(self, worker: WorkerState) -> Process:
        found = self._stage.process(worker.info.pid)
        if found is None:
            raise NotSeen(f"worker {worker.info.id} is no process of this demo", do="report this")
        return found

    async def _lease(self) -> str:
        stage = self._stage
        self._head("A lease changes hands meanwhile")
        holder = await stage.start_holder()
        assert holder.stdout is not None, "started with a pipe"
        first = int(await stage.within(holder.stdout.readline(), "the first lease") or b"0")
        self._say(f"process {holder.pid} holds the lease of {LEASE} with token {first}; killing it too")
        holder.send_signal(signal.SIGKILL)
        await holder.wait()
        async with stage.app.hold(LEASE, ttl="2s", wait=f"{PATIENCE:.0f}s", owner="second") as lease:
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
        self._tell(Told("each is named after the entry it follows; `wrasse archives verify` walks the chain",
                        columns=("archive", "bytes"), rows=rows))  # fmt: skip
        if not kept.whole or len(kept.archives) != 3:
            found = [problem.what for each in kept.streams for problem in each.problems]
            raise NotSeen(f"{len(kept.archives)} archives, {found}", do="report this")
        return f"{MESSAGES} messages in {len(kept.archives)} archives, each once"

    async def _comes_back(self) -> str:
        stage = self._stage
        self._head("The job comes back")
        record = await stage.until(lambda: self._job("slow-report", Place.DONE), "slow-report done by another worker")
        for attempt in record.history:
            self._say(f"attempt {attempt.number}: {attempt.reason.value}, {attempt.error}")
        self._say(f"attempt {record.state.attempts}: done by {record.state.worker or 'another worker'}")
        if record.state.rescues != 1:  # its budget here: a second one would have buried it
            raise NotSeen(f"it was rescued {record.state.rescues} times", do="report this")
        return f"done with attempt {record.state.attempts}, after 1 rescue; failures spent: {record.state.failures}"

    async def _poison(self) -> str:
        stage = self._stage
        self._head("Poison")
        self._say("a job that kills every worker that takes it, with a budget of one rescue")
        record = await stage.until(lambda: self._job("poison", Place.DEAD), "the burial of the poison job")
        for attempt in record.history:
            self._say(f"attempt {attempt.number}: {attempt.reason.value}, {attempt.error}")
        if record.state.attempts < 2:
            raise NotSeen(f"it was taken {record.state.attempts} times", do="report this")
        return f"dead after {record.state.attempts} workers: {record.state.reason}"

    async def _dry_run(self) -> str:
        self._head("Look before you sweep")
        self._say("done jobs are kept for 5 s here. `wrasse sweep --dry-run` changes nothing and says:")
        engine = await self._stage.app.engine()
        plan = await self._stage.until(lambda: _planned(engine.plan("finished_jobs")), "a plan")
        rows = [(each.verb, each.suspect, each.reason) for each in plan[:4]]
        self._tell(Told(f"... and {len(plan) - len(rows)} more", columns=("would", "to", "because"), rows=rows))
        return f"{len(plan)} deletions planned, none made"

    async def _journal(self) -> str:
        self._head("The journal")
        lines = await self._stage.until(self._journaled, "lines of what happened to poison and slow-report")
        self._tell(Told("", columns=("sweep", "did", "to", "outcome", "why"), rows=[_row(line) for line in lines]))
        verbs = [line.intent.verb for line in lines]
        return f"{len(lines)} lines: {verbs.count('requeue')} requeued, {verbs.count('bury')} buried"

    async def _journaled(self) -> list[Line] | None:
        """What the sweep did, once all that was seen before has its outcome: a line gets that after the action."""
        opened = await self._stage.app.open("engine")
        lines = list(await opened.journal.page(LineFilter(sweep="stuck_jobs"), None, 20))
        done = {(line.intent.verb, line.intent.suspect) for line in lines if line.outcome == "done"}
        return lines if done >= {("bury", "poison"), ("requeue", "poison"), ("requeue", "slow-report")} else None

    async def _drain(self) -> str:
        self._head("Curtain")
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
