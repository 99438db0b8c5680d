"""The engine: every sweep gets its turn, no error and no outage stops it, and it says how things stand."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from faults import LOST_REQUEST, FaultyHeart, FaultyJournal, FaultyRecords, Network, Script
from wrasse.engine.guard import backend_guards
from wrasse.engine.loop import ENGINE_LEASES, Engine, SweepStatus
from wrasse.engine.run import RunContext
from wrasse.engine.turn import ENGINE_STATE, Scheduled, SweepBackend
from wrasse.errors import Refused, StoreUnavailable, UnknownName
from wrasse.ids import Ids
from wrasse.leases.manager import LeaseManager
from wrasse.ports.journal import Intent, LineFilter, SettledIntent
from wrasse.ports.outcome import Outcome

from .scene import HEARTBEAT_TIMEOUT, OldBottles, Scene, Shelf

HOUR = timedelta(hours=1)
TTL = timedelta(seconds=30)
ENOUGH = 30.0


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run of every sweep is due when its engine starts."""
    monkeypatch.setattr("wrasse.engine.turn.STAGGER_MAX", 0.0)


def _engine(scene: Scene, *sweeps: Scheduled, owner: str = "me", network: Network | None = None) -> Engine:
    network = network or Network(Script({}))
    return Engine(
        sweeps,
        home=SweepBackend(
            LeaseManager(FaultyRecords(scene.memory.records(ENGINE_LEASES), network), scene.clock),
            FaultyRecords(scene.memory.records(ENGINE_STATE), network),
        ),
        context=RunContext(FaultyJournal(scene.memory.journal, network), scene.clock, Ids(scene.clock)),
        owner=owner,
        lease_ttl=TTL,
    )


def _bottles(status: Shelf, name: str = "", *, interval: timedelta = HOUR, enabled: bool = True) -> Scheduled:
    return Scheduled(OldBottles(status), interval, name=name, enabled=enabled)


def _of(engine: Engine, name: str = "old_bottles") -> SweepStatus:
    return next(status for status in engine.status() if status.name == name)


async def _until(so: Callable[[], bool]) -> None:
    async with asyncio.timeout(ENOUGH):
        while not so():  # noqa: ASYNC110  a lease has no event to wait for
            await asyncio.sleep(0.002)


@asynccontextmanager
async def _running(engine: Engine) -> AsyncIterator[None]:
    async with asyncio.timeout(ENOUGH), asyncio.TaskGroup() as tasks:
        tasks.create_task(engine.run())
        try:
            yield
        finally:
            engine.stop()


async def test_every_enabled_sweep_runs_by_itself(scene: Scene) -> None:
    soon = timedelta(milliseconds=5)
    here, there = Shelf(scene.clock).fill(3), Shelf(scene.clock).fill(3)
    engine = _engine(scene, _bottles(here, "here", interval=soon), _bottles(there, "there", interval=soon))
    async with _running(engine):
        await _until(lambda: not here.bottles and not there.bottles)


async def test_a_sweep_that_is_not_enabled_runs_only_when_it_is_asked_to(scene: Scene) -> None:
    off = Shelf(scene.clock).fill(3)
    on = scene.status.fill(3)
    soon = timedelta(milliseconds=5)
    engine = _engine(scene, _bottles(off, "off", interval=soon, enabled=False), _bottles(on, interval=soon))
    async with _running(engine):
        await _until(lambda: not on.bottles)
        assert len(off.bottles) == 3
        assert (await engine.sweep_now("off")).done == 3


async def test_a_sweep_runs_again_after_its_interval(scene: Scene) -> None:
    scene.status.fill(1)
    engine = _engine(scene, _bottles(scene.status, interval=timedelta(milliseconds=5)))
    async with _running(engine):
        await _until(lambda: not scene.status.bottles)
        scene.status.fill(1)
        scene.pass_time(timedelta(seconds=1))
        await _until(lambda: not scene.status.bottles)


async def test_an_engine_that_is_stopped_ends_its_run_within_one_batch_and_gives_the_lease_back(scene: Scene) -> None:
    scene.status.fill(50)
    engine = _engine(scene, _bottles(scene.status))
    scene.status.before_apply = engine.stop
    async with asyncio.timeout(ENOUGH):
        await engine.run()
    last = _of(engine).last
    assert last is not None
    assert (last.stopped_by, last.done) == ("stopping", 10)
    assert await LeaseManager(scene.memory.records(ENGINE_LEASES), scene.clock).get("sweep/old_bottles") is None


async def test_an_engine_may_be_stopped_before_it_started_and_twice(scene: Scene) -> None:
    engine = _engine(scene, _bottles(scene.status))
    engine.stop()
    engine.stop()
    async with asyncio.timeout(ENOUGH):
        await engine.run()


async def test_an_error_in_one_sweep_does_not_stop_the_others(scene: Scene) -> None:
    broken, sound = Shelf(scene.clock).fill(1), Shelf(scene.clock).fill(1)

    def fall() -> None:
        raise OSError("the shelf fell down")

    broken.before_find = fall
    await scene.memory.records(ENGINE_STATE).create("strange", b"not ours")
    engine = _engine(scene, _bottles(broken, "broken"), _bottles(broken, "strange"), _bottles(sound, "sound"))
    async with _running(engine):
        await _until(lambda: all(status.totals.runs for status in engine.status()))
    stops = {status.name: status.last.stopped_by for status in engine.status() if status.last}
    assert stops == {"broken": "error", "strange": "error", "sound": None}
    assert sound.bottles == {}


async def test_an_engine_outlives_an_outage_and_goes_on_by_itself(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wrasse.engine.turn.BACKOFF_FIRST", 0.005)
    scene.status.fill(3)
    network = Network(Script({}))
    network.down = True
    engine = _engine(scene, _bottles(scene.status), network=network)
    async with _running(engine):
        await _until(lambda: _of(engine).totals.runs >= 3)
        held = _of(engine).paused
        assert held is not None
        assert (held.guard, held.reason) == ("backend_down", "get did not arrive")
        network.down = False
        await _until(lambda: not scene.status.bottles)
    assert _of(engine).paused is None


async def test_an_outage_that_only_the_lease_felt_still_holds_stuck_jobs_for_one_silence(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wrasse.engine.turn.BACKOFF_FIRST", 0.005)
    network = Network(Script({}))
    guards = backend_guards(FaultyHeart(scene.memory, network), scene.clock, HEARTBEAT_TIMEOUT)
    engine = _engine(scene, Scheduled(OldBottles(scene.status.fill(1)), HOUR, guards=guards), network=network)
    network.down = True
    async with _running(engine):
        await _until(lambda: _of(engine).totals.runs == 1)
        scene.pass_time(HEARTBEAT_TIMEOUT)
        network.down = False
        held = await engine.sweep_now("old_bottles")
        scene.pass_time(HEARTBEAT_TIMEOUT)
        free = await engine.sweep_now("old_bottles")
    assert (held.stopped_by, free.done) == ("backend_down", 1)


async def test_a_sweep_asked_for_gives_its_report(scene: Scene) -> None:
    scene.status.fill(3)
    report = await _engine(scene, _bottles(scene.status)).sweep_now("old_bottles")
    assert report.done == 3


async def test_a_sweep_that_another_process_runs_is_refused_with_its_name(scene: Scene) -> None:
    lease_manager = LeaseManager(scene.memory.records(ENGINE_LEASES), scene.clock)
    await lease_manager.acquire("sweep/old_bottles", "host-7", TTL)
    with pytest.raises(Refused, match="old_bottles is being run by host-7, for at most 30s more"):
        await _engine(scene, _bottles(scene.status)).sweep_now("old_bottles")


async def test_a_sweep_asked_for_during_an_outage_is_an_error(scene: Scene) -> None:
    network = Network(Script({}))
    network.down = True
    with pytest.raises(StoreUnavailable):
        await _engine(scene, _bottles(scene.status), network=network).sweep_now("old_bottles")


async def test_a_plan_is_what_the_next_run_then_does(scene: Scene) -> None:
    scene.status.fill(15)
    engine = _engine(scene, _bottles(scene.status))
    plan = await engine.plan("old_bottles")
    await engine.sweep_now("old_bottles")
    assert [line.suspect for line in plan.plan] == [name for batch in scene.status.batches for name in batch]


async def test_an_unknown_sweep_is_a_mistake_that_names_the_nearest(scene: Scene) -> None:
    engine = _engine(scene, _bottles(scene.status))
    with pytest.raises(UnknownName, match="no sweep 'old_botles'"):
        await engine.plan("old_botles")


async def test_status_tells_what_other_engines_did_and_who_is_at_it(scene: Scene) -> None:
    scene.status.fill(3)
    other, mine = _engine(scene, _bottles(scene.status), owner="other"), _engine(scene, _bottles(scene.status))
    await other.sweep_now("old_bottles")
    await LeaseManager(scene.memory.records(ENGINE_LEASES), scene.clock).acquire("sweep/old_bottles", "other", TTL)
    await mine.refresh()
    status = _of(mine)
    assert status.last is not None
    assert (status.last.done, status.elsewhere, status.totals.runs) == (3, "other", 0)


async def test_status_tells_when_the_next_run_is_due(scene: Scene) -> None:
    engine = _engine(scene, _bottles(scene.status))
    async with _running(engine):
        await _until(lambda: _of(engine).totals.runs == 1 and not _of(engine).running)
        await asyncio.sleep(0)
        next_at = _of(engine).next_at
    assert next_at is not None
    assert HOUR <= next_at - scene.clock.now() <= 1.1 * HOUR


async def test_only_reports_with_something_new_are_told(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wrasse.engine")
    engine = _engine(scene, _bottles(scene.status))
    for bottles in (0, 0, 2, 0):
        scene.status.fill(bottles)
        await engine.sweep_now("old_bottles")
    assert [record.getMessage() for record in caplog.records] == [
        "old_bottles: 0 seen, 0 kept, 0 done, 0 in conflict, 0 failed",
        "old_bottles: 2 seen, 0 kept, 2 done, 0 in conflict, 0 failed",
    ]


async def test_settled_journal_lines_are_forgotten_after_their_time_and_open_ones_never(scene: Scene) -> None:
    journal = scene.memory.journal
    for id in ("1", "2"):
        await journal.intend([Intent(id, "r", "old_bottles", "take", f"b{id}", "old")])
    await journal.settle([SettledIntent("1", Outcome.DONE)])
    engine = _engine(scene, _bottles(scene.status))
    scene.pass_time(timedelta(days=90))
    assert await engine.forget_journal() == 0
    scene.pass_time(timedelta(seconds=1))
    assert await engine.forget_journal() == 1
    assert [line.intent.id for line in await journal.page(LineFilter(), None, 10)] == ["2"]


async def test_an_outage_of_the_journal_is_said_once_and_outlived(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wrasse.engine.turn.BACKOFF_FIRST", 0.001)
    monkeypatch.setattr("wrasse.engine.loop.random.uniform", lambda low, high: low)
    journal = Script(dict.fromkeys(range(3), LOST_REQUEST))
    engine = _engine(scene, network=Network(journal))
    async with _running(engine):
        await _until(lambda: len(journal.calls) >= 5)
    assert [record.getMessage() for record in caplog.records] == [
        "old journal lines could not be deleted: page did not arrive"
    ]


async def test_a_sweep_that_is_added_to_a_running_engine_runs(scene: Scene) -> None:
    engine = _engine(scene)
    async with _running(engine):
        await asyncio.sleep(0)
        engine.add([_bottles(scene.status.fill(1), "late", interval=timedelta(milliseconds=20))])
        await _until(lambda: _of(engine, "late").totals.runs > 0)


async def test_a_backend_that_is_down_hides_only_the_sweeps_of_its_own(scene: Scene) -> None:
    down = Network(Script(dict.fromkeys(range(100), LOST_REQUEST)))
    home = SweepBackend(
        LeaseManager(FaultyRecords(scene.memory.records(ENGINE_LEASES), down), scene.clock),
        FaultyRecords(scene.memory.records(ENGINE_STATE), down),
    )
    mine = _engine(scene, replace(_bottles(scene.status, "a"), home=home), _bottles(scene.status, "b"))
    await _engine(scene, _bottles(scene.status, "b"), owner="other").sweep_now("b")
    await mine.refresh()
    assert [len(_of(mine, name).reports) for name in "ab"] == [0, 1]


@pytest.mark.parametrize("where", ["state", "lease"])
async def test_a_record_of_a_sweep_that_cannot_be_read_hides_only_that_sweep(scene: Scene, where: str) -> None:
    mine = _engine(scene, _bottles(scene.status, "a"), _bottles(scene.status, "b"))
    other = _engine(scene, _bottles(scene.status, "a"), _bottles(scene.status, "b"), owner="other")
    await other.sweep_now("a")
    await other.sweep_now("b")
    records, key = scene.memory.records(ENGINE_STATE), "a"
    if where == "lease":
        records, key = scene.memory.records(ENGINE_LEASES), "sweep/a"
    found = await records.get(key)
    if found is None:
        await records.create(key, b"not ours")
    else:
        await records.put(key, b"not ours", at=found.version)
    await mine.refresh()
    assert [len(_of(mine, name).reports) for name in "ab"] == [0, 1]
