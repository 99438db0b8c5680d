"""A change whose reply was lost is asked for again, with the version that its caller saw: it is the same change."""

from __future__ import annotations

import pytest

from leases.places import NS, TTL, Place
from wrasse.leases.lease import KeyRecord, KeyRefused, Refusal
from wrasse.leases.leases import Leases

OURS = pytest.mark.parametrize("place", ["memory", "directory", "strict s3"], indirect=True)


async def held(leases: Leases) -> KeyRecord:
    """A key with a state, held."""
    first = await leases.acquire("a", "me", ttl=TTL)
    await leases.update(first.granted, b'{"n":0}')
    await leases.release(first.granted)
    return await leases.acquire("a", "me", ttl=TTL)


@OURS
async def test_an_update_that_is_asked_for_again_gives_the_same_answer(place: Place) -> None:
    leases = await place.process()
    lease = await held(leases)
    version, etag = lease.version, lease.etag
    first = await leases.update(lease.granted, b'{"n":1}', if_version=version, if_etag=etag)
    assert await leases.update(lease.granted, b'{"n":1}', if_version=version, if_etag=etag) == first
    await leases.release(lease.granted)
    seen = await leases.read_public(NS, "a")
    assert seen is not None
    assert (seen.data, seen.version) == (b'{"n":1}', version + 1)


@OURS
async def test_another_update_over_the_same_version_is_refused(place: Place) -> None:
    leases = await place.process()
    lease = await held(leases)
    await leases.update(lease.granted, b'{"n":1}', if_version=lease.version)
    with pytest.raises(KeyRefused) as refused:
        await leases.update(lease.granted, b'{"n":2}', if_version=lease.version)
    assert refused.value.code is Refusal.VERSION_CONFLICT


@OURS
async def test_the_same_bytes_over_a_version_that_never_was_are_refused(place: Place) -> None:
    leases = await place.process()
    lease = await held(leases)
    await leases.update(lease.granted, b'{"n":1}', if_version=lease.version)
    with pytest.raises(KeyRefused):
        await leases.update(lease.granted, b'{"n":1}', if_version=lease.version - 1)


@OURS
async def test_a_removal_that_is_asked_for_again_gives_the_same_answer(place: Place) -> None:
    leases = await place.process()
    lease = await held(leases)
    version = lease.version
    first = await leases.remove(lease.granted, if_version=version)
    assert await leases.remove(lease.granted, if_version=version) == first == version + 1


@OURS
async def test_a_change_of_attributes_that_is_asked_for_again_gives_the_same_answer(place: Place) -> None:
    leases = await place.process()
    lease = await held(leases)
    version = lease.version
    first = await leases.hide(lease.granted, True, if_version=version)
    assert await leases.hide(lease.granted, True, if_version=version) == first == version + 1
    with pytest.raises(KeyRefused):
        await leases.hide(lease.granted, False, if_version=version)


@OURS
async def test_a_second_update_that_is_asked_for_again_gives_the_same_answer(place: Place) -> None:
    leases = await place.process()
    lease = await held(leases)
    _, first = await leases.update(lease.granted, b'{"n":1}')
    second = await leases.update(lease.granted, b'{"n":2}', if_etag=first.etag)
    assert await leases.update(lease.granted, b'{"n":2}', if_etag=first.etag) == second


@OURS
async def test_a_removal_of_what_was_staged_gives_the_same_answer_again(place: Place) -> None:
    leases = await place.process()
    lease = await held(leases)
    staged, _ = await leases.update(lease.granted, b'{"n":1}')
    first = await leases.remove(lease.granted, if_version=staged)
    assert await leases.remove(lease.granted, if_version=staged) == first == staged + 1


@OURS
async def test_other_bytes_over_what_was_staged_before_are_refused(place: Place) -> None:
    leases = await place.process()
    lease = await held(leases)
    _, first = await leases.update(lease.granted, b'{"n":1}')
    await leases.update(lease.granted, b'{"n":2}', if_etag=first.etag)
    with pytest.raises(KeyRefused) as refused:
        await leases.update(lease.granted, b'{"n":3}', if_etag=first.etag)
    assert refused.value.code is Refusal.ETAG_MISMATCH
