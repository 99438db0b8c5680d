"""Records that stand on shelves: counted and listed without being read, and always where the newest write put them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.stores import EMITTING_BACKENDS, Store
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection, Record, Records
from wrasse.ports.status_index import IndexPosition, StatusRange, spot_cursor

LONG = [pytest.param(name, marks=pytest.mark.full) for name in ("redis-7.0", "redis-6.2", "redis-cluster")]
pytestmark = pytest.mark.parametrize("open_store", [*EMITTING_BACKENDS, *LONG], indirect=True)
THINGS = Collection("things/r", "things/due", "things/due/buckets.json", timedelta(seconds=1), flat=True)
VALUE = b'{"a":"b"}'
A, B = "mail/ready", "mail/ready2"  # one begins as the other does


class Shelf:
    """Records that stand somewhere, by name."""

    def __init__(self, records: Records) -> None:
        assert records.shelves is not None
        self.records, self.shelves = records, records.shelves

    async def add(self, key: str, turn: int, shelf: str = A) -> str:
        written = await self.records.create(key, VALUE, spot=IndexPosition(shelf, turn))
        assert written.version is not None
        return written.version

    async def count(self, *spans: StatusRange) -> tuple[int, ...]:
        return (await self.shelves.shelf_counts(spans or [StatusRange(A), StatusRange(B)]))[0]

    async def keys(self, shelf: str = A, after: str | None = None, *, newest: bool = False) -> list[str]:
        page = await self.shelves.shelf_page(shelf, after, 10, newest=newest)
        return [record.key for record in page]

    async def get(self, key: str) -> Record:
        found = await self.records.get(key)
        assert found is not None
        return found


@pytest.fixture
def shelf(store: Store) -> Shelf:
    return Shelf(store.backend.records(THINGS))


async def test_a_record_stands_where_its_newest_write_put_it(shelf: Shelf) -> None:
    version = await shelf.add("k", 7)
    await shelf.records.put("k", VALUE, at=version, spot=IndexPosition(B, 3))
    assert (await shelf.count(), await shelf.keys(A), await shelf.keys(B)) == ((0, 1), [], ["k"])


async def test_a_write_that_names_no_shelf_takes_a_record_off_it(shelf: Shelf) -> None:
    await shelf.records.put("k", VALUE, at=await shelf.add("k", 7))
    assert (await shelf.count(), await shelf.keys()) == ((0, 0), [])


async def test_a_deleted_record_leaves_its_shelf(shelf: Shelf) -> None:
    await shelf.records.delete("k", at=await shelf.add("k", 7))
    assert (await shelf.count(), await shelf.keys()) == ((0, 0), [])


async def test_a_write_that_is_lost_moves_nothing(shelf: Shelf) -> None:
    old = await shelf.add("k", 7)
    await shelf.records.put("k", VALUE, at=old, spot=IndexPosition(A, 8))
    lost = await shelf.records.put("k", VALUE, at=old, spot=IndexPosition(B, 9))
    assert (lost.outcome, await shelf.count()) == (Outcome.LOST, (1, 0))


async def test_a_shelf_is_listed_by_turn_both_ways(shelf: Shelf) -> None:
    far = 1 << 62
    for key, turn in (("c", 5), ("a", -far), ("e", far), ("b/%", -1), ("d", 5)):
        await shelf.add(key, turn)
    await shelf.add("other", 0, B)
    up = await shelf.keys()
    assert (up, await shelf.keys(newest=True)) == (["a", "b/%", "c", "d", "e"], up[::-1])


@pytest.mark.parametrize("newest", [False, True])
async def test_every_cursor_of_a_shelf_goes_on_after_its_record(shelf: Shelf, newest: bool) -> None:
    for n in range(5):
        await shelf.add(f"k{n}", n // 2 - 1)
    whole = await shelf.shelves.shelf_page(A, None, 10, newest=newest)
    keys = [record.key for record in whole]
    rests = [await shelf.keys(after=cursor, newest=newest) for cursor in whole.cursors]
    assert rests == [keys[n:] for n in range(1, 6)]
    assert await shelf.keys(after=spot_cursor(-1, "k0"), newest=newest) == ([] if newest else keys[1:])


async def test_a_page_of_a_shelf_says_whether_there_are_more(shelf: Shelf) -> None:
    for n in range(3):
        await shelf.add(f"k{n}", n)
    few, all_of_it = [await shelf.shelves.shelf_page(A, None, limit) for limit in (2, 3)]
    assert ((len(few), few.more), (len(all_of_it), all_of_it.more)) == ((2, True), (3, False))


async def test_a_part_of_a_shelf_is_counted_up_to_a_turn(shelf: Shelf) -> None:
    for n, turn in enumerate((-5, 3, 3, 4)):
        await shelf.add(f"k{n}", turn)
    await shelf.add("other", 0, B)
    parts = [StatusRange(A, upto) for upto in (-6, -5, 2, 3, 9)]
    assert await shelf.count(*parts, StatusRange(A), StatusRange("none")) == (0, 1, 1, 3, 4, 4, 0)


async def test_a_record_is_put_where_it_belongs_without_being_changed(shelf: Shelf) -> None:
    await shelf.add("k", 7)
    await shelf.records.create("new", VALUE)
    before = [await shelf.get(key) for key in ("k", "new")]
    moved = await shelf.shelves.shelve([(before[0], IndexPosition(B, 1)), (before[1], IndexPosition(B, 2))])
    again = await shelf.shelves.shelve([(before[0], IndexPosition(B, 1)), (before[1], IndexPosition(B, 2))])
    assert (moved, again, await shelf.keys(B)) == (2, 0, ["k", "new"])
    assert [await shelf.get(key) for key in ("k", "new")] == before


async def test_a_record_that_has_changed_is_not_put_elsewhere(shelf: Shelf) -> None:
    version = await shelf.add("k", 7)
    seen = await shelf.get("k")
    await shelf.records.put("k", VALUE, at=version, spot=IndexPosition(A, 8))
    assert (await shelf.shelves.shelve([(seen, IndexPosition(B, 1))]), await shelf.count()) == (0, (1, 0))
