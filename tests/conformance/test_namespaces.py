"""Namespaces: those that hold keys are listed by the store, in order, page by page."""

from __future__ import annotations

import pytest

from conformance.stores import CLUSTER, RECORDS_BACKENDS, Store
from wrasse.leases.core import leases_in

pytestmark = pytest.mark.parametrize("open_store", [*RECORDS_BACKENDS, CLUSTER], indirect=True)


async def listed(store: Store, limit: int = 2) -> list[str]:
    found: list[str] = []
    after: str | None = None
    while True:
        page = await store.backend.namespaces.page(after, limit)
        found += page
        after = page.cursor
        if after is None:
            return found


async def keyed(store: Store, *names: str) -> None:
    for name in names:
        await store.backend.records(leases_in(name)).create("a/key", b"{}", due_at=store.clock.now())


async def test_namespaces_are_listed_in_order_page_by_page(store: Store) -> None:
    await keyed(store, "b", "a.b", "c", "a", "default")
    assert await listed(store) == ["a.b", "a", "b", "c", "default"]


async def test_a_store_without_keys_has_no_namespaces(store: Store) -> None:
    if not store.name.endswith("s3"):  # where any folder may be one
        await store.records().create("a", b"")
    assert await listed(store) == []


async def test_reserved_names_are_no_namespaces(store: Store) -> None:
    await keyed(store, ".wrasse", "a")
    assert await listed(store) == ["a"]


async def test_another_process_finds_what_this_one_made(store: Store) -> None:
    await keyed(store, "a", "b")
    await store.reopen()
    assert await listed(store) == ["a", "b"]
