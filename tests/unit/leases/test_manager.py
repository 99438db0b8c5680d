"""Acquire, renew, release: one holder per key, tokens that only grow, whatever replies are lost."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from faults import LOST_REPLY, LOST_REQUEST, Fault, FaultyRecords, Network, Script
from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock, SystemClock
from wrasse.errors import StoreUnavailable, UsageError
from wrasse.leases.core import leases_in
from wrasse.leases.lease import BARE, KeyRecord, Lease, decode
from wrasse.leases.manager import LeaseManager
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Written

TTL = timedelta(seconds=30)
SECOND = timedelta(seconds=1)
DEFAULT = leases_in("default")


class Scene:
    """A store, its clock, and lessors before it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.records = Memory(self.clock).records(DEFAULT)
        self.lease_manager = LeaseManager(self.records, self.clock)

    def behind(self, faults: dict[int, Fault], only: str | None = None) -> LeaseManager:
        """A lessor behind a network that misbehaves as told."""
        return LeaseManager(FaultyRecords(self.records, Network(Script(faults, only))), self.clock)

    async def acquire(self, owner: str = "me", key: str = "k") -> Lease:
        lease = await self.lease_manager.acquire(key, owner, TTL)
        assert lease is not None
        return lease

    async def record(self) -> KeyRecord:
        record = await self.records.get("k")
        assert record is not None
        return decode(record, BARE)

    async def stored(self) -> Lease:
        return structs.replace((await self.record()).granted, key="k")


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_a_free_key_is_granted_until_the_end_of_its_time(scene: Scene) -> None:
    lease = await scene.acquire()
    assert (lease.owner, lease.expires_at, lease.token) == ("me", scene.clock.now() + TTL, 1_767_225_600_000)


async def test_a_leased_key_is_refused(scene: Scene) -> None:
    await scene.acquire()
    scene.clock.advance(TTL - SECOND)
    assert await scene.lease_manager.acquire("k", "you", TTL) is None


async def test_a_second_acquire_of_the_same_owner_is_refused(scene: Scene) -> None:
    await scene.acquire()
    assert await scene.lease_manager.acquire("k", "me", TTL) is None


async def test_a_lease_that_ended_goes_to_whoever_asks_next_with_a_higher_token(scene: Scene) -> None:
    first = await scene.acquire()
    scene.clock.advance(TTL)
    assert (await scene.acquire("you")).token == first.token + 1


async def test_whoever_lost_a_lease_can_neither_renew_nor_release_it(scene: Scene) -> None:
    first = await scene.acquire()
    scene.clock.advance(TTL)
    second = await scene.acquire("you")
    assert await scene.lease_manager.renew(first, TTL) is None
    assert not await scene.lease_manager.release(first)
    assert await scene.lease_manager.get("k") == second


async def test_renewing_keeps_the_token_and_moves_the_end(scene: Scene) -> None:
    lease = await scene.acquire()
    scene.clock.advance(10 * SECOND)
    renewed = await scene.lease_manager.renew(lease, TTL)
    assert renewed is not None
    assert (renewed.token, renewed.expires_at) == (lease.token, lease.expires_at + 10 * SECOND)
    assert await scene.stored() == renewed


async def test_past_its_end_a_lease_is_over_even_if_no_one_acquired_it(scene: Scene) -> None:
    lease = await scene.acquire()
    scene.clock.advance(TTL)
    assert await scene.lease_manager.renew(lease, TTL) is None
    assert not await scene.lease_manager.release(lease)


async def test_a_released_key_is_free_at_once_and_its_record_keeps_the_token(scene: Scene) -> None:
    lease = await scene.acquire()
    assert await scene.lease_manager.release(lease)
    assert (await scene.record()).token == lease.token
    assert (await scene.acquire("you")).token == lease.token + 1


async def test_an_old_handle_on_a_renewed_lease_still_releases_it(scene: Scene) -> None:
    lease = await scene.acquire()
    await scene.lease_manager.renew(lease, TTL)
    assert await scene.lease_manager.release(lease)
    assert await scene.lease_manager.get("k") is None


async def test_reading_an_ended_lease_clears_it(scene: Scene) -> None:
    lease = await scene.acquire()
    scene.clock.advance(TTL)
    assert await scene.lease_manager.get("k") is None
    stored = await scene.record()
    assert (stored.lease, stored.token) == (None, lease.token)


async def test_reading_a_current_lease_changes_nothing(scene: Scene) -> None:
    lease = await scene.acquire()
    assert await scene.lease_manager.get("k") == lease


async def test_the_engines_own_leases_are_not_indexed(scene: Scene) -> None:
    lease = await scene.lease_manager.acquire("k", "me", TTL)
    assert lease is not None
    assert list(await scene.records.due(lease.expires_at, None, 10)) == []


async def test_of_many_that_ask_at_once_exactly_one_gets_the_lease(scene: Scene) -> None:
    asked = [LeaseManager(scene.records, scene.clock).acquire("k", f"w{n}", TTL) for n in range(20)]
    granted = [lease for lease in await asyncio.gather(*asked) if lease is not None]
    assert len(granted) == 1


async def test_of_many_that_ask_for_an_ended_lease_exactly_one_gets_it(scene: Scene) -> None:
    first = await scene.acquire()
    scene.clock.advance(TTL)
    slow = {n: Fault(slow_request=0.001) for n in range(9)}
    asked = [scene.behind(slow).acquire("k", f"w{n}", TTL) for n in range(20)]
    granted = [lease for lease in await asyncio.gather(*asked) if lease is not None]
    assert [lease.token for lease in granted] == [first.token + 1]


@pytest.mark.parametrize("fault", [LOST_REPLY, LOST_REQUEST])
async def test_an_acquire_whose_reply_was_lost_is_granted_once(scene: Scene, fault: Fault) -> None:
    lease = await scene.behind({0: fault}, only="create").acquire("k", "me", TTL)
    assert lease == await scene.stored()


@pytest.mark.parametrize("fault", [LOST_REPLY, LOST_REQUEST])
async def test_a_renewal_whose_reply_was_lost_is_made_once(scene: Scene, fault: Fault) -> None:
    lease = await scene.acquire()
    renewed = await scene.behind({0: fault}, only="put").renew(lease, TTL)
    assert renewed == await scene.stored()


@pytest.mark.parametrize("fault", [LOST_REPLY, LOST_REQUEST])
async def test_a_release_whose_reply_was_lost_is_not_reported_as_lost(scene: Scene, fault: Fault) -> None:
    lease = await scene.acquire()
    assert await scene.behind({0: fault}, only="put").release(lease)


async def test_a_store_that_stays_silent_is_an_error_and_not_a_refusal(scene: Scene) -> None:
    with pytest.raises(StoreUnavailable):
        await scene.behind(dict.fromkeys(range(9), LOST_REPLY), only="create").acquire("k", "me", TTL)


class _Vague(FaultyRecords):
    """Makes the change and can no longer tell."""

    async def create(self, key: str, value: bytes, **rest: object) -> Written:
        written = await super().create(key, value, **rest)  # type: ignore[arg-type]
        return replace(written, outcome=Outcome.UNKNOWN, version=None)


async def test_an_acquire_of_which_the_store_cannot_tell_is_looked_up(scene: Scene) -> None:
    lease_manager = LeaseManager(_Vague(scene.records, Network(Script({}))), scene.clock)
    assert await lease_manager.acquire("k", "me", TTL) == await scene.stored()


class _SlowReply(FaultyRecords):
    """The store decides at once; its answer takes five seconds."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene.records, Network(Script({})))
        self._clock = scene.clock

    async def create(self, key: str, value: bytes, **rest: object) -> Written:
        written = await super().create(key, value, **rest)  # type: ignore[arg-type]
        self._clock.advance(5 * SECOND)
        return written


async def test_a_slow_reply_does_not_make_a_holder_overstay(scene: Scene) -> None:
    lease_manager = LeaseManager(_SlowReply(scene), scene.clock)
    lease = await lease_manager.acquire("k", "me", TTL)
    assert lease is not None
    assert lease_manager.term(lease) - scene.clock.monotonic() == 25


@pytest.mark.parametrize("hours", [25, -25])
async def test_a_host_whose_clock_is_off_neither_robs_nor_overstays(scene: Scene, hours: int) -> None:
    off = ManualClock(scene.clock.now() + timedelta(hours=hours))
    stranger = LeaseManager(scene.records, off)
    await scene.acquire()
    assert await stranger.acquire("k", "stranger", TTL) is None
    scene.clock.advance(TTL)
    off.advance(TTL)
    lease = await stranger.acquire("k", "stranger", TTL)
    assert lease is not None
    assert lease.expires_at == scene.clock.now() + TTL


async def test_a_host_that_slept_asks_the_store_for_the_time_again(scene: Scene) -> None:
    lease = await scene.acquire()
    scene.clock.step(TTL)  # the store's clock went on while our monotonic one stood still
    assert await scene.lease_manager.renew(lease, TTL) is None


async def test_with_a_margin_contenders_wait_longer_and_holders_stop_earlier(scene: Scene) -> None:
    careful = LeaseManager(scene.records, scene.clock, margin=2 * SECOND)
    lease = await careful.acquire("k", "me", TTL)
    assert lease is not None
    assert careful.term(lease) == (TTL - 2 * SECOND).total_seconds()
    scene.clock.advance(TTL + SECOND)
    assert await careful.acquire("k", "you", TTL) is None
    scene.clock.advance(SECOND)
    assert await careful.acquire("k", "you", TTL) is not None


async def test_whoever_waits_gets_the_key_once_it_is_released(scene: Scene) -> None:
    lease = await scene.acquire()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(scene.lease_manager.acquire("k", "you", TTL, wait=None))
        await asyncio.sleep(0)
        await scene.lease_manager.release(lease)
    granted = waiting.result()
    assert granted is not None
    assert (granted.owner, granted.token) == ("you", lease.token + 1)


async def test_whoever_waits_long_enough_outlasts_a_holder_that_died() -> None:
    clock = SystemClock()
    lease_manager = LeaseManager(Memory(clock).records(DEFAULT), clock)
    await lease_manager.acquire("k", "dead", timedelta(milliseconds=50))
    assert await lease_manager.acquire("k", "you", TTL, wait=timedelta(seconds=30)) is not None


async def test_a_bounded_wait_ends_without_the_key() -> None:
    clock = SystemClock()
    lease_manager = LeaseManager(Memory(clock).records(DEFAULT), clock)
    await lease_manager.acquire("k", "me", TTL)
    assert await lease_manager.acquire("k", "you", TTL, wait=timedelta(milliseconds=20)) is None


@pytest.mark.parametrize(("owner", "ttl"), [("", TTL), ("me", timedelta(0)), ("me", -TTL)])
async def test_a_lease_without_owner_or_time_is_a_mistake(scene: Scene, owner: str, ttl: timedelta) -> None:
    with pytest.raises(UsageError):
        await scene.lease_manager.acquire("k", owner, ttl)


# What earlier releases stored, and what they read: engines of two releases take turns during an upgrade.

OLD_HELD = b'{"owner":"old","token":1767225600000,"until":1767225630000000,"grant":"0123456789abcdef"}'
OLD_RENEWED = b'{"owner":"old","token":1767225600000,"until":1767225630000000,"grant":""}'
OLD_RELEASED = b'{"owner":"","token":1767225600007,"until":1767225630000000,"grant":""}'


@pytest.mark.parametrize("value", [OLD_HELD, OLD_RENEWED])
async def test_a_lease_of_an_earlier_release_is_honoured_until_it_ends(scene: Scene, value: bytes) -> None:
    await scene.records.create("k", value)
    assert await scene.lease_manager.acquire("k", "new", TTL) is None
    seen = await scene.lease_manager.get("k")
    assert seen is not None
    assert (seen.owner, seen.token, seen.expires_at) == ("old", 1_767_225_600_000, scene.clock.now() + TTL)
    scene.clock.advance(TTL)
    lease = await scene.lease_manager.acquire("k", "new", TTL)
    assert lease is not None
    assert lease.token == 1_767_225_600_001


async def test_the_token_that_an_earlier_release_left_goes_on(scene: Scene) -> None:
    await scene.records.create("k", OLD_RELEASED)
    assert (await scene.acquire()).token == 1_767_225_600_008


async def test_an_earlier_release_reads_what_this_one_stores(scene: Scene) -> None:
    lease = await scene.acquire()
    written = await scene.records.get("k")
    assert written is not None
    old = json.loads(written.value)
    assert old == {"owner": "me", "token": lease.token, "until": 1_767_225_630_000_000, "grant": lease.id}
    await scene.lease_manager.release(lease)
    written = await scene.records.get("k")
    assert written is not None
    assert json.loads(written.value) == {"owner": "", "token": lease.token, "until": 0, "grant": ""}


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["acquire", "renew", "release", "get"]),
        st.integers(min_value=0, max_value=3),
        st.integers(min_value=0, max_value=40),
    ),
    max_size=40,
)


@given(OPERATIONS)
def test_tokens_only_grow_and_nobody_holds_what_another_was_granted_later(
    operations: list[tuple[str, int, int]],
) -> None:
    async def story() -> None:
        scene = Scene()
        held: dict[int, Lease] = {}
        tokens: list[int] = []
        for what, who, seconds in operations:
            scene.clock.advance(timedelta(seconds=seconds))
            at = scene.clock.now()
            alive = [lease for lease in held.values() if at < lease.expires_at]
            if what == "acquire":
                lease = await scene.lease_manager.acquire("k", f"w{who}", TTL)
                assert (lease is None) is bool(alive)
                if lease is not None:
                    tokens.append(lease.token)
                    held[who] = lease
            elif what == "get":
                assert await scene.lease_manager.get("k") == (alive[0] if alive else None)
            elif who in held and what == "renew":
                renewed = await scene.lease_manager.renew(held[who], TTL)
                assert (renewed is not None) is (held[who] in alive)
                if renewed is not None:
                    held[who] = renewed
            elif who in held:
                lease = held.pop(who)
                assert await scene.lease_manager.release(lease) is (lease in alive)
        assert tokens == sorted(set(tokens))

    asyncio.run(story())
