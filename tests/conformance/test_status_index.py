"""The status index: records are counted and listed by status without being read, as the newest write said."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.stores import EMITTING_BACKENDS, Store
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection, IndexEntry, Record, Records, StatusRange, index_cursor

LONG = [pytest.param(name, marks=pytest.mark.full) for name in ("redis-7.0", "redis-6.2", "redis-cluster")]
pytestmark = pytest.mark.parametrize("open_store", [*EMITTING_BACKENDS, *LONG], indirect=True)
THINGS = Collection("things/r", "things/due", "things/due/buckets.json", timedelta(seconds=1), flat=True)
VALUE = b'{"a":"b"}'
A, B = "mail/ready", "mail/ready2"  # one begins as the other does


class StatusView:
    """Records that stand somewhere, by name."""

    def __init__(self, records: Records) -> None:
        assert records.status_index is not None
        self.records, self.status_index = records, records.status_index

    async def add(self, key: str, turn: int, status: str = A) -> str:
        written = await self.records.create(key, VALUE, index_entry=IndexEntry(status, turn))
        assert written.version is not None
        return written.version

    async def count(self, *spans: StatusRange) -> tuple[int, ...]:
        return (await self.status_index.status_counts(spans or [StatusRange(A), StatusRange(B)]))[0]

    async def keys(self, status: str = A, after: str | None = None, *, newest: bool = False) -> list[str]:
        page = await self.status_index.status_page(status, after, 10, newest=newest)
        return [record.key for record in page]

    async def get(self, key: str) -> Record:
        found = await self.records.get(key)
        assert found is not None
        return found


@pytest.fixture
def status(store: Store) -> StatusView:
    return StatusView(store.backend.records(THINGS))


async def test_a_record_stands_where_its_newest_write_put_it(status: StatusView) -> None:
    version = await status.add("k", 7)
    await status.records.put("k", VALUE, at=version, index_entry=IndexEntry(B, 3))
    assert (await status.count(), await status.keys(A), await status.keys(B)) == ((0, 1), [], ["k"])


async def test_a_write_without_a_status_removes_the_index_entry(status: StatusView) -> None:
    await status.records.put("k", VALUE, at=await status.add("k", 7))
    assert (await status.count(), await status.keys()) == ((0, 0), [])


async def test_a_deleted_record_leaves_its_status(status: StatusView) -> None:
    await status.records.delete("k", at=await status.add("k", 7))
    assert (await status.count(), await status.keys()) == ((0, 0), [])


async def test_a_write_that_conflicts_moves_nothing(status: StatusView) -> None:
    old = await status.add("k", 7)
    await status.records.put("k", VALUE, at=old, index_entry=IndexEntry(A, 8))
    lost = await status.records.put("k", VALUE, at=old, index_entry=IndexEntry(B, 9))
    assert (lost.outcome, await status.count()) == (Outcome.CONFLICT, (1, 0))


async def test_a_status_is_listed_by_position_both_ways(status: StatusView) -> None:
    far = 1 << 62
    for key, turn in (("c", 5), ("a", -far), ("e", far), ("b/%", -1), ("d", 5)):
        await status.add(key, turn)
    await status.add("other", 0, B)
    up = await status.keys()
    assert (up, await status.keys(newest=True)) == (["a", "b/%", "c", "d", "e"], up[::-1])


@pytest.mark.parametrize("newest", [False, True])
async def test_every_cursor_of_a_status_goes_on_after_its_record(status: StatusView, newest: bool) -> None:
    for n in range(5):
        await status.add(f"k{n}", n // 2 - 1)
    whole = await status.status_index.status_page(A, None, 10, newest=newest)
    keys = [record.key for record in whole]
    rests = [await status.keys(after=cursor, newest=newest) for cursor in whole.cursors]
    assert rests == [keys[n:] for n in range(1, 6)]
    assert await status.keys(after=index_cursor(-1, "k0"), newest=newest) == ([] if newest else keys[1:])


async def test_a_page_of_a_status_says_whether_there_are_more(status: StatusView) -> None:
    for n in range(3):
        await status.add(f"k{n}", n)
    few, all_of_it = [await status.status_index.status_page(A, None, limit) for limit in (2, 3)]
    assert ((len(few), few.more), (len(all_of_it), all_of_it.more)) == ((2, True), (3, False))


async def test_a_part_of_a_status_is_counted_up_to_a_position(status: StatusView) -> None:
    for n, turn in enumerate((-5, 3, 3, 4)):
        await status.add(f"k{n}", turn)
    await status.add("other", 0, B)
    parts = [StatusRange(A, upto) for upto in (-6, -5, 2, 3, 9)]
    assert await status.count(*parts, StatusRange(A), StatusRange("none")) == (0, 1, 1, 3, 4, 4, 0)


async def test_a_record_is_reindexed_without_being_changed(status: StatusView) -> None:
    await status.add("k", 7)
    await status.records.create("new", VALUE)
    before = [await status.get(key) for key in ("k", "new")]
    moved = await status.status_index.reindex([(before[0], IndexEntry(B, 1)), (before[1], IndexEntry(B, 2))])
    again = await status.status_index.reindex([(before[0], IndexEntry(B, 1)), (before[1], IndexEntry(B, 2))])
    assert (moved, again, await status.keys(B)) == (2, 0, ["k", "new"])
    assert [await status.get(key) for key in ("k", "new")] == before


async def test_a_record_that_has_changed_is_not_reindexed(status: StatusView) -> None:
    version = await status.add("k", 7)
    seen = await status.get("k")
    await status.records.put("k", VALUE, at=version, index_entry=IndexEntry(A, 8))
    assert (await status.status_index.reindex([(seen, IndexEntry(B, 1))]), await status.count()) == (0, (1, 0))
