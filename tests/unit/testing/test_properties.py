"""The kit for users' tests: it lets a right sweep pass, and names every promise that a wrong one breaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, ClassVar

import pytest

from wrasse.engine.sweep import Action, Keep
from wrasse.ports.jobs import Job
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.records import Collection, Record, Records
from wrasse.ports.streams import Draft
from wrasse.testing import Checked, ManualClock, SweepCase, World, check_sweep, memory_app

CARTS = Collection.named("carts")
HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class OldCarts:
    """Carts that nobody bought within an hour."""

    name: ClassVar[str] = "old_carts"
    each: ClassVar[bool] = True

    carts: Annotated[Records, CARTS]
    batch_max: int = 10

    async def find(self, after: str | None, limit: int) -> Page[Record]:
        return await self.carts.page("", after, limit)

    def decide(self, suspect: Record, at: datetime) -> Action[Record] | Keep:
        if suspect.due_at is None or at - suspect.due_at < HOUR:
            return Keep("young")
        return Action("delete", suspect.key, "old", suspect)

    async def apply(self, actions: Sequence[Action[Record]]) -> Sequence[Outcome]:
        return [(await self.carts.delete(each.change.key, at=each.change.version)).outcome for each in actions]


async def plant(world: World) -> None:
    carts = world.records(CARTS)
    for key in ("a", "b"):
        await carts.create(key, b"{}", due_at=world.clock.now())
    world.clock.advance(HOUR)
    await carts.create("new", b"{}", due_at=world.clock.now())
    await carts.create("kept", b"{}")


async def claim(world: World) -> None:
    carts = world.records(CARTS)
    for key in ("a", "b"):
        record = await carts.get(key)
        assert record is not None
        await carts.put(key, b"bought", at=record.version, due_at=world.clock.now())


def case_of(kind: type[OldCarts]) -> SweepCase:
    return SweepCase(lambda world: kind(world.records(CARTS)), plant, claim, held=("new", "kept"), grace=HOUR)


class Greedy(OldCarts):
    def decide(self, suspect: Record, at: datetime) -> Action[Record] | Keep:
        return Action("delete", suspect.key, "there", suspect)


class Fickle(OldCarts):
    __slots__ = ("_seen",)

    def decide(self, suspect: Record, at: datetime) -> Action[Record] | Keep:
        times = getattr(self, "_seen", 0)
        object.__setattr__(self, "_seen", times + 1)
        return Keep(f"look {times}")


class Forgiving(OldCarts):
    def decide(self, suspect: Record, at: datetime) -> Action[Record] | Keep:
        young = suspect.due_at is None or not HOUR <= at - suspect.due_at < 2 * HOUR
        return Keep("young") if young else Action("delete", suspect.key, "old", suspect)


class Endless(OldCarts):
    async def find(self, after: str | None, limit: int) -> Page[Record]:
        page = await OldCarts.find(self, None, limit)
        return replace(page, more=True)


class Hasty(OldCarts):
    """Deletes whatever is there now, not what it looked at."""

    async def apply(self, actions: Sequence[Action[Record]]) -> Sequence[Outcome]:
        for each in actions:
            record = await self.carts.get(each.suspect)
            if record is not None:
                await self.carts.delete(each.suspect, at=record.version)
        return [Outcome.DONE] * len(actions)


class Meddling(OldCarts):
    """Marks what it has looked at."""

    async def find(self, after: str | None, limit: int) -> Page[Record]:
        page = await OldCarts.find(self, after, limit)
        for record in page:
            await self.carts.put(record.key, b"looked at", at=record.version, due_at=record.due_at)
        return page


class Boasting(OldCarts):
    async def apply(self, actions: Sequence[Action[Record]]) -> Sequence[Outcome]:
        return [Outcome.DONE] * len(actions)


class Crowding(OldCarts):
    async def find(self, after: str | None, limit: int) -> Page[Record]:
        return await OldCarts.find(self, after, limit + 1)


class Idle(OldCarts):
    def decide(self, suspect: Record, at: datetime) -> Action[Record] | Keep:
        return Keep("for ever")


async def test_a_sweep_that_keeps_its_promises_passes_and_is_told_how_much_was_checked() -> None:
    assert await check_sweep(case_of(OldCarts)) == Checked(suspects=4, actions=2)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Greedy, r"takes what is held: \['kept', 'new'\]"),
        (Fickle, "is not pure"),
        (Forgiving, "it must stay ripe"),
        (Endless, "page after page without end"),
        (Hasty, "changed what its owner had claimed"),
        (Meddling, "changed something|other suspects"),
        (Boasting, "met a conflict and says"),
        (Crowding, "in a page of"),
        (Idle, "finds nothing to do"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
async def test_a_broken_promise_is_named(kind: type[OldCarts], told: str) -> None:
    case = case_of(kind)
    if kind is Greedy:
        case = replace(case, claim=_claim_everything, grace=None)
    with pytest.raises(AssertionError, match=told):
        await check_sweep(case)


async def test_a_sweep_that_does_not_wait_for_its_grace_is_named() -> None:
    with pytest.raises(AssertionError, match="before its grace was over"):
        await check_sweep(case_of(Greedy))


async def _claim_everything(world: World) -> None:
    await claim(world)
    carts = world.records(CARTS)
    for key in ("new", "kept"):
        record = await carts.get(key)
        assert record is not None
        await carts.put(key, b"mine", at=record.version)


async def test_a_world_shows_every_change_of_every_port() -> None:
    world = World()
    shown = [await world.seen()]

    async def changed() -> bool:
        shown.append(await world.seen())
        return shown[-1] != shown[-2]

    carts = world.records(CARTS)
    written = await carts.create("a", b"1")
    assert await changed()
    await carts.put("a", b"2", at=written.version or "")
    assert await changed()
    await world.store.streams.append([Draft("orders.made", b"1")])
    assert await changed()
    await world.store.objects.create("o", b"bytes")
    assert await changed()
    await world.store.jobs.enqueue([Job("j")], request="r")
    assert await changed()
    assert not await changed()


async def test_handlers_are_tried_on_an_app_in_memory_whose_time_is_the_tests_own() -> None:
    clock = ManualClock()
    app = memory_app(clock)

    @app.handler("double")
    def double(job):  # type: ignore[no-untyped-def]
        return job.data["n"] * 2

    async with app:
        await app.jobs.enqueue("double", {"n": 21}, id="d", delay="1h")
        assert await app.run_pending() == 0
        clock.advance(HOUR)
        assert await app.run_pending() == 1
        assert await app.jobs.wait("d") == 42
