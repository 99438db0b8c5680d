"""Enqueueing jobs: each once, however often the backend has to be asked."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from faults import LOST_REPLY, LOST_REQUEST, FaultyJobs, Network, Script
from unit.jobs.worker.scene import CLOCK, memory, record
from wrasse.errors import StoreUnavailable, TooLarge, UnknownName, UsageError
from wrasse.jobs.producer import BATCH_BYTES_MAX, Producer, ProducerOptions
from wrasse.ports.jobs import BATCH_MAX, PAYLOAD_BYTES_MAX, Job, JobState


async def test_a_put_whose_reply_was_lost_is_stored_once() -> None:
    store = memory()
    producer = Producer(
        FaultyJobs(store.jobs, Network(Script({0: LOST_REPLY, 1: LOST_REQUEST}, only="enqueue"))), CLOCK
    )
    put = await producer.enqueue(producer.job("resize", b"x"))
    assert put.new
    assert (await store.jobs.counts()).queues[0].ready == 1
    assert (producer.tally.produced.total(), producer.tally.unavailable) == (1, 2)


async def test_a_put_that_is_never_answered_is_said_to_have_failed() -> None:
    network = Network(Script({}))
    network.down = True
    producer = Producer(
        FaultyJobs(memory().jobs, network), CLOCK, ProducerOptions(patience=timedelta(milliseconds=200))
    )
    with pytest.raises(StoreUnavailable):
        await producer.enqueue(producer.job())
    assert producer.tally.produced.total() == 0


async def test_an_id_that_is_known_is_not_put_again_and_not_counted() -> None:
    store = memory()
    producer = Producer(store.jobs, CLOCK)
    first = await producer.enqueue(producer.job("resize", b"first", id="a"))
    second = await producer.enqueue(producer.job("resize", b"second", id="a"))
    assert (first.new, second.new) == (True, False)
    assert (await record(store.jobs, "a")).job.payload == b"first"
    assert producer.tally.produced["low"] == 1


async def test_many_jobs_go_out_in_pieces_and_come_back_in_order() -> None:
    script = Script({})
    store = memory()
    producer = Producer(FaultyJobs(store.jobs, Network(script)), CLOCK)
    jobs = [producer.job(id=f"{number}") for number in range(2 * BATCH_MAX + 1)]
    puts = await producer.enqueue_many(jobs)
    assert [put.id for put in puts] == [job.id for job in jobs]
    assert script.calls == ["enqueue"] * 3
    assert (await store.jobs.counts()).queues[0].ready == len(jobs)


async def test_a_piece_that_was_sent_is_awaited_where_the_next_one_cannot_be_made() -> None:
    store = memory()
    lossy = FaultyJobs(store.jobs, Network(Script({0: LOST_REPLY}, only="enqueue")))
    producer = Producer(lossy, CLOCK)

    def jobs() -> Iterator[Job]:
        for number in range(BATCH_MAX + 1):
            yield producer.job(id=f"{number}")
        raise ValueError("there are no more")

    with pytest.raises(ValueError, match="no more"):
        await producer.enqueue_many(jobs())
    assert producer.tally.produced.total() == BATCH_MAX
    assert (await store.jobs.counts()).queues[0].ready == BATCH_MAX


async def test_pieces_are_bounded_by_bytes_too() -> None:
    script = Script({})
    producer = Producer(FaultyJobs(memory().jobs, Network(script)), CLOCK)
    payload = bytes(BATCH_BYTES_MAX // 4)
    await producer.enqueue_many([producer.job(payload=payload) for _ in range(9)])
    assert script.calls == ["enqueue"] * 3


async def test_a_job_goes_to_the_queue_of_its_priority_unless_one_is_named() -> None:
    producer = Producer(memory().jobs, CLOCK, ProducerOptions(queues={"high": "jobs:high", "low": "jobs:low"}))
    assert producer.job(priority="high").queue == "jobs:high"
    assert producer.job().queue == "jobs:low"
    assert producer.job(priority="high", queue="own").queue == "own"


async def test_only_an_id_that_the_caller_gave_is_remembered() -> None:
    producer = Producer(memory().jobs, CLOCK)
    assert (producer.job(id="a").lasting, producer.job().lasting) == (True, False)


async def test_what_cannot_be_put_is_refused_before_anything_is_sent() -> None:
    producer = Producer(memory().jobs, CLOCK)
    with pytest.raises(UnknownName, match="no priority 'hihg'"):
        producer.job(priority="hihg")
    with pytest.raises(TooLarge):
        producer.job(payload=bytes(PAYLOAD_BYTES_MAX + 1))
    with pytest.raises(UsageError, match="id"):
        producer.job(id="")
    with pytest.raises(UsageError, match="time zone"):
        producer.job(not_before=datetime(2026, 1, 1))
    with pytest.raises(UsageError, match="timeout"):
        producer.job(timeout=timedelta(0))


async def test_a_delayed_job_waits_and_is_not_served() -> None:
    store = memory()
    producer = Producer(store.jobs, CLOCK)
    await producer.enqueue(producer.job(id="a", delay=timedelta(hours=1)))
    info = (await record(store.jobs, "a")).info
    assert info.state is JobState.READY
    assert info.not_before is not None
