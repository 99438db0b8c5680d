"""Which operation sent how many requests to a bucket: what the metric of requests is made of."""

from __future__ import annotations

import pytest

from leases.places import NS, TTL, Place

OURS = pytest.mark.parametrize("place", ["strict s3"], indirect=True)


@OURS
async def test_requests_are_counted_for_the_operation_that_sent_them(place: Place) -> None:
    leases = await place.process()
    leased = await leases.acquire("a", "me", ttl=TTL)
    before = leases.requests.copy()
    await leases.renew(leased.granted, TTL)
    await leases.update(leased.granted, b"{}")
    await leases.release(leased.granted)
    await leases.close()
    await leases.read_public(NS, "a")
    sent = leases.requests - before
    assert (sent["keepalive"], sent["update"], sent["public_get"]) == (1, 2, 2)
    assert sent["acquire"] == 0
    assert sent["release"] >= 2
