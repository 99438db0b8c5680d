"""What leases cost in requests to a bucket: the numbers we publish, and that nothing ever lists keys or states."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from leases.faulty_store import behind
from leases.places import HOURS, NS, TTL, Place
from leases.request_counter import Counting, Watched, watched
from wrasse.leases.cleanup import TOGETHER
from wrasse.leases.lease import KeyRecord

STATE = b'{"n":1}'
BUCKETS = pytest.mark.parametrize("place", ["strict s3", "s3"], indirect=True)
OURS = pytest.mark.parametrize("place", ["strict s3"], indirect=True)
APART = pytest.mark.parametrize("place", ["directory", "strict s3"], indirect=True)  # where the index is
CALLS = pytest.mark.parametrize("place", ["memory", "directory"], indirect=True)


async def cycle(process: Watched, key: str) -> KeyRecord:
    leases = process.leases
    leased = await leases.acquire(key, "me", ttl=TTL)
    await leases.update(leased.granted, STATE)
    await leases.release(leased.granted)
    return leased


async def warm(place: Place) -> Watched:
    """A process that has seen this hour's bucket and the store's clock."""
    process = await watched(place)
    await cycle(process, "warm")
    await process.leases.close()
    process.wire.seen.clear()
    return process


async def sweep(place: Place, process: Watched) -> int:
    return await place.sweep(process.leases, process.backend.namespaces)


@BUCKETS
async def test_a_whole_cycle_costs_seven_requests_six_of_a_key_that_is_known(place: Place) -> None:
    process = await warm(place)
    costs = [(await process.cost(cycle(process, "orders/1")))[0] for _ in range(3)]
    assert costs == [7, 6 + 1, 6 + 1]  # from the second on there is a superseded object to delete


@BUCKETS
async def test_of_a_key_that_others_know_a_cycle_costs_seven_requests_and_a_delete(place: Place) -> None:
    await cycle(await warm(place), "orders/1")
    process = await warm(place)
    assert (await process.cost(cycle(process, "orders/1")))[0] == 7 + 1


@BUCKETS
@pytest.mark.parametrize("known", [False, True])
async def test_five_requests_of_a_cycle_wait_for_one_another(place: Place, known: bool) -> None:
    process = await warm(place)
    if known:
        await process.cost(cycle(process, "orders/1"))
    process.wire.seen.clear()
    await cycle(process, "orders/1")
    assert process.wire.in_sequence() == 5


@BUCKETS
async def test_what_a_transaction_over_two_keys_costs(place: Place) -> None:
    process, other = await warm(place), await warm(place)
    leases, id = process.leases, "00000000000000000010"
    await leases.decide("000000000000000000g0", commit=True)  # this hour's list of decisions is known from then on
    for key in ("orders/1", "orders/2"):
        await process.cost(cycle(process, key))
    taken, (one, two) = await process.cost(
        asyncio.gather(*(leases.acquire(f"orders/{n}", "me", ttl=TTL, transaction=id) for n in (1, 2)))
    )
    first, _ = await process.cost(leases.update(one.granted, STATE))
    second, _ = await process.cost(leases.update(two.granted, STATE))
    process.wire.seen.clear()
    await leases.release(one.granted)
    await leases.close()
    commit = [each.ask.key or b"" for each in process.wire.seen]
    again, _ = await process.cost(leases.release(two.granted))
    asked, _ = await other.cost(other.leases.transactions.transaction_log.outcome(id))
    assert (taken, first, second) == (4, 4, 3)
    # The decision and two keys before the answer; then two superseded states, two entries, the decision record with its
    # entry, and the end of the record.
    assert (len(commit), [b"/meta/" in key for key in commit[:3]], b".txns/" in commit[0]) == (
        3 + 7, [False, True, True], True,
    )  # fmt: skip
    assert (again, asked) == (2, 2 + 3)  # who asks from elsewhere also learns what time it is there


@BUCKETS
async def test_a_renewal_is_one_request_and_a_read_two(place: Place) -> None:
    process, other = await warm(place), await warm(place)
    await process.cost(cycle(process, "orders/1"))
    leased = await process.leases.acquire("orders/1", "me", ttl=TTL)
    renewal, _ = await process.cost(process.leases.renew(leased.granted, TTL))
    read, _ = await process.cost(process.leases.read(leased.granted))
    public, _ = await other.cost(other.leases.read_public(NS, "orders/1"))
    assert (renewal, read, public) == (1, 2, 2)


@BUCKETS
async def test_a_try_for_a_key_that_is_leased_is_one_read(place: Place) -> None:
    process, other = await warm(place), await warm(place)
    await process.leases.acquire("orders/1", "me", ttl=TTL)
    first, _ = await other.cost(asyncio.gather(other.leases.acquire("orders/1", "w", ttl=TTL), return_exceptions=True))
    again, _ = await other.cost(asyncio.gather(other.leases.acquire("orders/1", "w", ttl=TTL), return_exceptions=True))
    assert (first, again) == (2, 1)  # the first also announces itself in the index


@OURS
@pytest.mark.parametrize("left", ["a bare lease", "a lease with something staged", "a lease over a committed state"])
async def test_a_sweep_costs_at_most_three_requests_an_entry_each_time(place: Place, left: str) -> None:
    entries, process = 12, await warm(place)
    for n in range(entries):
        if left == "a lease over a committed state":
            await cycle(process, f"orders/{n}")
        leased = await process.leases.acquire(f"orders/{n}", "gone", ttl=TTL)
        if left == "a lease with something staged":
            await process.leases.update(leased.granted, STATE)
    costs, done = [], []
    for _ in range(2):  # the lease is cleared; an hour later the key is checked once more
        await place.pass_time(HOURS)
        sweeper = await warm(place)
        cost, swept = await sweeper.cost(sweep(place, sweeper))
        costs.append(cost)
        done.append(swept)
    assert (done, [cost <= 3 * entries + 15 for cost in costs]) == ([entries] * 2, [True, True]), costs


@OURS
async def test_with_nothing_due_a_sweep_costs_the_same_however_many_keys_there_are(place: Place) -> None:
    costs = []
    for keys in (1, 40):
        process = await warm(place)
        for namespace in ("a", "b", "c"):
            for n in range(keys):
                await process.leases.acquire(f"k/{keys}/{n}", "me", namespace=namespace, ttl=timedelta(minutes=20))
        await sweep(place, process)
        cost, _ = await process.cost(sweep(place, process))
        costs.append(cost)
    assert (costs[0] == costs[1], costs[0] <= 3 * 4) == (True, True), costs


@OURS
async def test_neither_traffic_nor_a_sweep_nor_the_end_lists_keys_or_states(place: Place) -> None:
    process = await warm(place)
    for n in range(5):
        await cycle(process, f"orders/{n}")
        leased = await process.leases.acquire(f"orders/{n}", "gone", ttl=TTL)
        await process.leases.update(leased.granted, STATE)
        await process.leases.read(leased.granted)
        await process.leases.read_public(NS, f"orders/{n}")
    await place.pass_time(TTL)
    await process.leases.acquire("orders/0", "next", ttl=TTL)
    await process.leases.close()
    traffic = process.wire.listings()
    sweeper = await watched(place)
    for _ in range(3):
        await place.pass_time(HOURS)
        await sweep(place, sweeper)
    listed = [prefix.partition(f"{NS}/")[2] for prefix in sweeper.wire.listings()]
    loose = [prefix for prefix in listed if prefix.startswith(("meta", "state")) and not prefix.endswith("/.v/")]
    assert (traffic, loose, "state/orders/1/.v/" in listed) == ([], [], True)


# Elsewhere the calls of the ports are counted


@CALLS
async def test_a_cycle_is_a_handful_of_calls_and_no_listing(place: Place) -> None:
    records, objects = Counting(), Counting()
    leases = await place.process(between=behind(records=records, objects=objects))
    for _ in range(2):
        records.calls.clear()
        objects.calls.clear()
        leased = await leases.acquire("orders/1", "me", ttl=TTL)
        await leases.update(leased.granted, STATE)
        await leases.release(leased.granted)
        await leases.close()
    tidied = "leave" if place.name == "directory" else "put"  # where the index is part of the record
    assert (records.calls, objects.calls) == (["put", "put", "put", tidied], ["create", "delete"])


@APART
async def test_a_key_that_is_never_at_rest_costs_one_delete_for_several_leases(place: Place) -> None:
    objects = Counting()
    leases = await place.process(between=behind(objects=objects))
    for _ in range(5 * TOGETHER):
        leased = await leases.acquire("orders/1", "me", ttl=TTL)
        await leases.update(leased.granted, STATE)
        await leases.release(leased.granted)
    await leases.close()
    deletes, left = objects.calls.count("delete"), await place.states("orders/1")
    await place.pass_time(HOURS)
    # 5 batches, one more at each end; a delete that is slow is sent again with the batch of the next release.
    assert (deletes <= 5 * TOGETHER // 2, len(left), await place.due()) == (True, 1, []), deletes


@CALLS
async def test_no_call_of_traffic_or_of_a_sweep_pages_through_records(place: Place) -> None:
    records = Counting()
    leases = await place.process(between=behind(records=records))
    for n in range(5):
        leased = await leases.acquire(f"orders/{n}", "me", ttl=TTL)
        await leases.update(leased.granted, STATE)
        if n % 2:
            await leases.release(leased.granted)
    for _ in range(3):
        await place.pass_time(HOURS)
        await place.sweep(leases)
    assert ("due" in records.calls, "page" in records.calls) == (True, False)
