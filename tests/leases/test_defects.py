"""What the origin of our lease API was seen to get wrong, one test each, by the numbers of its list."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from faults import CRASH, LOST_REPLY, Crashed, Script
from leases.faulty_store import Gate, behind, faulty
from leases.places import HOURS, HOURS_PASS, NS, TTL, Place
from wrasse.clock import ManualClock
from wrasse.engine.sweep import Action
from wrasse.errors import WrasseError
from wrasse.leases.lease import DROPPED_MAX, KeyRecord, KeyRefused, Refusal
from wrasse.leases.leases import Leases
from wrasse.leases.names import BadName
from wrasse.ports.outcome import Outcome
from wrasse.sweeps.aged_records import AgedRecords
from wrasse.sweeps.expired_leases import ExpiredLeases

KEY = "orders/42"
OLD, NEW = b'{"n":1}', b'{"n":2}'


async def acquire(leases: Leases, place: Place, owner: str = "me", key: str = KEY, **more: str) -> KeyRecord:
    return await leases.acquire(key, owner, ttl=place.ttl, **more)  # type: ignore[arg-type]


async def commit(leases: Leases, place: Place, data: bytes, owner: str = "me") -> KeyRecord:
    leased = await acquire(leases, place, owner)
    await leases.update(leased.granted, data)
    await leases.release(leased.granted)
    return leased


async def public(leases: Leases, key: str = KEY) -> bytes | None:
    seen = await leases.read_public(NS, key)
    return None if seen is None else seen.data


# D1: a public read returned what was only staged


async def test_a_public_read_never_shows_what_is_staged(place: Place) -> None:
    leases, other = await place.process(), await place.process()
    await commit(leases, place, OLD)
    leased = await acquire(leases, place)
    await leases.update(leased.granted, NEW)
    seen = await leases.read(leased.granted)
    assert (await public(leases), await public(other), seen and seen.data) == (OLD, OLD, NEW)


async def test_what_a_holder_staged_through_one_process_it_reads_through_another(place: Place) -> None:
    leases, other = await place.process(), await place.process()
    leased = await acquire(leases, place)
    await other.update(leased.granted, NEW)
    seen = await leases.read(leased.granted)
    assert seen is not None
    assert seen.data == NEW


# D2: a commit after the end of its lease was answered as if it had happened


@pytest.mark.parametrize("cleared", ["not yet", "by the next holder", "by a reader"])
async def test_a_commit_after_the_end_of_its_lease_is_refused(place: Place, cleared: str) -> None:
    leases, other = await place.process(), await place.process()
    await commit(leases, place, OLD)
    leased = await acquire(leases, place)
    await leases.update(leased.granted, NEW)
    await place.expire()
    if cleared == "by the next holder":
        await acquire(other, place, "next")
    if cleared == "by a reader":
        with pytest.raises(KeyRefused):
            await other.renew(leased.granted, place.ttl)
    with pytest.raises(KeyRefused) as refused:
        await leases.release(leased.granted)
    assert (refused.value.code, await public(other)) == (Refusal.LEASE_EXPIRED, OLD)


@HOURS_PASS
async def test_a_commit_is_refused_however_many_others_have_failed_since(place: Place) -> None:
    leases = await place.process()
    held = []
    for n in range(DROPPED_MAX + 3):
        leased = await acquire(leases, place, f"holder-{n}")
        await leases.update(leased.granted, NEW)
        held.append(leased.granted)
        await place.expire()
    codes = []
    for each in held:
        with pytest.raises(KeyRefused) as refused:
            await leases.release(each)
        codes.append(refused.value.code)
    assert set(codes) == {Refusal.LEASE_EXPIRED}


async def test_a_plain_unlock_after_the_end_is_no_error_nor_is_a_second_one(place: Place) -> None:
    leases = await place.process()
    done = await commit(leases, place, OLD)
    again = await leases.release(done.granted)  # as a client does whose first reply was lost
    leased = await acquire(leases, place)
    await place.expire()
    assert (again, await leases.release(leased.granted)) == (None, None)


# D5: an acquire whose reply was lost waited for its own lease


@pytest.mark.parametrize("write", ["create", "put"])
async def test_a_lost_reply_does_not_make_an_acquire_wait_for_itself(place: Place, write: str) -> None:
    if write == "put":
        await commit(await place.process(), place, OLD)
    leases = await place.process(between=faulty(Script({0: LOST_REPLY}, write)))
    leased = await acquire(leases, place)
    meta = await leases.describe(NS, KEY)
    assert meta is not None
    assert meta.lease == replace(leased.granted, key="", namespace="")


async def test_an_acquire_asked_again_with_the_same_id_is_the_same_lease(place: Place) -> None:
    leases, other = await place.process(), await place.process()
    first = await acquire(leases, place, id="000000000000000000a0")
    again = await acquire(other, place, id="000000000000000000a0")
    assert again.granted == first.granted


# D7: two processes that made the list of buckets at the same time lost one of them


@HOURS_PASS
async def test_two_processes_that_open_different_hours_at_once_lose_neither(place: Place) -> None:
    assert isinstance(place.clock, ManualClock)
    place.clock.advance(datetime(2026, 1, 1, 5, 45, tzinfo=UTC) - place.clock.now())
    leases, other = await place.process(), await place.process()
    await asyncio.gather(
        leases.acquire("this-hour", "me", ttl=timedelta(minutes=5)),
        other.acquire("next-hour", "me", ttl=timedelta(minutes=25)),
    )
    await place.pass_time(HOURS)
    swept = await place.sweep(await place.process())
    metas = [await leases.describe(NS, key) for key in ("this-hour", "next-hour")]
    assert (swept, [meta and meta.lease for meta in metas]) == (2, [None, None])


# D9: a paused holder overwrote what the next one read


@pytest.mark.parametrize("step", ["update", "release"])
async def test_a_paused_holder_changes_nothing_that_anybody_reads(place: Place, step: str) -> None:
    gate = Gate("put")
    paused, other = await place.process(between=behind(records=gate)), await place.process()
    await commit(other, place, OLD)
    leased = await acquire(paused, place, "paused")
    if step == "release":
        await paused.update(leased.granted, NEW)
    gate.shut()
    late = asyncio.create_task(
        paused.update(leased.granted, NEW) if step == "update" else paused.release(leased.granted)  # type: ignore[arg-type]
    )
    await gate.reached.wait()
    await place.expire()
    following = await acquire(other, place, "next")
    gate.open()
    with pytest.raises(KeyRefused) as refused:
        await late
    seen = await other.read(following.granted)
    assert (following.granted.token > leased.granted.token, seen and seen.data, await public(paused)) == (
        True,
        OLD,
        OLD,
    )
    assert refused.value.code in (Refusal.LEASE_REQUIRED, Refusal.LEASE_EXPIRED)


# D10: a lease whose clearing lost a race, or whose holder died between two writes, was never swept


@HOURS_PASS
async def test_a_lease_whose_clearing_lost_a_race_is_swept_later(place: Place) -> None:
    leases = await place.process()
    await acquire(leases, place)
    await place.pass_time(HOURS)
    sweep = ExpiredLeases(leases, place.opened[0].namespaces)
    page = await sweep.find(None, 10)
    (verdict,) = [sweep.decide(suspect, page.at) for suspect in page]
    assert isinstance(verdict, Action)
    await acquire(await place.process(), place, "faster")
    assert list(await sweep.apply([verdict])) == [Outcome.CONFLICT]
    await place.pass_time(HOURS)
    await place.sweep(await place.process())
    meta = await leases.describe(NS, KEY)
    assert meta is not None
    assert meta.lease is None


@HOURS_PASS
@pytest.mark.parametrize("crash", ["create", "put"])
async def test_a_holder_that_died_between_two_writes_leaves_nothing(place: Place, crash: str) -> None:
    if crash == "put":
        await commit(await place.process(), place, OLD)
    dying = await place.process(between=faulty(Script({0: CRASH}, crash)))
    with pytest.raises(Crashed):
        await acquire(dying, place)
    leases = await place.process()
    for _ in range(3):
        await place.pass_time(HOURS)
        await place.sweep(leases)
    assert await place.due() == []


# D11: after a restart, namespaces that nobody had touched were not swept


@HOURS_PASS
async def test_a_new_process_sweeps_namespaces_it_has_never_seen(place: Place) -> None:
    before = await place.process()
    for namespace in ("billing", "shop", "a.b"):
        await before.acquire(KEY, "me", namespace=namespace, ttl=TTL)
    await place.pass_time(HOURS)
    after = await place.process()
    await place.sweep(after)
    metas = [await after.describe(namespace, KEY) for namespace in ("billing", "shop", "a.b")]
    assert [meta and meta.lease for meta in metas] == [None, None, None]


# D14: tokens began again after retention; a removal ignored its condition; `..` was a key


@HOURS_PASS
async def test_tokens_grow_also_after_retention_took_the_key(place: Place) -> None:
    leases = await place.process()
    before = await commit(leases, place, OLD)
    await place.pass_time(timedelta(days=40))
    sweep = AgedRecords(leases, place.opened[0].namespaces, retention=timedelta(days=30))
    page = await sweep.find(None, 10)
    for suspect in page:
        verdict = sweep.decide(suspect, page.at)
        assert isinstance(verdict, Action)
        await sweep.apply([verdict])
    gone = await leases.describe(NS, KEY)
    after = await acquire(await place.process(), place)
    assert (gone, await place.states(KEY), after.granted.token > before.granted.token) == (None, [], True)


async def test_a_removal_of_another_version_is_refused(place: Place) -> None:
    leases = await place.process()
    await commit(leases, place, OLD)
    leased = await acquire(leases, place)
    with pytest.raises(KeyRefused) as refused:
        await leases.remove(leased.granted, if_version=7)
    assert (refused.value.code, refused.value.version) == (Refusal.VERSION_CONFLICT, 1)


@pytest.mark.parametrize("key", ["..", ".", "a/../b", "a/./b", ".hidden", "a/.v/1"])
async def test_no_key_can_stand_for_another(place: Place, key: str) -> None:
    with pytest.raises(BadName) as refused:
        await (await place.process()).acquire(key, "me")
    assert isinstance(refused.value, WrasseError)
