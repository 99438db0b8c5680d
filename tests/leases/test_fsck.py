"""What is loose, missing or not indexed is found and put right in every place, a bucket of a real server included."""

from __future__ import annotations

import pytest

from leases.places import HOURS, NS, TTL, Place
from wrasse.leases.fsck import Fsck, KeyInconsistency, Trouble
from wrasse.leases.leases import Leases
from wrasse.leases.names import state_name
from wrasse.ports.objects import ObjectDelete

EVERYWHERE = pytest.mark.parametrize("place", ["directory", "strict s3", "s3"], indirect=True)
OURS = pytest.mark.parametrize("place", ["strict s3"], indirect=True)
ID = "0123456789abcdef"


async def committed(leases: Leases, key: str) -> str:
    """A key with a state; the name of its object."""
    leased = await leases.acquire(key, "me", ttl=TTL)
    _, state = await leases.update(leased.granted, b"1")
    await leases.release(leased.granted)
    await leases.close()
    return state.name


async def found(leases: Leases, *, repair: bool = False) -> list[KeyInconsistency]:
    return [each async for each in Fsck(leases, NS, repair=repair).run()]


@EVERYWHERE
async def test_a_sound_namespace_has_nothing_to_complain_about(place: Place) -> None:
    leases = await place.process()
    await committed(leases, "orders/1")
    await leases.acquire("orders/2", "me", ttl=TTL)
    assert await found(leases) == []


@EVERYWHERE
async def test_a_loose_object_is_found_and_deleted(place: Place) -> None:
    leases = await place.process()
    await committed(leases, "orders/1")
    backend = place.opened[-1]
    await backend.objects.create(state_name(NS, "orders/1", 1, ID), b"loose")
    assert [(each.trouble, each.repaired) for each in await found(leases, repair=True)] == [(Trouble.LOOSE, True)]
    assert await found(leases) == []
    seen = await leases.read_public(NS, "orders/1")
    assert seen is not None
    assert seen.data == b"1"


@EVERYWHERE
async def test_an_object_that_is_missing_is_told_and_left_to_a_backup(place: Place) -> None:
    leases = await place.process()
    name = await committed(leases, "orders/1")
    objects = place.opened[-1].objects
    head = await objects.head(name)
    assert head is not None
    await objects.delete([ObjectDelete(name, head.info.version)])
    assert [(each.trouble, each.repaired) for each in await found(leases, repair=True)] == [(Trouble.MISSING, False)]


@OURS
async def test_a_lease_without_an_index_entry_gets_one_and_is_swept(place: Place) -> None:
    leases = await place.process()
    await leases.acquire("orders/1", "me", ttl=TTL)
    objects = place.opened[-1].objects
    entries = [each for each in await objects.page(f"{NS}/.lease-index/", None, 10) if "orders" in each.key]
    await objects.delete([ObjectDelete(each.key, each.version) for each in entries])
    assert [(each.trouble, each.repaired) for each in await found(leases, repair=True)] == [(Trouble.NOT_INDEXED, True)]
    await place.pass_time(HOURS)
    await place.sweep(leases)
    meta = await leases.describe(NS, "orders/1")
    assert meta is not None
    assert meta.lease is None
