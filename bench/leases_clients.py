"""Eight clients of the lease API in a process of their own, and how fast each kind of request is answered.

Kinds take turns in small portions, so that whatever else the machine does hits all of them.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec
from aiohttp import ClientSession

from wrasse.clock import SystemClock

CLIENTS = 8
PORTION = 10  # requests of one kind before the next kind has its turn
STATE = b'{"balance":100,"currency":"EUR"}'
CLOCK = SystemClock()


class _Client:
    """One client, and the leases that it got in this turn."""

    def __init__(self, session: ClientSession, number: int) -> None:
        self._session, self._number = session, number
        self._turn = 0
        self._leases: list[tuple[dict[str, str], dict[str, str]]] = []

    async def empty_handler(self) -> None:
        for _ in range(PORTION):
            await self._ask("/empty", json={"key": "k"})

    async def acquire(self) -> None:
        self._turn += 1
        await self._acquire()

    async def acquire_again(self) -> None:
        await self._acquire()

    async def _acquire(self) -> None:
        self._leases = []
        for number in range(PORTION):
            key = f"{self._number}/{self._turn}/{number}"
            lease = msgspec.json.decode(
                await self._ask(
                    "/v1/acquire", json={"key": key, "owner": "me", "ttl_seconds": 600, "block_seconds": -1}
                )
            )
            names = {"X-Lease-ID": "lease_id", "X-Txn-ID": "txn_id", "X-Fencing-Token": "fencing_token"}
            shown = {header: str(lease[field]) for header, field in names.items()}
            self._leases.append(({"key": key, "lease_id": lease["lease_id"], "txn_id": lease["txn_id"]}, shown))

    async def update(self) -> None:
        for body, shown in self._leases:
            await self._ask("/v1/update", params={"key": body["key"]}, data=STATE, headers=shown)

    async def get(self) -> None:
        for body, shown in self._leases:
            await self._ask("/v1/get", params={"key": body["key"]}, headers=shown)

    async def metadata(self) -> None:
        for body, shown in self._leases:
            await self._ask("/v1/metadata", params={"key": body["key"]}, json={"query_hidden": True}, headers=shown)

    async def describe(self) -> None:
        for body, _ in self._leases:
            async with self._session.get("/v1/describe", params={"key": body["key"]}) as answer:
                assert answer.status == 200, "describe"
                await answer.read()

    async def remove(self) -> None:
        for body, shown in self._leases:
            await self._ask("/v1/remove", params={"key": body["key"]}, headers=shown)

    async def keepalive(self) -> None:
        for body, shown in self._leases:
            await self._ask("/v1/keepalive", json={**body, "ttl_seconds": 600}, headers=shown)

    async def release(self) -> None:
        for body, shown in self._leases:
            await self._ask("/v1/release", json=body, headers=shown)

    async def roll_back(self) -> None:
        for body, shown in self._leases:
            await self._ask("/v1/release", json={**body, "rollback": True}, headers=shown)

    async def public_get(self) -> None:
        for body, _ in self._leases:
            await self._ask("/v1/get", params={"key": body["key"], "public": "1"})

    async def _ask(self, path: str, **more: object) -> bytes:
        async with self._session.post(path, **more) as answer:  # type: ignore[arg-type]
            assert answer.status == 200, path
            return await answer.read()


async def _clients(server: str, turns: int) -> None:
    """Eight clients; each kind of request by itself, so that each has a rate of its own."""
    kinds = (
        "empty_handler", "acquire", "update", "get", "keepalive", "metadata", "describe", "release", "public_get",
        "acquire_again", "remove", "roll_back",
    )  # fmt: skip
    took = dict.fromkeys(kinds, 0.0)
    async with ClientSession(server) as session:
        clients = [_Client(session, number) for number in range(CLIENTS)]
        for turn in range(turns + 1):
            for kind in kinds:
                acts = [getattr(client, kind)() for client in clients]
                began = CLOCK.monotonic()
                await asyncio.gather(*acts)
                took[kind] += (CLOCK.monotonic() - began) * bool(turn)  # the first turn warms up
    del took["roll_back"]  # a release without a change, so that the next turn finds no key leased
    for kind, seconds in took.items():
        print(kind.replace("_", " "), turns * PORTION * CLIENTS / seconds)


if __name__ == "__main__":
    asyncio.run(_clients(sys.argv[1], int(sys.argv[2])))
