"""Objects and Catalog behind a network that misbehaves; see faults.py for what can go wrong and who plans it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

from faults import Network
from wrasse.ports.catalog import Catalog, CatalogSnapshot, Reference
from wrasse.ports.objects import NO_METADATA, Data, ObjectDelete, ObjectHead, ObjectInfo, Objects, WriteResult
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page


class FaultyObjects:
    """Objects behind a network. A read may break off before any chunk."""

    def __init__(self, objects: Objects, network: Network) -> None:
        self._objects = objects
        self._network = network

    async def create(self, key: str, data: Data, *, metadata: Mapping[str, str] = NO_METADATA) -> WriteResult:
        return await self._network.call("create", lambda: self._objects.create(key, data, metadata=metadata))

    async def replace(self, key: str, data: Data, *, at: str, metadata: Mapping[str, str] = NO_METADATA) -> WriteResult:
        return await self._network.call("replace", lambda: self._objects.replace(key, data, at=at, metadata=metadata))

    async def head(self, key: str) -> ObjectHead | None:
        return await self._network.call("head", lambda: self._objects.head(key))

    async def read(self, key: str, *, at: str | None = None) -> AsyncIterator[bytes]:
        chunks = self._objects.read(key, at=at)
        end = b""
        while chunk := await self._network.call("read", lambda: anext(chunks, end)):
            yield chunk

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[ObjectInfo]:
        return await self._network.call("page", lambda: self._objects.page(prefix, after, limit))

    async def delete(self, deletes: Sequence[ObjectDelete]) -> Sequence[Outcome]:
        return await self._network.call("delete", lambda: self._objects.delete(deletes))


class FaultyCatalog:
    """A Catalog behind a network, snapshots and all."""

    def __init__(self, catalog: Catalog, network: Network) -> None:
        self._catalog = catalog
        self._network = network

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[CatalogSnapshot]:
        view = self._catalog.snapshot()
        snapshot = await self._network.call("snapshot", view.__aenter__)
        try:
            yield FaultySnapshot(snapshot, self._network)
        finally:
            await view.__aexit__(None, None, None)

    async def referenced(self, keys: Sequence[str], *, below: bool = False) -> Sequence[Reference | None]:
        return await self._network.call("referenced", lambda: self._catalog.referenced(keys, below=below))

    def leader(self, name: str) -> None:
        return None


class FaultySnapshot:
    """A snapshot behind a network."""

    def __init__(self, snapshot: CatalogSnapshot, network: Network) -> None:
        self._snapshot = snapshot
        self._network = network

    @property
    def at(self) -> datetime:
        return self._snapshot.at

    async def page(self, after: str | None, limit: int) -> Page[Reference]:
        return await self._network.call("page", lambda: self._snapshot.page(after, limit))
