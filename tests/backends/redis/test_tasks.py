"""Tasks on Redis beside programs without wrasse: hashes and streams as the design document has them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from conformance.queue_client import QueueClient
from conformance.stores import Store
from wrasse.clock import to_micros
from wrasse.ports.jobs import Budget, Job, JobState, Reason, Requeue
from wrasse.ports.outcome import Outcome
from wrasse.streams.envelope import Envelope, encode

STEP = timedelta(seconds=30)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store("tasks redis", tmp_path)
    await store.open()
    yield store
    await store.close()


class Foreign:
    """Another program: it speaks Redis and nothing else."""

    def __init__(self, store: Store) -> None:
        self._client = store.backend.inner.client
        self._prefix = self._client.options.streams_prefix
        self.now = to_micros(store.clock.now()) // 1_000

    async def write(self, id: str, **fields: object) -> None:
        """HSET on a task's hash."""
        words = [str(word) for field in fields.items() for word in field]
        await self._client.ask("HSET", f"{self._prefix}gbe:state:tasks:low:{id}", *words)

    async def read(self, id: str) -> dict[str, str]:
        """HGETALL."""
        words = await self._client.ask("HGETALL", f"{self._prefix}gbe:state:tasks:low:{id}")
        texts = [word.decode() for word in words]
        return dict(zip(texts[::2], texts[1::2], strict=True))

    async def delete(self, id: str) -> None:
        """DEL, or what an expiry does."""
        await self._client.ask("DEL", f"{self._prefix}gbe:state:tasks:low:{id}")

    async def publish(self, payload: bytes) -> None:
        """XADD of an envelope on the queue."""
        body = encode(Envelope("0" * 26, "gbe.tasks.low.queue", self.now, payload))
        await self._client.ask("XADD", f"{self._prefix}gbe:tasks:low:queue", "*", "envelope", body)

    async def length(self) -> int:
        """XLEN of the queue."""
        return int(await self._client.ask("XLEN", f"{self._prefix}gbe:tasks:low:queue"))


async def scan(store: Store) -> None:
    """Scans until one has ended."""
    after: str | None = None
    for _ in range(1_000):
        found = await store.jobs.strays.scan(after, 1_000, heartbeat_timeout=STEP, dry=False)
        if found.ended:
            return
        after = found.cursor


async def test_a_task_is_a_hash_that_others_read(store: Store) -> None:
    foreign, jobs_client = Foreign(store), QueueClient(store.jobs)

    await jobs_client.claimed("task_1")

    fields = await foreign.read("task_1")
    assert (fields["state"], fields["worker"], fields["task_type"], fields["retry_count"]) == (
        "claimed",
        "w1",
        "low",
        "0",
    )


async def test_a_task_that_another_program_claimed_and_left_is_rescued(store: Store) -> None:
    foreign, jobs_client = Foreign(store), QueueClient(store.jobs)
    await foreign.write("task_1", state="running", worker="rust", updated_at=foreign.now, timeout_at=foreign.now + 100)
    await scan(store)
    early = await store.jobs.overdue(None, 10)
    await store.pass_time(timedelta(seconds=1))

    (stuck,) = await store.jobs.overdue(None, 10)
    outcomes = await jobs_client.move(Requeue(stuck.claim, Budget.RESCUES, Reason.WORKER_DIED))

    fields = await foreign.read("task_1")
    assert (len(early), outcomes, fields["state"], fields["retry_count"]) == (0, [Outcome.DONE], "pending", "1")
    assert await foreign.length() == 1


async def test_a_task_of_another_producer_is_worked_with_the_parameters_of_its_event(store: Store) -> None:
    foreign, jobs_client = Foreign(store), QueueClient(store.jobs)
    await foreign.write("task_1", state="pending", updated_at=foreign.now, task_type="low", task_id="task_1")
    await foreign.publish(b'{"task_id":"task_1","task_type":"low","params":{"n":1},"retry_count":0}')

    (claimed,) = await jobs_client.claim()
    await jobs_client.complete(claimed.claim)

    assert (claimed.job.payload, (await foreign.read("task_1"))["state"]) == (b'{"n":1}', "completed")


async def test_a_change_by_another_program_is_never_written_over(store: Store) -> None:
    foreign, jobs_client = Foreign(store), QueueClient(store.jobs)
    claim = await jobs_client.claimed("task_1")
    await store.pass_time(STEP)
    (stuck,) = await store.jobs.overdue(None, 10)
    await foreign.write("task_1", state="completed", updated_at=foreign.now)

    outcomes = await jobs_client.move(Requeue(stuck.claim, Budget.RESCUES, Reason.WORKER_DIED))

    assert (outcomes, await jobs_client.complete(claim)) == ([Outcome.CONFLICT], [Outcome.CONFLICT])
    assert ((await foreign.read("task_1"))["state"], await foreign.length()) == ("completed", 1)


async def test_a_batch_on_redis_is_served_in_its_order(store: Store) -> None:
    jobs_client = QueueClient(store.jobs)
    names = [f"task_{n}" for n in range(150)]
    await jobs_client.enqueue(*map(Job, names))

    assert [claimed.job.id for claimed in await jobs_client.claim(limit=150)] == names


async def test_numbers_and_listings_are_right_again_after_a_look_whoever_changed_or_deleted_tasks(store: Store) -> None:
    foreign, jobs_client = Foreign(store), QueueClient(store.jobs)
    await jobs_client.enqueue("task_1", "task_2", "task_3")
    await foreign.write("task_1", state="completed", updated_at=foreign.now)
    await foreign.write("task_9", state="pending", updated_at=foreign.now)
    await foreign.delete("task_3")

    await scan(store)

    count = await jobs_client.count()
    assert (count.ready, count.done) == (2, 1)
    assert [await jobs_client.ids(state) for state in (JobState.READY, JobState.DONE)] == [
        ["task_9", "task_2"],
        ["task_1"],
    ]


async def test_a_listing_never_shows_a_task_where_another_program_has_taken_it_away(store: Store) -> None:
    foreign, jobs_client = Foreign(store), QueueClient(store.jobs)
    await jobs_client.enqueue("task_1", "task_2", "task_3")
    await foreign.write("task_1", state="completed", updated_at=foreign.now)
    await foreign.delete("task_2")

    assert await jobs_client.ids(JobState.READY) == ["task_3"]


async def test_a_task_that_another_program_wrote_counts_as_soon_as_a_look_has_found_it(store: Store) -> None:
    foreign, jobs_client = Foreign(store), QueueClient(store.jobs)
    await foreign.write("task_1", state="pending", updated_at=foreign.now)
    store.jobs.strays._after["low"] = "low:zzz"  # the round over all names is elsewhere

    await store.jobs.strays.scan("0", 100_000, heartbeat_timeout=STEP, dry=False)

    assert ((await jobs_client.count()).ready, await jobs_client.ids(JobState.READY)) == (1, ["task_1"])
