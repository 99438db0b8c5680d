"""Three keys in one transaction, and a process that dies, or hears nothing, at every single write: all or nothing.

Whoever comes next (a replay, somebody who needs one of the keys, the caller who asks again, or only the sweeps) ends
it, and everybody who was told anything was told the truth.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from faults import CRASH, LOST_REPLY, LOST_REQUEST, Crashed, Fault, Network
from leases.clients import WRITES
from leases.faulty_store import behind
from leases.places import Place
from leases.transaction_scene import KEYS, Told, check, marks, name_of, nothing_is_left, release, settle, stage
from wrasse.clock import ManualClock
from wrasse.errors import StoreUnavailable
from wrasse.leases.lease import KeyRecord, KeyRefused
from wrasse.leases.leases import Leases
from wrasse.leases.transactions.states import Decision

FIRST, MARK = name_of(1), name_of(2)
ENDINGS = ("release", "decide", "roll back", "walk away")
THEN = ("replay", "contender", "ask again", "only sweeps")
FAULTS = {"dies": CRASH, "hears nothing": LOST_REPLY, "is not heard": LOST_REQUEST}


@dataclass
class AtWrite:
    """A fault at the nth write, of whichever kind; `reached` tells whether there were so many."""

    number: int
    fault: Fault
    seen: int = -1

    def next(self, call: str) -> Fault:
        if call not in WRITES:
            return Fault()
        self.seen += 1
        return self.fault if self.seen == self.number else Fault()

    @property
    def reached(self) -> bool:
        return self.seen >= self.number


def deaths_are_no_news(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    if not isinstance(context.get("exception"), Crashed):
        loop.default_exception_handler(context)


@dataclass
class Caller:
    """Whose transaction it is: what it holds, and whether it got as far as its end."""

    held: list[KeyRecord] = field(default_factory=list)
    ready: bool = False


async def transact(leases: Leases, told: Told, mark: str, ending: str, caller: Caller) -> None:
    """One transaction over all keys; what became of it is noted if anybody said so."""
    told.keys[mark] = KEYS
    for key in KEYS:
        caller.held.append(await leases.acquire(key, "me", transaction=mark))
    held = caller.held
    for leased in held:
        await stage(leases, leased, mark)
    caller.ready = True
    if ending == "release":
        await release(leases, held[0], told, mark)
    elif ending == "roll back":
        await release(leases, held[1], told, mark, commit=False)
    elif ending == "decide":
        state = await leases.decide(mark, commit=True)
        (told.committed if state is Decision.COMMIT else told.undone).add(mark)
    await leases.close()


async def recover(place: Place, then: str, told: Told, caller: Caller) -> None:
    """What comes next, from a process that knows nothing."""
    other = await place.process()
    if then == "ask again" and caller.held:
        for leased in (caller.held[0], caller.held[-1]):  # who has not staged everything cannot want it committed
            await release(other, leased, told, MARK, commit=caller.ready)
        return
    await place.expire()
    if then == "replay":
        with suppress(KeyRefused):
            state = await other.transactions.replay(MARK)
            if state is not Decision.PENDING:
                (told.committed if state is Decision.COMMIT else told.undone).add(MARK)
    if then == "contender":
        leased = await other.acquire(KEYS[1], "next")
        seen = MARK in await marks(other, KEYS[1])
        (told.committed if seen else told.undone).add(MARK)  # from then on it can only be so
        await other.release(leased.granted)
    await other.close()


async def story(place: Place, plan: AtWrite, ending: str, then: str) -> bool:
    """One life; whether the fault happened in it."""
    asyncio.get_running_loop().set_exception_handler(deaths_are_no_news)
    assert isinstance(place.clock, ManualClock)
    told, caller = Told(), Caller()
    await transact(await place.process(), told, FIRST, "release", Caller())
    assert told.committed == {FIRST}
    network = Network(plan)
    process = await place.process(between=behind(records=network, objects=network))
    with suppress(Crashed, StoreUnavailable, KeyRefused):
        await transact(process, told, MARK, ending, caller)
    with suppress(Crashed):
        await process.close()
    await recover(place, then, told, caller)
    leases, backend = await place.process(), await place.backend()
    if any([MARK in await marks(leases, key) for key in KEYS]):  # for a day anybody can learn what became of it
        assert await leases.transactions.transaction_log.outcome(MARK) is Decision.COMMIT
    await settle(leases, backend, place.clock)
    states = await check(leases, told)
    assert all(found[0] == FIRST for found in states.values())
    await nothing_is_left(backend)
    return plan.reached


VARIANTS = list(itertools.product(FAULTS, ENDINGS, THEN))
SHORT = [each for each in VARIANTS if each[0] == "dies" or each[1:] in (("release", "ask again"), ("decide", "replay"))]


async def at_every_write(place: str, folder: Path, fault: str, ending: str, then: str) -> int:
    """One life for each write of the transaction; how many there were."""
    for number in itertools.count():
        fresh = Place(place, folder / str(number))
        reached = await story(fresh, AtWrite(number, FAULTS[fault]), ending, then)
        await fresh.close()
        if not reached:
            return number
    raise AssertionError("a life without end")


@pytest.mark.parametrize(("fault", "ending", "then"), SHORT)
async def test_a_process_may_die_at_every_write(tmp_path: Path, fault: str, ending: str, then: str) -> None:
    assert await at_every_write("memory", tmp_path, fault, ending, then) >= (12 if ending == "walk away" else 20)


SAMPLE = [
    (13, "dies", "release", "replay"),
    (15, "dies", "decide", "contender"),
    (14, "hears nothing", "release", "ask again"),
    (17, "dies", "release", "only sweeps"),
]


@pytest.mark.parametrize("place", ["directory", "strict s3"], indirect=True)
@pytest.mark.parametrize(("number", "fault", "ending", "then"), SAMPLE)
async def test_on_real_stores_too(place: Place, number: int, fault: str, ending: str, then: str) -> None:
    assert await story(place, AtWrite(number, FAULTS[fault]), ending, then)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", ["memory", "directory", "strict s3"])
@pytest.mark.parametrize(("fault", "ending", "then"), VARIANTS)
async def test_everywhere_a_process_may_die_at_every_write(
    store: str, tmp_path: Path, fault: str, ending: str, then: str
) -> None:
    assert await at_every_write(store, tmp_path, fault, ending, then) >= 12
