"""Records in a bucket: what they cost in requests, lost replies, the due index among processes, what is left behind."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from backends.s3.scene import Scene, once, scene
from servers.strict_s3 import BUSY, BUSY_AFTER, CUT_AFTER, CUT_BEFORE
from wrasse.backends.s3.records import GONE_KEPT, RETIRED_AFTER, STALE
from wrasse.errors import StoreBroken, StoreUnavailable
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import NONCES_KEPT, Collection, Records, Written

FAULTS = [BUSY, BUSY_AFTER, CUT_BEFORE, CUT_AFTER]
THINGS = Collection("ns/meta", "ns/.lease-index", "ns/.lease-index/buckets.json")
TENDED = Collection("ns/meta", "ns/.lease-index", "ns/.lease-index/buckets.json", tended=True)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


def version(written: Written) -> str:
    assert written.outcome is Outcome.DONE, written
    assert written.version is not None
    return written.version


async def due_keys(records: Records) -> list[str]:
    return [record.key for record in await records.due(None, None, 100)]


def entries(now: Scene) -> list[bytes]:
    return [key for key in now.server.keys if b".lease-index/2" in key]


# Layout and requests


async def test_the_names_are_those_of_the_design_documents() -> None:
    async with scene() as now:
        await now.backend.records(THINGS).create("a/b", b"{}", due_at=now.clock.now())
        assert now.server.keys == [
            b"here/ns/.lease-index/2026010100/a%2Fb",
            b"here/ns/.lease-index/buckets.json",
            b"here/ns/meta/a%2Fb",
        ]


async def test_what_a_record_costs_is_counted_in_requests() -> None:
    async with scene() as now:
        records, costs = now.backend.records(THINGS), []
        due = now.clock.now() + MINUTE
        await records.create("warm", b"", due_at=due)  # the bucket is known from here on

        async def cost(write: object) -> Written:
            before = now.backend.requests
            written: Written = await write  # type: ignore[misc]
            costs.append(now.backend.requests - before)
            return written

        created = await cost(records.create("a", b"1", due_at=due))
        renewed = await cost(records.put("a", b"2", at=version(created), due_at=due + MINUTE))
        freed = await cost(records.put("a", b"3", at=version(renewed)))
        await cost(records.delete("a", at=version(freed)))
        before = now.backend.requests
        await records.get("a")
        assert (costs, now.backend.requests - before) == ([2, 1, 2, 1], 1)


async def test_an_announced_write_does_not_wait_for_its_entry() -> None:
    async with scene() as now:
        records = now.backend.records(THINGS)
        due = now.clock.now() + MINUTE
        await records.create("warm", b"", due_at=due)
        await records.get("a", entering=due)
        before = now.backend.requests
        await records.create("a", b"", due_at=due)
        assert now.backend.requests - before == 1


async def test_with_nothing_due_a_scan_costs_the_same_however_many_records_there_are() -> None:
    async with scene() as now:
        records, costs = now.backend.records(THINGS), []
        await records.due(None, None, 100)
        for count in (1, 30):
            for n in range(count):
                await records.create(f"{count}-{n}", b"", due_at=now.clock.now() + 5 * HOUR)
            before = now.backend.requests
            await records.due(None, None, 100)
            costs.append(now.backend.requests - before)
        assert costs == [1, 1]


# Lost replies


@pytest.mark.parametrize("nonce", ["n", None])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_write_whose_reply_was_lost_is_known_for_ours(fault: str, nonce: str | None) -> None:
    async with scene() as now:
        records = now.backend.records(THINGS)
        now.server.plan = once(fault, "PUT", part=b"/meta/")
        created = await records.create("a", b"1", nonce=nonce)
        now.server.plan = once(fault, "PUT", part=b"/meta/")
        put = await records.put("a", b"2", at=version(created), nonce=nonce and "n2")
        found = await records.get("a")
        assert (found and found.value, found and found.version) == (b"2", version(put))


@pytest.mark.parametrize("nonce", ["n", None])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_delete_whose_reply_was_lost_is_never_called_a_conflict(fault: str, nonce: str | None) -> None:
    async with scene() as now:
        records = now.backend.records(THINGS)
        at = version(await records.create("a", b"1"))
        now.server.plan = once(fault, "PUT", "DELETE", part=b"/meta/")
        deleted = await records.delete("a", at=at, nonce=nonce)
        assert (deleted.outcome in (Outcome.DONE, Outcome.UNKNOWN), await records.get("a")) == (True, None)
        assert deleted.outcome is Outcome.DONE or nonce is None


async def test_our_write_is_recognised_also_after_another_wrote_on_top_of_it() -> None:
    async with scene() as now:
        mine, other = now.backend.records(THINGS), await now.another()
        at = version(await mine.create("a", b"0"))
        theirs = other.records(THINGS)

        now.server.plan = once(CUT_AFTER, "PUT", part=b"/meta/")
        load = mine._records._load  # type: ignore[attr-defined]

        async def late(name: bytes) -> object:
            mine._records._load = load  # type: ignore[attr-defined]
            current = await theirs.get("a")
            assert current is not None
            await theirs.put("a", b"theirs", at=current.version)
            return await load(name)

        mine._records._load = late  # type: ignore[attr-defined]
        put = await mine.put("a", b"mine", at=at)
        found = await mine.get("a")
        await other.close()
        assert (put.outcome, found and found.value) == (Outcome.DONE, b"theirs")


async def test_a_write_whose_outcome_cannot_be_found_out_is_unknown_also_without_a_name() -> None:
    async with scene() as now:
        mine, other = now.backend.records(THINGS), await now.another()
        at = version(await mine.create("a", b"0"))
        theirs, load = other.records(THINGS), mine._records._load  # type: ignore[attr-defined]

        async def late(name: bytes) -> object:
            mine._records._load = load  # type: ignore[attr-defined]
            newest = at
            for n in range(NONCES_KEPT + 1):
                newest = version(await theirs.put("a", b"%d" % n, at=newest))
            return await load(name)

        mine._records._load = late  # type: ignore[attr-defined]
        now.server.plan = once(CUT_BEFORE, "PUT", part=b"/meta/")
        put = await mine.put("a", b"mine", at=at)
        await other.close()
        assert put.outcome is Outcome.UNKNOWN


async def test_a_process_that_knows_an_old_version_gets_a_conflict() -> None:
    async with scene() as now:
        mine, other = now.backend.records(THINGS), await now.another()
        at = version(await mine.create("a", b"0"))
        await other.records(THINGS).put("a", b"1", at=at)
        answers = await mine.put("a", b"2", at=at), await mine.delete("a", at=at), await mine.create("a", b"3")
        await other.close()
        assert [answer.outcome for answer in answers] == [Outcome.CONFLICT] * 3


# What is deleted


async def test_a_deleted_record_whose_delete_may_be_retried_is_gone_for_good_after_an_hour() -> None:
    async with scene() as now:
        records = now.backend.records(THINGS)
        at = version(await records.create("a", b"1", nonce="mine"))
        await records.delete("a", at=at)
        again = await records.create("a", b"1", nonce="mine")
        kept = [key for key in now.server.keys if b"/meta/" in key]
        now.clock.advance(GONE_KEPT + HOUR)
        shown = await due_keys(records)
        now.clock.advance(HOUR)
        shown += await due_keys(records)
        left = [key for key in now.server.keys if not key.endswith(b"buckets.json")]
        assert (again.outcome, len(kept), shown, left) == (Outcome.DONE, 1, [], [])


async def test_a_record_whose_writes_had_no_names_is_gone_at_once() -> None:
    async with scene() as now:
        records = now.backend.records(THINGS)
        at = version(await records.create("a", b"1", due_at=now.clock.now()))
        await records.delete("a", at=at)
        assert [key for key in now.server.keys if not key.endswith(b"buckets.json")] == []


# The due index among processes


async def test_an_entry_that_may_still_get_its_record_is_not_removed() -> None:
    async with scene() as now:
        records, other = now.backend.records(THINGS), await now.another()
        due = now.clock.now() - HOUR
        await records.get("a", entering=due)
        early = await due_keys(other.records(THINGS)), len(entries(now))
        await records.create("a", b"", due_at=due)
        late = await due_keys(other.records(THINGS))
        await other.close()
        assert (early, late) == (([], 1), ["a"])


async def test_an_entry_whose_writer_died_goes_once_it_is_old() -> None:
    async with scene() as now:
        other = await now.another()
        await other.records(THINGS).get("a", entering=now.clock.now() - HOUR)
        await other.close()
        records = now.backend.records(THINGS)
        now.clock.advance(STALE)
        assert (await due_keys(records), entries(now)) == ([], [])


async def test_a_removed_entry_is_not_that_of_another_writer() -> None:
    async with scene() as now:
        mine, other = now.backend.records(THINGS), await now.another()
        due = now.clock.now() - HOUR
        at = version(await mine.create("a", b"", due_at=due))
        freed = version(await mine.put("a", b"", at=at, entry_stays=True))
        await other.records(THINGS).put("a", b"", at=freed, due_at=due)
        await mine.leave("a", due)
        shown = await due_keys(mine)
        await other.close()
        assert shown == ["a"]


async def test_an_entry_left_in_a_tended_collection_is_shown_until_it_is_removed() -> None:
    async with scene() as now:
        records = now.backend.records(TENDED)
        due = now.clock.now() - HOUR
        at = version(await records.create("a", b"1", due_at=due))
        await records.put("a", b"2", at=at, entry_stays=True)
        first = [(record.key, record.due_at) for record in await records.due(None, None, 10)]
        await records.leave("a", due)
        assert (first, await due_keys(records)) == ([("a", due)], [])


async def test_an_empty_bucket_leaves_the_list_and_comes_back_when_it_is_needed() -> None:
    async with scene() as now:
        records, other = now.backend.records(THINGS), await now.another()
        due = now.clock.now()
        at = version(await records.create("a", b"", due_at=due))
        await records.put("a", b"", at=at)
        now.clock.advance(2 * HOUR + RETIRED_AFTER)
        await due_keys(records)
        listed = now.server.things[b"here/ns/.lease-index/buckets.json"].data
        # The other one still believes that the bucket is listed.
        other.records(THINGS)._records._index._listed.add("2026010100")
        await other.records(THINGS).create("b", b"", due_at=due)
        shown = await due_keys(records)
        await other.close()
        assert (listed, shown) == (b"[]", ["b"])


@pytest.mark.parametrize("found", [b"", b"\xff\xfe", b"[" * 5_000, b"{}", b"[1]", b'["yesterday"]'])
async def test_a_list_of_buckets_that_was_overwritten_is_made_again(found: bytes) -> None:
    async with scene() as now:
        records = now.backend.records(THINGS)
        await records.create("a", b"", due_at=now.clock.now() - HOUR)
        assert await due_keys(records) == ["a"]
        listed = now.server.things[b"here/ns/.lease-index/buckets.json"]
        before, listed.data = listed.data, found
        assert await due_keys(records) == ["a"]
        assert now.server.things[b"here/ns/.lease-index/buckets.json"].data == before


async def test_a_bucket_that_is_missing_from_the_list_is_found_by_its_entries() -> None:
    async with scene() as now:
        await now.backend.records(THINGS).create("a", b"", due_at=now.clock.now() - HOUR)
        now.server._drop(b"here/ns/.lease-index/buckets.json")
        other = await now.another()
        shown = await due_keys(other.records(THINGS))
        await other.close()
        assert shown == ["a"]


async def test_many_writers_of_new_buckets_lose_none_of_them() -> None:
    async with scene() as now:
        records, other = now.backend.records(THINGS), await now.another()
        sides = [records, other.records(THINGS)]
        dues = [now.clock.now() - n * HOUR for n in range(1, 9)]
        await asyncio.gather(*(sides[n % 2].create(f"k{n}", b"", due_at=due) for n, due in enumerate(dues)))
        shown = await due_keys(records)
        await other.close()
        assert sorted(shown) == [f"k{n}" for n in range(8)]


# Corrupt bytes


async def test_what_wrasse_did_not_write_is_an_error_and_not_a_missing_record() -> None:
    async with scene() as now:
        now.server._put({}, b"here/ns/meta/a", b"foreign", "e" * 32, {})
        with pytest.raises(StoreBroken):
            await now.backend.records(THINGS).get("a")


@pytest.mark.parametrize("ask", ["get", "page", "due"])
async def test_one_request_of_several_that_fails_is_one_error(ask: str) -> None:
    async with scene() as now:
        records = now.backend.records(THINGS)
        await records.create("a", b"", due_at=now.clock.now() - HOUR)
        now.server.plan = once(BUSY, "GET", part=b"/meta/", times=99)
        calls = {
            "get": lambda: records.get("a", entering=now.clock.now()),
            "page": lambda: records.page("", None, 10),
            "due": lambda: records.due(None, None, 10),
        }
        with pytest.raises(StoreUnavailable):
            await calls[ask]()


async def test_a_store_that_is_away_is_an_error_and_nothing_is_lost() -> None:
    async with scene() as now:
        records = now.backend.records(THINGS)
        at = version(await records.create("a", b"1"))
        now.server.plan = lambda method, path: CUT_BEFORE
        with pytest.raises(StoreUnavailable):
            await records.put("a", b"2", at=at, nonce="n")
        now.server.plan = lambda method, path: None
        assert (await records.put("a", b"2", at=at, nonce="n")).outcome is Outcome.DONE
