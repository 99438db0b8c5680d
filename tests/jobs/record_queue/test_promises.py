"""A queue on records: what it promises beyond every job queue, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from conformance.queue_client import QueueClient, fresh
from faults import CRASH, LOST_REPLY, Crashed, Network, Script
from jobs.record_queue.scene import process, stored
from leases.places import Place
from wrasse.api.app import connect
from wrasse.clock import ManualClock
from wrasse.errors import StoreUnavailable, UsageError
from wrasse.jobs.record_queue.queue import ATTEMPTS_HEADER, RecordedJobs, RecordedOptions
from wrasse.jobs.record_queue.store import CHARGE, INLINE_BYTES_MAX, STALE
from wrasse.ports.jobs import (
    Budget,
    Claim,
    ClaimedJob,
    Complete,
    DeadLetterJob,
    Delete,
    Job,
    JobFilter,
    JobGroup,
    JobState as In,
    Rate,
    Reason,
    Requeue,
)
from wrasse.ports.outcome import Outcome

T = TypeVar("T")
HEARTBEAT_TIMEOUT = timedelta(seconds=5)
LATER = timedelta(seconds=6)
LARGE = bytes(INLINE_BYTES_MAX + 1)
FEW = pytest.mark.parametrize("place", ["memory", "directory", "strict s3"], indirect=True)
_ANY = JobFilter()
MEMORY = pytest.mark.parametrize("place", ["memory"], indirect=True)


async def claim_jobs(jobs: RecordedJobs, limit: int = 1) -> list[ClaimedJob]:
    claimed = await jobs.claim(["low"], limit, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request=fresh())
    return list(claimed.jobs)


async def one(jobs: RecordedJobs) -> Claim:
    (claimed,) = await claim_jobs(jobs)
    return claimed.claim


# What is left behind


@FEW
@pytest.mark.parametrize("payload", [b"small", LARGE], ids=["small", "large"])
async def test_nothing_is_left_of_a_finished_job(place: Place, payload: bytes) -> None:
    jobs = await process(place)
    await QueueClient(jobs).enqueue(Job("a", payload=payload))
    claim = await one(jobs)
    await jobs.settle([Requeue(claim, Budget.FAILURES, Reason.FAILED)], request=fresh())
    (claimed,) = await claim_jobs(jobs)
    ended = await jobs.settle([Complete(claimed.claim, result=LARGE)], request=fresh())
    await jobs.close()
    assert (claimed.job.payload, list(ended), await stored(place)) == (payload, [Outcome.DONE], [])


@FEW
async def test_follow_ups_come_although_the_finished_job_is_gone(place: Place) -> None:
    jobs = await process(place)
    await QueueClient(jobs).enqueue("a")
    await jobs.settle([Complete(await one(jobs), enqueues=(Job("next"),))], request=fresh())
    (following,) = await claim_jobs(jobs)
    await jobs.settle([Complete(following.claim)], request=fresh())
    await jobs.close()
    assert (following.job.id, await stored(place)) == ("next", [])


class Gate:
    """Holds up the first call of this name that some work makes, or the reply to it, until it is opened."""

    def __init__(self, call: str) -> None:
        self._call, self._open = call, asyncio.Event()
        self.reached = asyncio.Event()

    async def __call__(self, call: str) -> None:
        if call == self._call and not self.reached.is_set():
            self.reached.set()
            await self._open.wait()

    async def hold(self, work: Coroutine[object, object, object]) -> asyncio.Task[object]:
        """Starts this, and comes back when it stands at the gate or has come to its end without."""
        before = GATE.set(self)
        task = asyncio.create_task(work)
        GATE.reset(before)
        waiting = asyncio.create_task(self.reached.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return task

    async def end(self, task: asyncio.Task[object]) -> None:
        self._open.set()
        await task


GATE: ContextVar[Gate] = ContextVar("GATE")


class Gated(Network):
    """Calls pass the gate of the work that makes them."""

    async def call(self, name: str, act: Callable[[], Awaitable[T]]) -> T:
        gate = GATE.get(None)
        if gate is None:
            return await super().call(name, act)
        await gate(name)
        answer = await super().call(name, act)
        await gate(f"reply to {name}")
        return answer


async def finish_next(jobs: RecordedJobs) -> list[str]:
    """Runs what follows; its ids."""
    claimed = await claim_jobs(jobs)
    await jobs.settle([Complete(each.claim) for each in claimed], request=fresh())
    return [each.job.id for each in claimed]


@FEW
@pytest.mark.parametrize("same", [True, False], ids=["same process", "other process"])
async def test_follow_ups_come_once_although_another_looks_for_what_is_overdue_meanwhile(
    place: Place, same: bool
) -> None:
    finishing, looking = Gate("create"), Gate("create")
    jobs = await process(place, Gated(Script({})))
    other = jobs if same else await process(place, Gated(Script({})))
    await QueueClient(jobs).enqueue("a")
    ending = Complete(await one(jobs), enqueues=(Job("next"),))
    finish = await finishing.hold(jobs.settle([ending], request=fresh()))
    assert finishing.reached.is_set()
    look = await looking.hold(other.expire("a"))  # sees a job that has ended, with something left to do
    await finishing.end(finish)
    assert await finish_next(jobs) == ["next"]
    await looking.end(look)
    await jobs.close()
    await other.close()
    assert (await finish_next(jobs), await stored(place)) == ([], [])


@FEW
async def test_follow_ups_come_once_although_the_process_that_promised_them_stood_still(place: Place) -> None:
    standing = Gate("reply to put")
    jobs, other = await process(place, Gated(Script({}))), await process(place)
    await QueueClient(jobs).enqueue("a")
    ending = Complete(await one(jobs), enqueues=(Job("next"),))
    finish = await standing.hold(jobs.settle([ending], request=fresh()))
    assert standing.reached.is_set()
    await other.expire("a")
    assert await claim_jobs(other) == [], "before its time is over nobody else goes on with it"
    await place.pass_time(CHARGE)
    await other.expire("a")
    assert await finish_next(other) == ["next"]
    await standing.end(finish)
    await jobs.close()
    await other.close()
    assert (await finish_next(jobs), await stored(place)) == ([], [])


# D12: a crash in the middle of burying blocked the queue; here it is one of the ways
WAYS = ("complete", "complete with more to do", "requeue", "dead-letter", "enqueue", "claim")


async def go(jobs: RecordedJobs, way: str, claim: Claim) -> None:
    settlement = {
        "complete": Complete(claim),
        "complete with more to do": Complete(claim, enqueues=(Job("next", payload=LARGE),)),
        "requeue": Requeue(claim, Budget.FAILURES, Reason.FAILED),
        "dead-letter": DeadLetterJob(claim, Reason.FAILED),
    }.get(way)
    if settlement is not None:
        await jobs.settle([settlement], request="the end")
    elif way == "enqueue":
        await jobs.enqueue([Job("b", payload=LARGE)], request="the enqueue")
    else:
        await jobs.settle([Requeue(claim, Budget.INTERRUPTIONS, Reason.INTERRUPTED)], request="back")
        await claim_jobs(jobs)
    await jobs.close()


async def crash(place: Place, way: str, step: int) -> bool:
    """The job `a`, with a large payload, is held by a process that dies before this call of its store."""
    calm = await process(place)
    await calm.enqueue([Job("a", payload=LARGE)], request=fresh())
    await calm.close()
    script = Script({})
    network = Network(script)
    mortal = await process(place, network)
    claim = await one(mortal)
    await mortal.close()
    script.faults = {len(script.calls) + step: CRASH}
    with suppress(Crashed):
        await go(mortal, way, claim)
    return network.dead


LONG = [pytest.param(name, marks=pytest.mark.full) for name in ("directory", "strict s3")]


@pytest.mark.parametrize("place", ["memory", *LONG], indirect=True)
@pytest.mark.parametrize("way", WAYS)
async def test_a_crash_at_any_step_loses_nothing_and_leaves_nothing_for_long(place: Place, way: str) -> None:
    for step in range(12):
        crashed = await crash(place, way, step)
        ran: list[str] = []
        for _ in range(3):  # rescued, taken, finished, with what comes after; then what became stale is met
            await place.pass_time(STALE)
            jobs = await process(place)
            for dead in await jobs.page(In.DEAD, _ANY, None, 10):
                await jobs.delete([Delete(dead.claim, In.DEAD)])
            for claimed in await claim_jobs(jobs, 10):
                assert claimed.job.payload in (LARGE, b"")
                ran.append(claimed.job.id)
                await jobs.settle([Complete(claimed.claim)], request=fresh())
            await jobs.close()
        if way in ("requeue", "enqueue", "claim"):
            assert "a" in ran, (way, step)
        assert await stored(place) == [], (way, step)
        if not crashed:
            return
    raise AssertionError("it takes more steps than expected")


@MEMORY
async def test_a_sign_that_a_crash_left_shows_no_job_twice_and_goes_once_it_is_old(place: Place) -> None:
    await QueueClient(await process(place)).enqueue("a")
    mortal = await process(place, Network(Script({0: CRASH}, "delete")))
    await claim_jobs(mortal)
    await mortal.close()
    jobs = await process(place)
    await place.pass_time(LATER)
    claim = await one(jobs)
    await jobs.settle([Requeue(claim, Budget.FAILURES, Reason.FAILED, delay=2 * STALE)], request=fresh())
    await jobs.close()
    early = [info.id for info in await jobs.page(In.READY, _ANY, None, 10)], len(await stored(place))
    await place.pass_time(STALE)
    late = [info.id for info in await jobs.page(In.READY, _ANY, None, 10)]
    await jobs.close()
    assert (early, late, len(await stored(place))) == ((["a"], 3), ["a"], 2)  # the record, its sign, and the loose one


@MEMORY
async def test_a_finish_whose_reply_was_lost_is_never_told_as_lost(place: Place) -> None:
    script = Script({}, "delete")
    jobs = await process(place, Network(script))
    await QueueClient(jobs).enqueue("a")
    claim = await one(jobs)
    await jobs.close()
    script.faults = {len(script.calls): LOST_REPLY}
    with pytest.raises(StoreUnavailable):
        await jobs.settle([Complete(claim)], request="the end")
    again = await jobs.settle([Complete(claim)], request="the end")
    another = await jobs.settle([Complete(claim)], request="another")
    assert (list(again), list(another)) == ([Outcome.UNKNOWN], [Outcome.CONFLICT])


# D13: a worker that died never spent anything


@FEW
async def test_a_consumer_that_dies_spends_the_rescue_budget_without_any_sweep(place: Place) -> None:
    jobs = await process(place, options=RecordedOptions(rescues_max=2))
    await QueueClient(jobs).enqueue("a")
    rescues = []
    for _ in range(4):
        rescues += [claimed.rescues for claimed in await claim_jobs(jobs)]
        await place.pass_time(LATER)
    assert rescues == [0, 1, 2]
    await claim_jobs(jobs)
    record = await jobs.get("a")
    assert record is not None
    assert (record.info.state, record.info.reason) == (In.DEAD, Reason.WORKER_DIED)


@pytest.mark.parametrize("number", [0, 2])
async def test_the_budget_in_the_settings_is_kept_without_any_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setenv("WRASSE_WORKER_RESCUES_MAX", str(number))
    clock = ManualClock()
    async with connect(f"file://{tmp_path}/data", clock=clock) as app:
        await app.jobs.enqueue("resize", {}, id="a")
        _, jobs = await app._jobs()
        queues, taken = list(app.config.settings.worker.queues.values()), 0
        for _ in range(5):
            found = await jobs.claim(queues, 1, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request=fresh())
            taken += len(found.jobs)
            clock.advance(LATER)
    assert taken == 1 + number


@MEMORY
async def test_a_job_with_a_number_of_attempts_has_no_more_however_they_end(place: Place) -> None:
    jobs = await process(place)
    await QueueClient(jobs).enqueue(Job("a", headers={ATTEMPTS_HEADER: "2"}))
    delivered = 0
    for _ in range(5):
        delivered += len(await claim_jobs(jobs))
        await place.pass_time(LATER)
    assert delivered == 2


@MEMORY
async def test_overdue_jobs_are_seen_to_while_there_is_other_work(place: Place) -> None:
    jobs = await process(place)
    await QueueClient(jobs).enqueue("stuck")
    await claim_jobs(jobs)
    await QueueClient(jobs).enqueue(*(str(n) for n in range(10)))
    await place.pass_time(timedelta(seconds=20))
    await claim_jobs(jobs)
    await jobs.close()
    assert [claimed.job.id for claimed in await claim_jobs(jobs)] == ["stuck"]


@MEMORY
async def test_a_worker_that_beats_keeps_its_job(place: Place) -> None:
    jobs, other = await process(place), await process(place)
    await QueueClient(jobs).enqueue("a")
    claim = await one(jobs)
    for _ in range(3):
        await place.pass_time(timedelta(seconds=4))
        await QueueClient(jobs).heartbeat(claim, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    assert (await claim_jobs(other), list(await jobs.settle([Complete(claim)], request=fresh()))) == (
        [],
        [Outcome.DONE],
    )


# What it cannot have


@MEMORY
@pytest.mark.parametrize("what", ["a unique name", "a group", "members", "a rate"])
async def test_what_it_cannot_have_is_refused(place: Place, what: str) -> None:
    jobs = await process(place)

    async def ask() -> None:
        match what:
            case "a unique name":
                await jobs.enqueue([Job("a", unique="x")], request=fresh())
            case "members":
                await jobs.enqueue([Job("a", group="g")], request=fresh())
            case "a group":
                await jobs.enqueue([], request=fresh(), groups=[JobGroup("g", 1, Job("c"))])
            case _:
                rates = [Rate("low", 1, HEARTBEAT_TIMEOUT)]
                await jobs.claim(
                    ["low"], 1, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request=fresh(), rates=rates
                )

    with pytest.raises(UsageError, match="on records"):
        await ask()
