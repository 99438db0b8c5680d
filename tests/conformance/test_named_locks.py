"""Plain locks: one owner at a time, and only the owner renews or releases."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.stores import Store
from wrasse.ports.guard import NamedLocks

pytestmark = pytest.mark.parametrize("open_store", ["redis"], indirect=True)
KEY, LONG, SHORT = "gbe:lock:sweeper", timedelta(minutes=1), timedelta(milliseconds=30)


@pytest.fixture
def locks(store: Store) -> NamedLocks:
    return store.backend.named_locks


async def test_a_lock_has_one_owner_until_it_is_released(locks: NamedLocks) -> None:
    holders = [await locks.hold(KEY, owner, LONG) for owner in ("a", "b", "a")]

    released = [await locks.release(KEY, owner) for owner in ("b", "a")]

    assert (holders, released, await locks.hold(KEY, "b", LONG)) == (["a", "a", "a"], [False, True], "b")


async def test_reading_the_owner_of_a_lock_changes_nothing(locks: NamedLocks) -> None:
    free = await locks.holder(KEY), await locks.holder(KEY)
    await locks.hold(KEY, "a", LONG)

    assert (free, await locks.holder(KEY), await locks.hold(KEY, "b", LONG)) == (("", ""), "a", "a")


async def test_a_lock_that_is_not_renewed_expires(locks: NamedLocks) -> None:
    await locks.hold(KEY, "a", SHORT)

    while await locks.hold(KEY, "b", LONG) != "b":  # only ever ends because the first one did
        pass

    assert await locks.hold(KEY, "a", LONG) == "b"
