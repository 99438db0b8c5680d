"""What a queue on a bucket costs in requests: the numbers we publish."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from conformance.queue_client import fresh
from leases.places import Place
from leases.request_counter import WatchedWire
from wrasse.backends.s3.connect import S3
from wrasse.backends.s3.transport import S3Request
from wrasse.jobs.record_queue.queue import RecordedJobs
from wrasse.lease_server.queue_service import ConsumerProof, QueueService
from wrasse.leases.leases import Leases
from wrasse.ports.jobs import Budget, ClaimedJob, Complete, Job, Reason, Requeue, WorkerInfo

HEARTBEAT_TIMEOUT = timedelta(seconds=5)
BUCKETS = pytest.mark.parametrize("place", ["strict s3", pytest.param("s3", marks=pytest.mark.full)], indirect=True)


class Watched:
    """A process on a bucket whose requests are counted."""

    def __init__(self, wire: WatchedWire, jobs: RecordedJobs) -> None:
        self.wire, self.jobs = wire, jobs

    async def enqueue(self, *ids: str) -> None:
        await self.jobs.enqueue([Job(id, minted=True) for id in ids], request=fresh())

    async def claim(self, limit: int = 1) -> list[ClaimedJob]:
        claimed = await self.jobs.claim(
            ["low"], limit, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request=fresh()
        )
        return list(claimed.jobs)

    async def told(self) -> list[str]:
        """What was asked since the last time."""
        await self.jobs.close()
        told = [_said(each.ask) for each in self.wire.seen]
        self.wire.seen.clear()
        return sorted(told)


def _said(ask: S3Request) -> str:
    if ask.method == "POST":
        return "delete"  # of signs, after the answer
    return "LIST" if ask.key is None else ask.method


async def watched(place: Place) -> Watched:
    address = await place.s3.address()
    wire = WatchedWire(address, place.clock)
    wire.seen = []
    backend = await S3.open(address, place.clock, wire=wire)
    place.opened.append(backend)
    return Watched(wire, RecordedJobs(backend.records, backend.objects, place.clock))


async def warm(place: Place) -> Watched:
    """A process that has seen this minute's bucket of deadlines and looked at what is overdue."""
    process = await watched(place)
    await process.enqueue("warm", "warmer")
    for claimed in await process.claim(2):
        await process.jobs.settle([Complete(claimed.claim)], request=fresh())
    await process.claim()
    await process.told()
    return process


async def aligned(place: Place) -> None:
    """Not at the end of a minute, where a claim gets an entry in the next one."""
    second = place.clock.now().second
    if second > 45:
        await (asyncio.sleep(61 - second) if place.name == "s3" else place.pass_time(timedelta(seconds=61 - second)))


@BUCKETS
async def test_a_put_is_two_requests(place: Place) -> None:
    process = await warm(place)
    await process.enqueue("a")
    assert await process.told() == ["PUT", "PUT"]


@BUCKETS
async def test_a_take_is_three_requests_and_a_listing_where_the_list_has_run_out(place: Place) -> None:
    await aligned(place)
    process, other = await warm(place), await warm(place)
    await other.enqueue("a", "b")
    await process.claim()
    cold = await process.told()
    await process.claim()
    assert (cold, await process.told()) == (
        ["GET", "LIST", "PUT", "PUT", "delete"],
        ["GET", "PUT", "PUT", "delete"],
    )


@BUCKETS
async def test_a_finish_is_two_requests(place: Place) -> None:
    await aligned(place)
    process = await warm(place)
    await process.enqueue("a")
    (claimed,) = await process.claim()
    await process.told()
    await process.jobs.settle([Complete(claimed.claim)], request=fresh())
    assert await process.told() == ["DELETE", "DELETE"]


@BUCKETS
async def test_a_beat_is_one_request_for_each_job_and_one_for_the_worker(place: Place) -> None:
    await aligned(place)
    process = await warm(place)
    await process.enqueue("a", "b")
    claims = [claimed.claim for claimed in await process.claim(2)]
    await process.jobs.heartbeat(WorkerInfo("w"), claims, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    await process.told()
    await process.jobs.heartbeat(WorkerInfo("w"), claims, heartbeat_timeout=HEARTBEAT_TIMEOUT)
    assert await process.told() == ["PUT", "PUT", "PUT"]


@BUCKETS
async def test_a_job_given_back_is_three_requests(place: Place) -> None:
    await aligned(place)
    process = await warm(place)
    await process.enqueue("a")
    (claimed,) = await process.claim()
    await process.told()
    await process.jobs.settle([Requeue(claimed.claim, Budget.FAILURES, Reason.FAILED)], request=fresh())
    assert await process.told() == ["DELETE", "PUT", "PUT"]


@BUCKETS
async def test_a_look_at_an_empty_queue_costs_the_same_whatever_is_stored_elsewhere(place: Place) -> None:
    process = await warm(place)
    await process.claim()
    empty = await process.told()
    await process.jobs.enqueue([Job(str(n), queue="other", minted=True) for n in range(30)], request=fresh())
    await process.told()
    await process.claim()
    assert (await process.told(), len(empty) <= 6) == (empty, True)


@BUCKETS
async def test_a_message_over_http_costs_no_more_than_a_job(place: Place) -> None:
    address = await place.s3.address()
    wire = WatchedWire(address, place.clock)
    wire.seen = []
    backend = await S3.open(address, place.clock, wire=wire)
    place.opened.append(backend)
    client = QueueService(Leases(backend.records, backend.objects, place.clock), place.clock)
    process = Watched(wire, client.jobs("default"))
    await aligned(place)
    costs = []
    for id in ("first", "second"):
        await client.enqueue("default", Job(id, queue="low", minted=True))
        await process.told()
        (claimed,) = await client.claim("default", "low", "me", 1, HEARTBEAT_TIMEOUT, timedelta(0))
        costs = [await process.told()]
        shown = ConsumerProof("default", "low", claimed.claim)
        info = await client.running(shown)
        acked = not isinstance(info, str) and await client.ack(shown, info.attempts)
        costs.append(await process.told())
        assert acked
    assert costs == [["GET", "PUT", "PUT", "delete"], ["DELETE", "DELETE"]]
