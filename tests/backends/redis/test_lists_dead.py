"""The dead letter list of Redis, which other programs push to and purge too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.redis.interleaved import InterleavedClient
from backends.redis.peer import GoPeer, go_job
from conformance.queue_client import QueueClient
from conformance.stores import Store
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.jobs.lists import compare_dead
from wrasse.ports.jobs import Delete, JobFilter, JobState, Reason, RequeueDead
from wrasse.ports.outcome import Outcome


class Grave:
    """A queue, and another program on the same Redis."""

    def __init__(self, store: Store) -> None:
        assert isinstance(store.backend, Redis)
        self.store, self.jobs_client, self.peer = store, QueueClient(store.jobs), GoPeer(store.backend.client)
        self.letters = self.peer.keys.dead_letter

    async def push(self, *raws: bytes) -> None:
        for raw in raws:
            await self.peer.client.ask("LPUSH", self.letters, raw)

    async def listed(self) -> list[bytes]:
        found: list[bytes] = await self.peer.client.ask("LRANGE", self.letters, 0, -1)
        return found

    async def bytes_sent(self) -> int:
        """What the server has sent so far, to anybody."""
        told = await self.peer.client.ask("INFO", "stats")
        return next(int(line.split(b":")[1]) for line in told.splitlines() if line.startswith(b"total_net_output"))

    async def searches(self) -> int:
        """How often anybody has looked for an entry of a list."""
        told = await self.peer.client.ask("INFO", "commandstats")
        calls = [line for line in told.splitlines() if line.startswith(b"cmdstat_lpos:")]
        return int(calls[0].split(b"calls=")[1].split(b",")[0]) if calls else 0

    async def dead(self) -> list[str]:
        return await self.jobs_client.ids(JobState.DEAD)


@pytest.fixture
async def grave(tmp_path: Path) -> AsyncIterator[Grave]:
    store = Store("redis", tmp_path)
    await store.open()
    yield Grave(store)
    await store.close()


async def test_a_job_that_another_program_buried_is_a_dead_job(grave: Grave) -> None:
    await grave.jobs_client.dead_letter(await grave.jobs_client.claimed("ours"))
    await grave.push(go_job("theirs", retries=3, more=',"error":"disk full"'))
    (info,) = [each for each in await grave.store.jobs.page(JobState.DEAD, JobFilter(), None, 9) if each.id == "theirs"]
    assert (info.reason, info.error, info.failures, info.queue) == (Reason.FAILED, "disk full", 3, "low")
    assert ((await grave.jobs_client.count()).dead, sorted(await grave.dead())) == (2, ["ours", "theirs"])


async def test_a_dead_job_of_another_program_is_found_by_its_id(grave: Grave) -> None:
    await grave.push(go_job("theirs"))
    assert await grave.jobs_client.state("theirs") is JobState.DEAD


async def test_a_revived_job_of_another_program_starts_afresh_where_it_came_from(grave: Grave) -> None:
    await grave.jobs_client.enqueue("known")
    await grave.peer.client.ask("SADD", grave.peer.keys.queues, "slow")
    await grave.push(go_job("theirs", retries=3, more=',"origin_queue":"slow","error":"e","mine":[1, 2]'))
    claim = (await grave.jobs_client.info("theirs")).claim
    outcomes = await grave.jobs_client.move(RequeueDead(claim), RequeueDead(claim))
    (claimed,) = await grave.jobs_client.claim(queues=["slow"])
    (raw,) = await grave.peer.client.ask("LRANGE", grave.peer.keys.processing("w1"), 0, -1)
    assert (outcomes, claimed.job.id, claimed.failures) == ([Outcome.DONE, Outcome.CONFLICT], "theirs", 0)
    assert (b'"mine":[1, 2]' in raw, b'"error"' in raw, await grave.listed()) == (True, False, [])


async def test_what_another_program_purged_is_no_longer_shown(grave: Grave) -> None:
    for id in "abc":
        await grave.jobs_client.dead_letter(await grave.jobs_client.claimed(id))
    (b,) = [raw for raw in await grave.listed() if raw.startswith(b'{"id":"b"')]
    await grave.peer.client.ask("LREM", grave.letters, 1, b)
    some = (await grave.dead(), (await grave.jobs_client.count()).dead, await grave.jobs_client.state("b"))
    await grave.peer.client.ask("DEL", grave.letters)
    assert (some, await grave.dead(), (await grave.jobs_client.count()).dead) == ((["a", "c"], 2, None), [], 0)


async def test_a_dead_job_that_another_program_took_away_is_not_revived(grave: Grave) -> None:
    await grave.jobs_client.dead_letter(await grave.jobs_client.claimed("a"))
    claim = (await grave.jobs_client.info("a")).claim
    await grave.peer.client.ask("DEL", grave.letters)
    assert (await grave.jobs_client.move(RequeueDead(claim)), await grave.jobs_client.state("a")) == (
        [Outcome.CONFLICT],
        None,
    )


async def test_equal_letters_are_as_many_dead_jobs(grave: Grave) -> None:
    await grave.push(go_job("a"), go_job("a"), go_job("a"))
    three = await grave.dead()
    await grave.peer.client.ask("LREM", grave.letters, 1, go_job("a"))
    two = await grave.dead()
    await grave.push(go_job("a"))
    assert (three, two, await grave.dead()) == (["a"] * 3, ["a"] * 2, ["a"] * 3)


async def test_two_who_compare_at_once_adopt_each_letter_once(grave: Grave) -> None:
    await grave.push(*(go_job(str(n)) for n in range(1_200)), go_job("7"))
    other = await grave.store.another()
    try:
        await asyncio.gather(*(jobs.counts() for jobs in (grave.store.jobs, other.jobs)))
    finally:
        await other.close()
    assert (await grave.jobs_client.count()).dead == 1_201


async def test_a_letter_that_is_no_job_can_be_shown_and_deleted(grave: Grave) -> None:
    await grave.push(b"\xff no job")
    (info,) = await grave.store.jobs.page(JobState.DEAD, JobFilter(), None, 9)
    outcomes = await grave.store.jobs.delete([Delete(info.claim, JobState.DEAD)])
    assert (info.reason, list(outcomes), await grave.listed()) == (Reason.INVALID_PAYLOAD, [Outcome.DONE], [])


async def test_a_dead_letter_says_why_in_words_that_other_programs_read(grave: Grave) -> None:
    await grave.jobs_client.dead_letter(await grave.jobs_client.claimed("a"))
    (letter,) = await grave.listed()
    assert all(field in letter for field in (b'"error":"it broke"', b'"reason":"failed"', b'"failed_at":"2026-'))


async def test_of_equal_letters_each_is_revived_once(grave: Grave) -> None:
    await grave.push(go_job("a"), go_job("a"))
    first, second = [info.claim for info in await grave.store.jobs.page(JobState.DEAD, JobFilter(), None, 9)]
    outcomes = await grave.jobs_client.move(RequeueDead(first), RequeueDead(first))
    assert (outcomes, await grave.listed()) == ([Outcome.DONE, Outcome.CONFLICT], [go_job("a")])
    assert await grave.jobs_client.move(RequeueDead(second)) == [Outcome.DONE]


async def test_who_compares_after_another_has_adopted_adopts_nothing(grave: Grave) -> None:
    await grave.push(go_job("a"))
    between = InterleavedClient(grave.peer.client, "dead_list", grave.store.jobs.counts)
    await compare_dead(between, grave.peer.keys)
    assert (between.happened, await grave.peer.client.ask("ZCARD", grave.peer.keys.dead)) == (True, 1)


async def test_what_is_buried_during_a_comparison_stays(grave: Grave) -> None:
    claim = await grave.jobs_client.claimed("ours")
    await grave.push(go_job("theirs"))
    between = InterleavedClient(grave.peer.client, "slice", lambda: grave.jobs_client.dead_letter(claim))
    await compare_dead(between, grave.peer.keys)
    record = await grave.jobs_client.record("ours")
    assert (between.happened, record.info.claim, sorted(await grave.dead())) == (True, claim, ["ours", "theirs"])


async def test_a_revived_job_goes_to_the_queue_that_it_names(grave: Grave) -> None:
    await grave.peer.client.ask("SADD", grave.peer.keys.queues, "slow", "low")
    await grave.peer.push(go_job("a", more=',"origin_queue":"slow"'), "low")
    await grave.jobs_client.dead_letter(await grave.jobs_client.claim_one())
    await grave.jobs_client.move(RequeueDead((await grave.jobs_client.info("a")).claim))
    assert (await grave.jobs_client.info("a")).queue == "slow"


async def test_a_letter_in_the_middle_of_a_long_list_is_adopted_too(grave: Grave) -> None:
    await grave.push(*(go_job(f"old-{n}") for n in range(700)))
    await grave.store.jobs.counts()
    await grave.peer.client.ask("LINSERT", grave.letters, "BEFORE", go_job("old-300"), go_job("middle"))
    assert await grave.jobs_client.state("middle") is JobState.DEAD
    assert (await grave.jobs_client.count()).dead == 701


async def test_one_new_letter_is_adopted_without_reading_a_long_list(grave: Grave) -> None:
    await grave.push(*(go_job(f"old-{n}") for n in range(3_000)))
    await grave.store.jobs.counts()
    await grave.push(go_job("new"))
    before = await grave.bytes_sent()
    found = await grave.jobs_client.count()
    assert (found.dead, await grave.bytes_sent() - before < len(go_job("old-0")) * 2_500) == (3_001, True)


async def test_many_new_letters_are_adopted_without_a_search_for_each(grave: Grave) -> None:
    """A search through a list of a hundred thousand takes ten milliseconds, in which the server does nothing else."""
    await grave.push(*(go_job(f"j{n}") for n in range(1_200)))
    before = await grave.searches()
    assert ((await grave.jobs_client.count()).dead, await grave.searches() - before) == (1_200, 0)


async def test_letters_that_moved_while_they_were_looked_at_are_adopted_all_the_same(grave: Grave) -> None:
    await grave.push(*(go_job(f"j{n}") for n in range(700)))
    link = grave.peer.client
    moved = InterleavedClient(link, "dead_list", lambda: link.ask("RPOP", grave.letters))
    await compare_dead(moved, grave.peer.keys)
    assert moved.happened
    indexed = await link.ask("ZCARD", grave.peer.keys.dead)
    assert (indexed, "j0" in await grave.dead()) == (699, False)
