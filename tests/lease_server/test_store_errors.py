"""What a store says of itself is for the log of the server: no caller learns its address, bucket or settings."""

from __future__ import annotations

import pytest

from backends.s3.test_hostile import between
from lease_server.scene import served
from servers.hostile_http import sends
from wrasse.leases.leases import Leases


@pytest.mark.parametrize(
    ("status", "code", "answered"),
    [
        (404, "NoSuchBucket", 500),
        (403, "InvalidAccessKeyId", 500),
        (301, "PermanentRedirect", 500),
        (400, "KeyTooLongError", 400),
        (400, "EntityTooLarge", 413),
        (403, "AccessDenied", 503),
        (507, "QuotaExceeded", 503),
        (400, "Unheard", 503),
    ],
)
async def test_no_caller_learns_what_a_store_says(
    status: int, code: str, answered: int, caplog: pytest.LogCaptureFixture
) -> None:
    body = f"<Error><Code>{code}</Code><Bucket>bucket</Bucket></Error>"
    refusal = sends(f"HTTP/1.1 {status} No\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    async with between() as (hostile, store, address, clock):
        hostile.plan = lambda method, target: refusal
        async with (
            served(Leases(store.records, store.objects, clock), clock) as server,
            server.client.post("/v1/acquire", json={"key": "k", "owner": "me", "ttl_seconds": 9}) as answer,
        ):
            text = await answer.text()
        assert answer.status == answered, text
        for each in (address.bucket, "127.0.0.1", str(hostile.port), code, "credentials", "write region"):
            assert each not in text
        assert str(address) in caplog.text
