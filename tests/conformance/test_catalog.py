"""Catalog: one consistent view in the byte order of keys, and a last look that sees what is true now."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from conformance.catalog_stores import CATALOG_BACKENDS, CatalogStore
from faults import LOST_REPLY, Network, Script
from object_faults import FaultyCatalog
from wrasse.errors import StoreUnavailable, UsageError
from wrasse.ports.catalog import Catalog, CatalogSnapshot, Reference

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = ["a", "a-b", "a/", "a/b", "a0", "A", "é", "𝄞", "%", "a b", "ä", "\x01", "\uffff"]


@pytest.fixture(params=CATALOG_BACKENDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CatalogStore]:
    store = CatalogStore(request.param, tmp_path, lambda kind: str(request.getfixturevalue(f"{kind}_url")))
    yield store
    await store.close()


@pytest.fixture
def catalog(store: CatalogStore) -> Catalog:
    return store.catalog


def ref(key: str, prefix: bool = False, owner: str = "", ended: float | None = None) -> Reference:
    return Reference(key, prefix, owner, "refs", None if ended is None else BEGIN + timedelta(seconds=ended))


async def everything(snapshot: CatalogSnapshot, limit: int = 2) -> list[Reference]:
    """All of a snapshot, by small pages."""
    shown: list[Reference] = []
    after: str | None = None
    while True:
        page = await snapshot.page(after, limit)
        shown += page
        after = page.cursor
        if after is None:
            return shown


async def test_references_come_back_as_they_were_made(store: CatalogStore) -> None:
    made = [ref("a", True, "me", 5.25), ref("b", False, "", None)]
    store.add(made)
    async with store.catalog.snapshot() as snapshot:
        assert (await everything(snapshot), store.is_now(snapshot.at)) == (made, True)


@pytest.mark.parametrize("limit", [1, 3, 100])
async def test_a_snapshot_is_in_the_byte_order_of_keys(store: CatalogStore, limit: int) -> None:
    store.add([ref(key) for key in KEYS])
    async with store.catalog.snapshot() as snapshot:
        shown = [each.key for each in await everything(snapshot, limit)]
    assert shown == sorted(KEYS, key=str.encode)


async def test_every_cursor_of_a_page_goes_on_exactly_there(store: CatalogStore) -> None:
    store.add([ref(key, owner=owner) for key in KEYS for owner in ("one", "two", "three")])
    async with store.catalog.snapshot() as snapshot:
        whole = await snapshot.page(None, 100)
        rests = [await snapshot.page(cursor, 100) for cursor in whole.cursors]
        again = await snapshot.page(None, 100)
    assert [rest.items for rest in rests] == [whole.items[n:] for n in range(1, len(whole) + 1)]
    assert (again, len(whole)) == (whole, 3 * len(KEYS))


async def test_an_empty_catalog_is_one_empty_page(catalog: Catalog) -> None:
    async with catalog.snapshot() as snapshot:
        assert (list(await snapshot.page(None, 10)), (await snapshot.page(None, 10)).more) == ([], False)


async def test_a_snapshot_does_not_see_what_happens_after_it_was_opened(store: CatalogStore) -> None:
    old, gone, new = ref("b"), ref("c"), ref("a")
    store.add([old, gone])
    async with store.catalog.snapshot() as snapshot:
        store.add([new])
        store.remove(gone)
        before = await everything(snapshot, 1)
    async with store.catalog.snapshot() as snapshot:
        after = await everything(snapshot, 1)
    assert (before, after) == ([old, gone], [new, old])


async def test_the_last_lookup_sees_what_is_true_now(store: CatalogStore) -> None:
    store.add([ref("b")])
    async with store.catalog.snapshot():
        store.add([ref("a")])
        store.remove(ref("b"))
        assert list(await store.catalog.referenced(["a", "b", "c"])) == [ref("a"), None, None]


async def test_a_prefix_protects_everything_below_it(store: CatalogStore) -> None:
    store.add([ref("x/", prefix=True), ref("y/", prefix=False), ref("é", prefix=True)])
    asked = ["x/1/2", "x/", "x", "X/1", "y/1", "y/", "éa", "e"]
    found = await store.catalog.referenced(asked)
    assert [each and each.key for each in found] == ["x/", "x/", None, None, None, "y/", "é", None]


async def test_a_reference_to_everything_protects_everything(store: CatalogStore) -> None:
    store.add([ref("", prefix=True)])
    async with store.catalog.snapshot() as snapshot:
        assert await everything(snapshot) == [ref("", prefix=True)]
    assert list(await store.catalog.referenced(["a", "b/c"])) == [ref("", prefix=True)] * 2


async def test_of_several_references_the_one_that_protects_longest_is_given(store: CatalogStore) -> None:
    store.add([ref("a", ended=1), ref("a", ended=9), ref("a", ended=5), ref("b", ended=1), ref("b")])
    store.add([ref("c/", prefix=True), ref("c/1", ended=3)])
    found = await store.catalog.referenced(["a", "b", "c/1"])
    assert list(found) == [ref("a", ended=9), ref("b"), ref("c/", prefix=True)]


async def test_what_protects_anything_in_a_directory_protects_the_directory(store: CatalogStore) -> None:
    store.add([ref("a/1/x"), ref("a/2/"), ref("a/3/y/", prefix=True), ref("a/4"), ref("b/", prefix=True), ref("a/50")])
    asked = ["a/1/", "a/2/", "a/3/", "a/4/", "b/1/", "a/5/", "a/"]
    found = await store.catalog.referenced(asked, below=True)
    assert [each and each.key for each in found[:-1]] == ["a/1/x", "a/2/", "a/3/y/", None, "b/", None]
    assert found[-1] is not None


async def test_an_operation_under_way_counts_for_more_than_a_later_end(store: CatalogStore) -> None:
    running = dataclasses.replace(ref("a", ended=1), started_at=ref("a", ended=2).ended_at)
    store.add([running, ref("a", ended=9)])
    async with store.catalog.snapshot() as snapshot:
        assert running in await everything(snapshot)
    assert list(await store.catalog.referenced(["a"])) == [running]


async def test_many_references_are_streamed(store: CatalogStore) -> None:
    store.add([ref(f"{n:05}") for n in range(20_000)])
    async with store.catalog.snapshot() as snapshot:
        shown = [each.key for each in await everything(snapshot, 999)]
    assert shown == [f"{n:05}" for n in range(20_000)]


async def test_a_page_whose_reply_is_lost_can_be_read_again(store: CatalogStore) -> None:
    store.add([ref(key) for key in KEYS])
    faulty = FaultyCatalog(store.catalog, Network(Script({1: LOST_REPLY}, only="page")))
    async with faulty.snapshot() as snapshot:
        first = await snapshot.page(None, 4)
        with pytest.raises(StoreUnavailable):
            await snapshot.page(first.cursor, 4)
        again = await snapshot.page(first.cursor, 100)
    assert [each.key for each in (*first, *again)] == sorted(KEYS, key=str.encode)


async def test_a_page_of_nothing_and_a_foreign_cursor_are_refused(catalog: Catalog) -> None:
    async with catalog.snapshot() as snapshot:
        with pytest.raises(UsageError):
            await snapshot.page(None, 0)
        with pytest.raises(UsageError):
            await snapshot.page("what?", 1)
