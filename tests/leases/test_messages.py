"""Messages and the keys that ride along with them: a process dies at every write, and nothing is lost or left behind.

Without a transaction the state of a message goes with its ack. Within one the message is finished if, and only if, the
other key of the transaction was changed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest

from faults import CRASH, LOST_REPLY, Crashed, Fault, Network
from leases.faulty_store import behind
from leases.places import NS, Place
from leases.test_transactions_crashes import AtWrite, deaths_are_no_news
from leases.transaction_scene import name_of
from wrasse.errors import StoreUnavailable
from wrasse.jobs.record_queue.store import JobRecordNames
from wrasse.lease_server.queue_service import ConsumerProof, QueueService, failure, state_key
from wrasse.leases.core import leases_in
from wrasse.leases.lease import KeyRefused, Terms
from wrasse.leases.leases import Leases
from wrasse.leases.transactions.states import TRANSACTIONS
from wrasse.ports.jobs import ClaimedJob, Job, JobState as In

QUEUE, MARK, VISIBLE = "orders", name_of(7), timedelta(seconds=30)
LATER = timedelta(seconds=31)
ENDINGS = ("ack", "decide", "decide elsewhere", "nack", "walk away")
LONG = [pytest.param(name, marks=pytest.mark.full) for name in ("directory", "strict s3")]
PLACES = pytest.mark.parametrize("place", ["memory", *LONG], indirect=True)


async def take(service: QueueService) -> ClaimedJob | None:
    claimed = await service.claim(NS, QUEUE, "me", 1, VISIBLE, timedelta(0))
    return claimed[0] if claimed else None


async def mortal(place: Place, number: int, fault: Fault = CRASH) -> tuple[Leases, QueueService, AtWrite]:
    """A process with a message under way that meets a fault at this write."""
    plan = AtWrite(number, fault)
    leases = await place.process(between=behind(records=(network := Network(plan)), objects=network))
    return leases, QueueService(leases, place.clock), plan


async def left(place: Place) -> list[str]:
    """What is stored for messages, and of transactions that are not over."""
    backend, names = place.opened[0], JobRecordNames(f"{NS}/q")
    keys = [record.key for record in await backend.records(leases_in(NS)).page("q/", None, 100)]
    for collection in (names.jobs, TRANSACTIONS):
        keys += [record.key for record in await backend.records(collection).page("", None, 100)]
    folders = (f"{NS}/q/ready", f"{NS}/q/dead", f"{NS}/q/parts", f"{NS}/state/q/")
    return keys + [info.key for info in await place.objects() if any(folder in info.key for folder in folders)]


async def finish_all(place: Place) -> int:
    """Another process takes what there is and acks it, until nothing comes any more; how many it was."""
    leases = await place.process()
    service, count = QueueService(leases, place.clock), 0
    for _ in range(4):
        await place.pass_time(timedelta(minutes=10, seconds=1))  # also what became stale is met
        while (claimed := await take(service)) is not None:
            count += 1
            await service.ack(ConsumerProof(NS, QUEUE, claimed.claim), claimed.attempt)
        await service.close()
        await leases.close()
    return count


# D12: state that was committed by a nack, or left by a crash, stayed for ever


async def with_state(leases: Leases, service: QueueService) -> bool:
    """A consumer takes a message with its state, changes that, and acks; whether it was told so."""
    claimed = await take(service)
    assert claimed is not None
    leased = await service.claim_state(NS, claimed, "me", VISIBLE, "")
    await leases.update(leased.granted, b'{"step":1}')
    return await service.ack(ConsumerProof(NS, QUEUE, claimed.claim, leased.granted, stateful=True), claimed.attempt)


@PLACES
@pytest.mark.parametrize("fault", [CRASH, LOST_REPLY], ids=["dies", "hears nothing"])
async def test_nothing_is_left_of_a_message_and_its_state_wherever_its_consumer_dies(
    place: Place, fault: Fault
) -> None:
    asyncio.get_running_loop().set_exception_handler(deaths_are_no_news)
    calm = QueueService(await place.process(), place.clock)
    for number in range(60):
        await calm.enqueue(NS, Job(f"m{number}", queue=QUEUE, minted=True))
        await calm.close()
        leases, service, plan = await mortal(place, number, fault)
        acked = False
        with suppress(Crashed, StoreUnavailable):
            acked = await with_state(leases, service)
            await service.close()
            await leases.close()
        again = await finish_all(place)
        assert not (acked and again), number
        assert await left(place) == [], number
        if not plan.reached:
            return
    raise AssertionError("it takes more writes than expected")


@pytest.mark.parametrize("place", ["memory", "directory", "strict s3"], indirect=True)
async def test_what_a_nack_kept_goes_with_an_ack_that_does_not_show_it(place: Place) -> None:
    leases = await place.process()
    service = QueueService(leases, place.clock)
    await service.enqueue(NS, Job("m", queue=QUEUE, minted=True))
    first = await take(service)
    assert first is not None
    leased = await service.claim_state(NS, first, "me", VISIBLE, "")
    await leases.update(leased.granted, b'{"step":1}')
    info = await service.jobs(NS).state("m")
    assert info is not None
    await service.nack(
        ConsumerProof(NS, QUEUE, first.claim, leased.granted, stateful=True), failure(first.claim, info, "", VISIBLE)
    )
    kept = await leases.read_public(NS, state_key(QUEUE, "m"))
    await place.pass_time(LATER)
    again = await finish_all(place)
    assert (kept is not None, again, await left(place)) == (True, 1, [])


@pytest.mark.parametrize("place", ["memory"], indirect=True)
async def test_a_state_whose_lease_is_just_over_goes_a_little_later(place: Place) -> None:
    terms = Terms(margin=timedelta(seconds=5))
    leases = await place.process(terms)
    service = QueueService(leases, place.clock)
    await service.enqueue(NS, Job("m", queue=QUEUE, minted=True))
    claimed = await take(service)
    assert claimed is not None
    leased = await service.claim_state(NS, claimed, "me", VISIBLE, "")
    await leases.update(leased.granted, b'{"step":1}')
    await place.pass_time(VISIBLE - timedelta(seconds=1))  # too late for its holder, too early for others
    acked = await service.ack(ConsumerProof(NS, QUEUE, claimed.claim, leased.granted, stateful=True), 1)
    await service.close()
    stays = await left(place)
    again = await finish_all(place)
    assert (acked, stays != [], again, await left(place)) == (True, True, 0, [])


# Within a transaction


async def together(place: Place, leases: Leases, service: QueueService, ending: str) -> bool | None:
    """A consumer takes a message and changes a key in one transaction; whether that was committed, as it was told."""
    claimed = await take(service)
    assert claimed is not None
    assert await service.join(NS, claimed, VISIBLE, MARK)
    account = await leases.acquire("account", "me", ttl=VISIBLE, transaction=MARK)
    await leases.update(account.granted, b'{"paid":1}')
    shown = ConsumerProof(NS, QUEUE, claimed.claim, joined=True, transaction=MARK)
    if ending == "ack":
        return await service.ack(shown, claimed.attempt)
    if ending == "nack":
        info = await service.jobs(NS).state("m")
        assert info is not None
        await service.nack(shown, failure(claimed.claim, info, "", timedelta(0)))
        return False
    if ending.startswith("decide"):
        decider = leases if ending == "decide" else await place.process()
        await decider.decide(MARK, commit=True)
        return True
    return None


@PLACES
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_message_is_finished_if_and_only_if_its_transaction_is_committed(place: Place, ending: str) -> None:
    asyncio.get_running_loop().set_exception_handler(deaths_are_no_news)
    for number in range(60):
        calm = await place.process()
        service = QueueService(calm, place.clock)
        await service.enqueue(NS, Job("m", queue=QUEUE, minted=True))
        await service.close()
        leases, dying, plan = await mortal(place, number)
        told: bool | None = None
        with suppress(Crashed, StoreUnavailable):
            told = await together(place, leases, dying, ending)
            await dying.close()
            await leases.close()
        again = await finish_all(place)
        account = await calm.acquire("account", "me")  # whoever needs the key settles its transaction
        paid = account.version > 0
        await calm.remove(account.granted)
        await calm.release(account.granted)
        await forget(place, calm)
        assert (again, told in (None, paid)) == (0 if paid else 1, True), number
        assert await left(place) == [], number
        if not plan.reached:
            return
    raise AssertionError("it takes more writes than expected")


async def forget(place: Place, leases: Leases) -> None:
    """What the next round would find of this one: the transaction is over, and its decision is spent."""
    with suppress(KeyRefused):
        await leases.transactions.replay(MARK)
    await place.pass_time(timedelta(hours=25))
    await leases.transactions.transaction_log.decision(MARK)
    kept = await leases.keys(NS).read("account")
    assert kept is not None
    await leases.keys(NS).delete("account", kept)


@pytest.mark.parametrize("place", ["memory"], indirect=True)
@pytest.mark.parametrize("commit", [True, False])
async def test_a_decision_made_here_counts_for_a_message_at_once(place: Place, commit: bool) -> None:
    leases = await place.process()
    service = QueueService(leases, place.clock)
    await service.enqueue(NS, Job("m", queue=QUEUE, minted=True))
    claimed = await take(service)
    assert claimed is not None
    await service.join(NS, claimed, VISIBLE, MARK)
    await leases.decide(MARK, commit=commit)
    await service.close()
    info = await service.jobs(NS).state("m")
    assert (None if info is None else (info.state, info.failures)) == (None if commit else (In.READY, 1))


@pytest.mark.parametrize("place", ["memory"], indirect=True)
async def test_a_message_is_not_taken_from_a_consumer_whose_transaction_lasts(place: Place) -> None:
    leases = await place.process()
    service, other = QueueService(leases, place.clock), QueueService(await place.process(), place.clock)
    await service.enqueue(NS, Job("m", queue=QUEUE, minted=True))
    claimed = await take(service)
    assert claimed is not None
    await service.join(NS, claimed, 2 * VISIBLE, MARK)
    await service.jobs(NS).extend(claimed.claim, VISIBLE)  # the message alone would be free by then
    await place.pass_time(LATER)
    assert await take(other) is None
    assert await service.ack(ConsumerProof(NS, QUEUE, claimed.claim, joined=True, transaction=MARK), 1)


@pytest.mark.parametrize("place", ["memory"], indirect=True)
async def test_a_message_that_was_not_handed_out_after_all_is_not_acked_by_the_commit(place: Place) -> None:
    leases = await place.process()
    service = QueueService(leases, place.clock)
    await service.enqueue(NS, Job("m", queue=QUEUE, minted=True))
    claimed = await take(service)
    assert claimed is not None
    await service.join(NS, claimed, VISIBLE, MARK)
    await service.release(NS, claimed, MARK)
    await leases.decide(MARK, commit=True)
    assert await take(service) is not None  # by a consumer that dies
    await service.close()
    await leases.close()
    assert (await finish_all(place), await left(place)) == (1, [])


@pytest.mark.parametrize("place", ["memory"], indirect=True)
async def test_a_message_that_another_consumer_has_by_now_joins_no_transaction(place: Place) -> None:
    service, other = QueueService(await place.process(), place.clock), QueueService(await place.process(), place.clock)
    await service.enqueue(NS, Job("m", queue=QUEUE, minted=True))
    claimed = await take(service)
    assert claimed is not None
    await place.pass_time(LATER)
    assert await take(other) is not None
    assert not await service.join(NS, claimed, VISIBLE, MARK)
