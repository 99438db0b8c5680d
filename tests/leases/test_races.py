"""Two at once: whoever wins the conditional write wins everything, and the other one is told."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from msgspec.structs import replace

from faults import CRASH, LOST_REQUEST, Network, Script
from leases.faulty_store import Gate, behind, faulty
from leases.places import HOURS, HOURS_PASS, NS, TTL, Place
from wrasse.engine.sweep import Action
from wrasse.errors import StoreUnavailable
from wrasse.leases.lease import KeyRecord, KeyRefused, Refusal, Terms
from wrasse.leases.leases import Leases
from wrasse.ports.outcome import Outcome
from wrasse.sweeps.expired_leases import CleanUp, Clear, ExpiredLeases

KEY = "orders/42"
OLD, NEW = b'{"n":1}', b'{"n":2}'


async def commit(leases: Leases, place: Place, data: bytes) -> KeyRecord:
    leased = await leases.acquire(KEY, "me", ttl=place.ttl)
    await leases.update(leased.granted, data)
    await leases.release(leased.granted)
    return leased


async def public(leases: Leases) -> bytes | None:
    seen = await leases.read_public(NS, KEY)
    return None if seen is None else seen.data


async def verdict_on_the_only_suspect(sweep: ExpiredLeases) -> Action[Clear | CleanUp]:
    page = await sweep.find(None, 10)
    (verdict,) = [sweep.decide(suspect, page.at) for suspect in page]
    assert isinstance(verdict, Action)
    return verdict


async def test_of_several_that_acquire_at_once_one_gets_the_key(place: Place) -> None:
    processes = [await place.process() for _ in range(4)]
    answers = await asyncio.gather(
        *(leases.acquire(KEY, f"o{n}", ttl=TTL) for n, leases in enumerate(processes)), return_exceptions=True
    )
    refused = [answer.code for answer in answers if isinstance(answer, KeyRefused)]
    assert (len([answer for answer in answers if isinstance(answer, KeyRecord)]), refused) == (1, [Refusal.WAITING] * 3)


async def test_of_two_that_find_a_lease_over_one_gets_the_key(place: Place) -> None:
    processes = [await place.process() for _ in range(3)]
    await processes[0].acquire(KEY, "gone", ttl=place.ttl)
    await place.expire()
    answers = await asyncio.gather(
        *(leases.acquire(KEY, "me", ttl=TTL) for leases in processes), return_exceptions=True
    )
    assert len([answer for answer in answers if isinstance(answer, KeyRecord)]) == 1


@HOURS_PASS
@pytest.mark.parametrize("by", ["acquire", "renewal"])
async def test_a_sweep_that_comes_second_takes_no_lease_away(place: Place, by: str) -> None:
    margin = Terms(margin=timedelta(0))
    gate = Gate("put")
    leases, other = await place.process(margin), await place.process(between=behind(records=gate))
    first = await leases.acquire(KEY, "me", ttl=TTL)
    sweeping = ExpiredLeases(other, place.opened[0].namespaces)
    if by == "renewal":  # sent in time, and arrives after the sweep has read
        renewing = await place.process(between=behind(records=(slow := Gate("put"))))
        slow.shut()
        late = asyncio.create_task(renewing.renew(first.granted, timedelta(hours=3)))
        await slow.reached.wait()
    await place.pass_time(HOURS)
    verdict = await verdict_on_the_only_suspect(sweeping)
    if by == "renewal":
        slow.open()
        await late
    else:
        first = await leases.acquire(KEY, "next", ttl=TTL)
    outcome = await sweeping.apply([verdict])
    meta = await leases.describe(NS, KEY)
    assert meta is not None
    assert meta.lease is not None
    assert (list(outcome), meta.lease.id) == ([Outcome.CONFLICT], first.granted.id)


async def test_a_renewal_after_the_next_holder_came_is_refused(place: Place) -> None:
    gate = Gate("put")
    leases, other = await place.process(between=behind(records=gate)), await place.process()
    leased = await leases.acquire(KEY, "me", ttl=place.ttl)
    gate.shut()
    late = asyncio.create_task(leases.renew(leased.granted, TTL))
    await gate.reached.wait()
    await place.expire()
    following = await other.acquire(KEY, "next", ttl=TTL)
    gate.open()
    with pytest.raises(KeyRefused) as refused:
        await late
    meta = await other.describe(NS, KEY)
    theirs = replace(following.granted, key="", namespace="")
    assert (refused.value.code, meta and meta.lease) == (Refusal.LEASE_REQUIRED, theirs)


async def test_a_renewal_and_an_update_of_the_same_holder_at_once_both_happen(place: Place) -> None:
    leases = await place.process()
    leased = await leases.acquire(KEY, "me", ttl=TTL)
    renewed, (version, _) = await asyncio.gather(
        leases.renew(leased.granted, timedelta(minutes=5)), leases.update(leased.granted, NEW)
    )
    meta = await leases.describe(NS, KEY)
    assert meta is not None
    assert (meta.lease, meta.staged and meta.staged.version) == (replace(renewed, key="", namespace=""), version)


@HOURS_PASS
async def test_what_a_dead_process_had_left_to_delete_goes_with_the_next_holder(place: Place) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # the dead end unheard
    other = await place.process()
    await commit(other, place, OLD)
    network = Network(Script({0: CRASH}, "delete"))
    dying = await place.process(between=behind(records=network, objects=network))
    await commit(dying, place, NEW)
    await dying.close()  # it died on the way to the superseded object
    following = await other.acquire(KEY, "next", ttl=TTL)
    await other.release(following.granted)
    for _ in range(3):
        await place.pass_time(HOURS)
        await place.sweep(other)
    assert (len(await place.states(KEY)), await public(other)) == (1, NEW)


async def test_a_reader_whose_object_was_just_superseded_gets_the_next_one(place: Place) -> None:
    gate = Gate("read")
    reader, writer = await place.process(between=behind(objects=gate)), await place.process()
    await commit(writer, place, OLD)
    gate.shut()
    reading = asyncio.create_task(public(reader))
    await gate.reached.wait()
    await commit(writer, place, NEW)
    await writer.close()  # the superseded object is gone now
    gate.open()
    assert await reading == NEW


async def test_nothing_of_a_later_holder_is_deleted_by_the_cleanup_for_an_earlier_one(place: Place) -> None:
    leases, gate = await place.process(), Gate("put")
    other = await place.process(between=behind(records=gate))
    await leases.acquire(KEY, "gone", ttl=place.ttl)
    await place.expire()
    following = await other.acquire(KEY, "next", ttl=TTL)
    gate.shut()
    update = asyncio.create_task(other.update(following.granted, NEW))  # its object is there, nobody names it yet
    await gate.reached.wait()
    cleaned = await leases.keys(NS).clean(KEY, following.granted.token - 1)
    gate.open()
    await update
    await other.release(following.granted)
    assert (cleaned, await public(leases)) == (0, NEW)


@HOURS_PASS
async def test_an_object_written_after_the_end_of_its_lease_goes_with_the_second_check(place: Place) -> None:
    gate = Gate("create")
    leases, other = await place.process(between=behind(objects=gate)), await place.process()
    leased = await leases.acquire(KEY, "paused", ttl=TTL)
    gate.shut()
    late = asyncio.create_task(leases.update(leased.granted, NEW))
    await gate.reached.wait()
    await place.pass_time(HOURS)
    await place.sweep(other)  # clears the lease; the object is not there yet
    late.cancel()  # the process died, and its last request still arrives
    with pytest.raises(asyncio.CancelledError):
        await late
    await other.keys(NS).versions.write(KEY, leased.granted.token, NEW)
    for _ in range(2):
        await place.pass_time(HOURS)
        await place.sweep(other)
    assert (await place.states(KEY), await place.due()) == ([], [])


# What goes wrong between two writes of a holder that goes on


@HOURS_PASS
@pytest.mark.parametrize("fate", ["cancelled", "without an answer", "taken up by another process"])
async def test_a_failed_update_of_a_lease_that_goes_on_leaves_nothing(place: Place, fate: str) -> None:
    gate, silent = Gate("put"), Network(Script(dict.fromkeys(range(3), LOST_REQUEST), "put"))
    failing = await place.process(between=behind(records=silent if fate == "without an answer" else gate))
    leased = await failing.acquire(KEY, "me", ttl=TTL)
    gate.shut()
    update = asyncio.create_task(failing.update(leased.granted, OLD))
    if fate != "without an answer":
        await gate.reached.wait()  # its object is written, and its record is not
        update.cancel()
    with pytest.raises((StoreUnavailable, asyncio.CancelledError)):
        await update
    going_on = await place.process() if fate == "taken up by another process" else failing
    await going_on.update(leased.granted, NEW)
    await going_on.release(leased.granted)
    await going_on.close()
    for _ in range(4):
        await place.pass_time(HOURS)
        await place.sweep(await place.process())
    meta = await going_on.describe(NS, KEY)
    assert meta is not None
    assert meta.state is not None
    assert (await place.states(KEY), await place.due()) == ([meta.state.name], [])


@HOURS_PASS
async def test_a_superseded_object_that_would_not_go_goes_with_the_sweep(place: Place) -> None:
    stubborn = Network(Script(dict.fromkeys(range(2), LOST_REQUEST), "delete"))
    leases = await place.process(between=behind(objects=stubborn))
    for data in (OLD, NEW):
        await commit(leases, place, data)
    await leases.close()
    before = await place.states(KEY)
    for _ in range(3):
        await place.pass_time(HOURS)
        await place.sweep(await place.process())
    assert (len(before), len(await place.states(KEY)), await place.due()) == (2, 1, [])


@pytest.mark.parametrize("place", ["directory", "strict s3"], indirect=True)  # where the index is apart
async def test_what_was_put_off_for_a_lease_that_never_came_is_done_all_the_same(place: Place) -> None:
    third = dict.fromkeys(range(5, 8), LOST_REQUEST)  # all that its acquire writes
    leases = await place.process(between=faulty(Script(third, "put")))
    for data in (OLD, NEW):
        await commit(leases, place, data)
    with pytest.raises(StoreUnavailable):
        await commit(leases, place, OLD)
    await leases.close()
    left = await place.states(KEY)
    await place.pass_time(HOURS)
    assert (len(left), await place.due()) == (1, [])


@HOURS_PASS
async def test_an_entry_that_another_process_took_away_is_written_again(place: Place) -> None:
    waiting, other, holding = [await place.process() for _ in range(3)]
    first = await holding.acquire(KEY, "first", ttl=TTL)
    with pytest.raises(KeyRefused):
        await waiting.acquire(KEY, "waits", ttl=TTL)  # has announced itself in the index
    await holding.release(first.granted)
    await holding.close()
    await commit(other, place, NEW)
    await other.close()
    await waiting.acquire(KEY, "waits", ttl=TTL)
    await place.pass_time(HOURS)
    assert await place.due() == [KEY]
