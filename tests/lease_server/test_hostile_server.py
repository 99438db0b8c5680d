"""A lease server that means harm: an error of ours, bounded bytes, and the token goes nowhere else."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import pytest

from servers.hostile_http import Act, HostileHttp, endless, hostile_http, sends
from wrasse.clock import SystemClock
from wrasse.errors import StoreUnavailable, TooLarge, WrasseError
from wrasse.leases import attachments_client, client, leases as local
from wrasse.leases.attachments import Sent
from wrasse.leases.client import LeaseClient
from wrasse.leases.lease import presented_lease

OK = b"HTTP/1.1 200 OK\r\n"
BOMB = gzip.compress(bytes(64 << 20))


def json(text: bytes, more: bytes = b"") -> Act:
    return sends(OK + more + b"Content-Length: %d\r\n\r\n" % len(text) + text)


ACTS: dict[str, Act] = {
    "endless": endless(OK + b"\r\n", b"[" * 65536),
    "an endless error": endless(b"HTTP/1.1 404 No\r\n\r\n", b"[" * 65536),
    "a bomb": sends(OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB) + BOMB),
    "deep": json(b'{"x":' + b"[" * 200_000),
    "a date beyond the calendar": json(b'{"expires_at_unix":9223372036854775807,"state":"commit!"}'),
    "numbers that are none": json(b"{}x", b"X-Fencing-Token: x\r\nX-Key-Version: -\r\nX-Attachment-Size: many\r\n"),
    "bytes that are no text": json(b'{"lease_id":"\xff"}'),
    "garbage": sends(b"\x00\x01\x02\r\n\r\n"),
    "early close": sends(b""),
}
HELD = presented_lease("", "k", "l", 1, "t")


def calls(leases: LeaseClient) -> dict[str, Callable[[], Awaitable[object]]]:
    return {
        "acquire": lambda: leases.acquire("k", "me"),
        "decide": lambda: leases.decide("t", commit=True),
        "list": lambda: leases.attachments.list(HELD),
        "fetch": lambda: leases.attachments.fetch(HELD, name="a"),
    }


def client_of(server: HostileHttp) -> LeaseClient:
    return LeaseClient(
        f"http://127.0.0.1:{server.port}", SystemClock(), token="secret", patience=timedelta(seconds=0.2)
    )


@pytest.mark.parametrize("act", ACTS)
async def test_any_answer_is_an_error_of_ours(act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (client, attachments_client):
        monkeypatch.setattr(module, "ANSWER_BYTES_MAX", 1 << 20)
    async with hostile_http() as server, client_of(server) as leases:
        server.plan = lambda method, target: ACTS[act]
        found: dict[str, object] = {}
        for name, call in calls(leases).items():
            try:
                async with asyncio.timeout(20):
                    found[name] = await call()
            except Exception as error:
                found[name] = error
        wrong = {name for name, error in found.items() if not isinstance(error, WrasseError)}
        # What is streamed begins with its head; and an answer of which no field is needed is one.
        assert wrong <= {"fetch", "acquire", "list"}
        assert not any(isinstance(found[name], Exception) for name in wrong)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_the_token_goes_nowhere_else(status: int) -> None:
    async with hostile_http() as other, hostile_http() as server, client_of(server) as leases:
        go = b"HTTP/1.1 %d Go\r\nLocation: http://127.0.0.1:%d/v1/acquire\r\nContent-Length: 0\r\n\r\n"
        server.plan = lambda method, target: sends(go % (status, other.port))
        for call in calls(leases).values():
            with pytest.raises(WrasseError):
                await call()
        assert other.requests == []


@pytest.mark.parametrize("said", [b"inf", b"nan", b"1e400", b"-5"])
async def test_a_lease_is_relied_on_for_no_longer_than_leases_last(said: bytes) -> None:
    granted = b'{"lease_id":"l","fencing_token":1,"txn_id":"t","expires_at_unix":4000000000}'
    async with hostile_http() as server, client_of(server) as leases:
        server.plan = lambda method, target: json(granted, b"%s: %s\r\n" % (client.LASTS.encode(), said))
        leased = await leases.acquire("k", "me")
        assert leases.term(leased.granted) - SystemClock().monotonic() <= client.TTL_MAX.total_seconds()


@asynccontextmanager
async def serving(talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """A server that talks like this; gives its address."""
    talks: set[asyncio.StreamWriter] = set()

    async def talked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            await talk(reader, writer)
        writer.close()

    server = await asyncio.start_server(talked, "127.0.0.1", 0, limit=1 << 12)
    async with server, asyncio.timeout(20):
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for writer in talks:
            writer.transport.abort()


async def test_an_attachment_that_trickles_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments_client, "TRANSFER_MAX", 0.5)

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"X-Attachment-Size: 1000000\r\nX-Attachment-Name: a\r\nContent-Length: 1000000\r\n\r\n")
        for _ in range(1_000):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)

    async with serving(trickle) as address, LeaseClient(address, SystemClock(), token="secret") as leases:
        fetched = await leases.attachments.fetch(HELD, name="a")
        with pytest.raises(StoreUnavailable, match="failed: TimeoutError"):
            async for _ in fetched.chunks:
                pass


async def test_a_server_that_reads_an_attachment_too_slowly_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments_client, "TRANSFER_MAX", 0.5)
    monkeypatch.setattr(attachments_client, "TRANSFER_RATE_MIN", 1 << 30)

    async def sip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(1_000):
            if not await reader.read(1 << 10):
                return
            await asyncio.sleep(0.05)

    async with serving(sip) as address, LeaseClient(address, SystemClock(), token="secret") as leases:
        with pytest.raises(StoreUnavailable, match="does not answer: TimeoutError"):
            await leases.attachments.attach(HELD, Sent("a"), bytes(64 << 20))


async def test_a_slow_source_is_not_the_servers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments_client, "TRANSFER_MAX", 0.5)

    async def source() -> AsyncIterator[bytes]:
        for _ in range(8):
            await asyncio.sleep(0.1)
            yield b"x"

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.write(b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()

    async with serving(refuse) as address, LeaseClient(address, SystemClock(), token="secret") as leases:
        with pytest.raises(WrasseError, match="lease-api"):
            await leases.attachments.attach(HELD, Sent("a"), source())


async def test_a_state_that_no_client_would_read_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "STATE_BYTES_MAX", 1_000)
    async with client_of(HostileHttp()) as remote:
        with pytest.raises(TooLarge, match="a state of 1001 bytes, and at most 1000 are allowed"):
            await remote.update(HELD, bytes(1_001))
