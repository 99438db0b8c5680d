"""Records: versions, conditions, the due index and the order of pages. What every backend promises."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from conformance.stores import OLD_SERVERS, RECORDS_BACKENDS, Store
from faults import CRASH, LOST_REPLY, Crashed, FaultyRecords, Network, Script
from wrasse.errors import StoreUnavailable, TooLarge, UsageError
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.records import (
    KEY_BYTES_MAX,
    NONCES_KEPT,
    VALUE_BYTES_MAX,
    Record,
    Records,
    Written,
    stored_name,
)

LONG = [pytest.param(name, marks=pytest.mark.full) for name in OLD_SERVERS]
pytestmark = pytest.mark.parametrize("open_store", [*RECORDS_BACKENDS, *LONG], indirect=True)

SHORT = timedelta(milliseconds=300)
PRINTABLE = "".join(chr(n) for n in range(32, 127))
ODD_KEYS = ["a", "a/b", "a//b", "a/", "/", ".", "..", "a%2Fb", "%", PRINTABLE, "é✓𝄞", "\x01\x7f\n", "x" * KEY_BYTES_MAX]


@pytest.fixture
def records(store: Store) -> Records:
    return store.records()


def version(written: Written) -> str:
    """The version a write made; it must have been made."""
    assert written.outcome is Outcome.DONE, written
    assert written.version is not None
    return written.version


async def found(records: Records, key: str) -> Record:
    record = await records.get(key)
    assert record is not None, f"there is no record {key!r}"
    return record


async def keys(records: Records, prefix: str = "", limit: int = 2) -> list[str]:
    """Every key with this prefix, by small pages, so that every listing also tests its cursors."""
    shown: list[str] = []
    after: str | None = None
    while True:
        page = await records.page(prefix, after, limit)
        shown += [record.key for record in page]
        after = page.cursor
        if after is None:
            return shown


async def due_keys(records: Records, before: datetime | None = None) -> list[str]:
    """Every key that is due. A backend may show one that is not due yet, but by no more than its resolution."""
    shown: list[str] = []
    after: str | None = None
    while True:
        page: Page[Record] = await records.due(before, after, 2)
        horizon = before or page.at
        assert all(record.due_at is None or record.due_at <= horizon + records.resolution for record in page)
        shown += [record.key for record in page if record.due_at is not None and record.due_at <= horizon]
        after = page.cursor
        if after is None:
            return shown


# Writing and reading


async def test_a_record_comes_back_as_it_was_written(records: Records, store: Store) -> None:
    due = store.clock.now().replace(microsecond=123456)
    written = await records.create("a", bytes(range(256)), due_at=due)
    assert await records.get("a") == Record("a", bytes(range(256)), version(written), due)


@pytest.mark.parametrize("key", ODD_KEYS)
async def test_a_key_may_have_any_character(records: Records, store: Store, key: str) -> None:
    if not store.keeps(key):
        with pytest.raises(UsageError):
            await records.create(key, b"1")
        return
    written = await records.create(key, b"1")
    replaced = await records.put(key, b"2", at=version(written))
    assert ((await found(records, key)).value, await keys(records)) == (b"2", [key])
    assert await records.delete(key, at=version(replaced))


async def test_keys_that_look_alike_do_not_collide(records: Records, store: Store) -> None:
    odd = [key for key in ODD_KEYS if store.keeps(key)]
    for key in odd:
        assert await records.create(key, key.encode())
    assert [(await found(records, key)).value for key in odd] == [key.encode() for key in odd]


@pytest.mark.parametrize("value", [b"", bytes(VALUE_BYTES_MAX)], ids=["no bytes", "the largest"])
async def test_a_value_may_have_any_size_up_to_the_limit(records: Records, value: bytes) -> None:
    await records.create("a", value)
    assert (await found(records, "a")).value == value


async def test_what_no_backend_could_keep_is_refused(records: Records) -> None:
    with pytest.raises(TooLarge):
        await records.create("a", bytes(VALUE_BYTES_MAX + 1))
    for key in ("", "é" * (KEY_BYTES_MAX // 2) + "x"):
        with pytest.raises(UsageError):
            await records.create(key, b"")
    assert await keys(records) == []


async def test_a_missing_record_is_none(records: Records) -> None:
    assert await records.get("a") is None


async def test_collections_do_not_see_each_other(store: Store) -> None:
    await store.records("one").create("a", b"1")
    await store.records("two").create("a", b"2")
    assert [(await found(store.records(name), "a")).value for name in ("one", "two")] == [b"1", b"2"]


# Conditions


async def test_a_record_is_created_once(records: Records) -> None:
    first, second = await records.create("a", b"1"), await records.create("a", b"2")
    assert (bool(first), second.outcome, (await found(records, "a")).value) == (True, Outcome.CONFLICT, b"1")


async def test_a_write_that_names_an_old_version_is_a_conflict(records: Records) -> None:
    old = version(await records.create("a", b"1"))
    new = version(await records.put("a", b"2", at=old))
    put, delete = await records.put("a", b"3", at=old), await records.delete("a", at=old)
    assert (put.outcome, delete.outcome, (await found(records, "a")).value) == (
        Outcome.CONFLICT,
        Outcome.CONFLICT,
        b"2",
    )
    assert old != new


async def test_every_write_makes_a_new_version_even_of_the_same_value(records: Records) -> None:
    first = version(await records.create("a", b"1"))
    second = version(await records.put("a", b"1", at=first))
    assert (await records.put("a", b"2", at=first)).outcome is Outcome.CONFLICT
    assert await records.put("a", b"2", at=second)


async def test_a_deleted_record_can_be_created_again_under_another_version(records: Records) -> None:
    first = version(await records.create("a", b"1"))
    assert await records.delete("a", at=first)
    gone = await records.get("a")
    second = version(await records.create("a", b"1"))
    assert (gone, first == second, bool(await records.delete("a", at=first))) == (None, False, False)


async def test_a_write_to_a_deleted_record_is_a_conflict(records: Records) -> None:
    first = version(await records.create("a", b"1"))
    await records.delete("a", at=first)
    put, delete = await records.put("a", b"2", at=first), await records.delete("a", at=first)
    assert (put.outcome, delete.outcome, await records.get("a")) == (Outcome.CONFLICT, Outcome.CONFLICT, None)


async def test_of_fifty_writers_at_one_version_one_wins(store: Store) -> None:
    other = await store.another()
    try:
        sides = [store.records(), other.records(store.collection())]
        first = version(await sides[0].create("a", b"0"))
        answers = await asyncio.gather(*(sides[n % 2].put("a", b"%d" % n, at=first) for n in range(50)))
        (winner,) = [n for n, answer in enumerate(answers) if answer]
        assert (await found(sides[0], "a")).value == b"%d" % winner
        assert {answer.outcome for answer in answers} == {Outcome.DONE, Outcome.CONFLICT}
    finally:
        await other.close()


async def test_of_fifty_creators_of_one_key_one_wins(store: Store) -> None:
    other = await store.another()
    try:
        sides = [store.records(), other.records(store.collection())]
        answers = await asyncio.gather(*(sides[n % 2].create("a", b"%d" % n) for n in range(50)))
        (winner,) = [n for n, answer in enumerate(answers) if answer]
        assert (await found(sides[1], "a")).value == b"%d" % winner
    finally:
        await other.close()


# Asking again


async def test_a_write_retried_after_a_lost_reply_gives_the_first_answer(records: Records) -> None:
    faulty = FaultyRecords(records, Network(Script({0: LOST_REPLY, 2: LOST_REPLY, 4: LOST_REPLY})))
    with pytest.raises(StoreUnavailable):
        await faulty.create("a", b"1", nonce="n1")
    created = await faulty.create("a", b"1", nonce="n1")
    with pytest.raises(StoreUnavailable):
        await faulty.put("a", b"2", at=version(created), nonce="n2")
    put = await faulty.put("a", b"2", at=version(created), nonce="n2")
    assert (version(put), (await found(records, "a")).value) == ((await found(records, "a")).version, b"2")
    with pytest.raises(StoreUnavailable):
        await faulty.delete("a", at=version(put), nonce="n3")
    deleted = await faulty.delete("a", at=version(put), nonce="n3")
    assert (deleted.outcome, await records.get("a")) == (Outcome.DONE, None)


async def test_a_write_asked_again_after_others_wrote_is_still_known(records: Records) -> None:
    at = mine = version(await records.create("a", b"1", nonce="mine"))
    for n in range(NONCES_KEPT - 1):
        at = version(await records.put("a", b"%d" % n, at=at, nonce=f"n{n}"))
    again = await records.create("a", b"1", nonce="mine")
    assert (again.outcome, again.version, (await found(records, "a")).version) == (Outcome.DONE, mine, at)


async def test_a_write_that_can_no_longer_be_found_out_is_never_called_a_conflict(records: Records) -> None:
    first = version(await records.create("a", b"0", nonce="create"))
    at = version(await records.put("a", b"1", at=first, nonce="mine"))
    for n in range(2 * NONCES_KEPT):
        at = version(await records.put("a", b"%d" % n, at=at, nonce=f"n{n}"))
    again = await records.put("a", b"1", at=first, nonce="mine")
    assert again.outcome in (Outcome.UNKNOWN, Outcome.DONE)
    assert (await found(records, "a")).version == at


async def test_a_write_that_surely_conflicts_is_called_a_conflict(records: Records) -> None:
    first = version(await records.create("a", b"0", nonce="n1"))
    await records.put("a", b"1", at=first, nonce="n2")
    answers = await records.put("a", b"2", at=first, nonce="n3"), await records.create("a", b"3", nonce="n4")
    assert [answer.outcome for answer in answers] == [Outcome.CONFLICT, Outcome.CONFLICT]


async def test_a_create_asked_again_after_the_record_was_deleted_does_not_bring_it_back(records: Records) -> None:
    mine = version(await records.create("a", b"1", nonce="mine"))
    await records.delete("a", at=mine, nonce="theirs")
    again = await records.create("a", b"1", nonce="mine")
    assert (again.outcome in (Outcome.DONE, Outcome.UNKNOWN), await records.get("a")) == (True, None)


async def test_a_delete_asked_again_does_not_remove_the_next_record(records: Records) -> None:
    mine = version(await records.create("a", b"1"))
    await records.delete("a", at=mine, nonce="mine")
    await records.create("a", b"2")
    again = await records.delete("a", at=mine, nonce="mine")
    assert (again.outcome in (Outcome.DONE, Outcome.UNKNOWN), (await found(records, "a")).value) == (True, b"2")


@pytest.mark.parametrize("step", range(3))
async def test_a_crash_before_any_step_leaves_what_the_earlier_steps_wrote(records: Records, step: int) -> None:
    faulty = FaultyRecords(records, Network(Script({step: CRASH})))

    async def live() -> None:
        created = await faulty.create("a", b"1")
        replaced = await faulty.put("a", b"2", at=version(created))
        await faulty.delete("a", at=version(replaced))

    with pytest.raises(Crashed):
        await live()
    record = await records.get("a")
    assert (record and record.value) == [None, b"1", b"2"][step]


async def test_records_survive_a_restart(store: Store) -> None:
    due = store.clock.now() - SHORT - store.records().resolution
    for key in ("a", "b/c"):
        await store.records().create(key, key.encode(), due_at=due, nonce="n" + key)
    before = await store.records().get("b/c")
    await store.reopen()
    records = store.records()
    again = await records.create("a", b"a", nonce="na")
    assert (await records.get("b/c"), again.outcome, await keys(records)) == (before, Outcome.DONE, ["a", "b/c"])
    assert sorted(await due_keys(records)) == ["a", "b/c"]


# Pages


async def test_a_page_is_in_the_byte_order_of_stored_names(records: Records, store: Store) -> None:
    odd = [key for key in ODD_KEYS if store.keeps(key)]
    for key in odd:
        await records.create(key, b"")
    assert await keys(records) == sorted(odd, key=lambda key: stored_name(key).encode())


async def test_a_page_shows_the_keys_that_start_with_the_prefix(records: Records) -> None:
    for key in ("a", "a/b", "a/b/c", "a%", "ab", "b", "A"):
        await records.create(key, b"")
    shown = [await keys(records, prefix) for prefix in ("a/", "a/b", "a%", "c", "ab")]
    assert shown == [["a/b", "a/b/c"], ["a/b", "a/b/c"], ["a%"], [], ["ab"]]


async def test_every_cursor_of_a_page_goes_on_exactly_there(records: Records) -> None:
    for n in range(7):
        await records.create(f"k{n}", b"")
    whole = await records.page("k", None, 10)
    rests = [await records.page("k", cursor, 10) for cursor in whole.cursors]
    assert [[record.key for record in rest] for rest in rests] == [
        [record.key for record in whole.items[n:]] for n in range(1, 8)
    ]


async def test_a_listing_goes_on_after_what_it_showed_was_deleted(records: Records) -> None:
    for key in "abcde":
        await records.create(key, b"")
    first = await records.page("", None, 2)
    for record in first:
        await records.delete(record.key, at=record.version)
    rest = await records.page("", first.cursor, 10)
    assert [record.key for record in rest] == ["c", "d", "e"]


# What is due


async def test_what_is_due_is_found_earliest_first(records: Records, store: Store) -> None:
    now = store.clock.now()
    for key, due in (("late", 4), ("b", 3), ("a", 2), ("future", -3600)):
        await records.create(key, b"", due_at=now - timedelta(seconds=due))
    await records.create("never", b"")
    assert await due_keys(records) == ["late", "b", "a"]


async def test_a_record_is_due_from_its_moment_on(records: Records, store: Store) -> None:
    await records.create("a", b"", due_at=store.clock.now() + store.soon)
    early = await due_keys(records)
    await store.pass_time(store.soon + records.resolution)
    assert (early, await due_keys(records)) == ([], ["a"])


async def test_due_may_be_asked_for_any_moment(records: Records, store: Store) -> None:
    now = store.clock.now()
    for hours in (1, 2, 3):
        await records.create(str(hours), b"", due_at=now + timedelta(hours=hours))
    assert await due_keys(records, now + timedelta(hours=2) + records.resolution) == ["1", "2"]


async def test_a_write_moves_its_record_in_the_due_index(records: Records, store: Store) -> None:
    now = store.clock.now()
    first = version(await records.create("a", b"", due_at=now - SHORT - records.resolution))
    await records.create("b", b"", due_at=now - SHORT - records.resolution)
    await records.put("a", b"", at=first, due_at=now + timedelta(hours=2))
    later = await due_keys(records), await due_keys(records, now + timedelta(hours=3))
    assert later == (["b"], ["b", "a"])


async def test_a_record_without_a_due_time_or_deleted_is_no_longer_due(records: Records, store: Store) -> None:
    due = store.clock.now() - SHORT - store.records().resolution
    a, b = [version(await records.create(key, b"", due_at=due)) for key in "ab"]
    await records.put("a", b"", at=a)
    await records.delete("b", at=b)
    assert await due_keys(records) == []


async def test_records_due_at_the_same_moment_are_all_found(records: Records, store: Store) -> None:
    due = store.clock.now() - SHORT - store.records().resolution
    for n in range(5):
        await records.create(str(n), b"", due_at=due)
    assert sorted(await due_keys(records)) == ["0", "1", "2", "3", "4"]


async def test_an_entry_that_was_left_is_gone_once_it_is_removed(records: Records, store: Store) -> None:
    due = store.clock.now() - SHORT - store.records().resolution
    first = version(await records.create("a", b"", due_at=due))
    await records.put("a", b"", at=first, due_at=None, entry_stays=True)
    await records.leave("a", due)
    assert await due_keys(records) == []


async def test_an_entry_that_is_needed_again_is_not_removed(records: Records, store: Store) -> None:
    due = store.clock.now() - SHORT - store.records().resolution
    first = version(await records.create("a", b"", due_at=due))
    freed = version(await records.put("a", b"", at=first, due_at=None, entry_stays=True))
    await records.put("a", b"", at=freed, due_at=due)
    await records.leave("a", due)
    assert await due_keys(records) == ["a"]


async def test_a_read_that_announces_a_write_changes_nothing(records: Records, store: Store) -> None:
    due = store.clock.now() - SHORT - store.records().resolution
    await records.get("a", entering=due)
    assert (await records.get("a"), await due_keys(records)) == (None, [])
