"""Builds leases: keys where records are stored, state in objects, and the count of their traffic.

An S3 bucket or a directory stores both. If records are in a database, state goes to `backends.objects`, which is opened
when the first state is written or read: a plain lock needs none.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from wrasse.clock import Clock
from wrasse.config.lease_settings import LeaseSettings
from wrasse.config.load import Config
from wrasse.config.urls import in_clear, parse_store
from wrasse.engine.guard import Activity
from wrasse.errors import ConfigError
from wrasse.leases.lease import Terms
from wrasse.leases.leases import LeasePolicy, Leases
from wrasse.ports.backend import Backend
from wrasse.ports.objects import NO_METADATA, Data, ObjectDelete, ObjectHead, ObjectInfo, Objects, WriteResult
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.records import Namespaces
from wrasse.runtime.backends import Stores

FINISH_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True)
class Leasing:
    """Leases, their namespaces, and their traffic."""

    leases: Leases
    namespaces: Namespaces
    activity: Activity
    requests: Callable[[], int | None] = lambda: None  # sent to an S3 bucket so far


if TYPE_CHECKING:
    from wrasse.leases.client import LeaseClient


async def open_leasing(config: Config, stores: Stores) -> Leasing:
    """Leases in the backend of records."""
    own, where = config.settings.leases, config.homes
    store = await stores.open(where.records)
    activity = Activity(stores.clock)
    leases = Leases(
        store.records,
        _objects(store, config, stores),
        stores.clock,
        LeasePolicy(Terms(max(own.margin, store.margin), own.lock_delay), own.ttl_max, own.txn_replay_interval),
        traffic=activity.note,
        namespaces=store.namespaces,
    )
    stores.finish_first(partial(_finish, leases))
    return Leasing(leases, store.namespaces, activity, lambda: store.requests)


async def _finish(leases: Leases) -> None:
    """Waits for background work; what takes too long is left to a sweep, which finds it by its index entry."""
    with suppress(TimeoutError):
        async with asyncio.timeout(FINISH_SECONDS_MAX):
            await leases.close()


def check_serving(config: Config) -> None:
    """Refuses to serve leases from this store if the settings name another lease server."""
    home = config.homes.ports["leases"]
    if config.settings.leases.server:
        raise ConfigError(
            f"leases are at {home} ({home.by}), and this process would serve others, from its own store",
            do="remove leases.server from the settings of the server, or give this process no leases to serve",
        )
    check_state_home(config)


def check_state_home(config: Config) -> None:
    """Refuses keys on a shared server with state in a directory of this host."""
    records, objects = parse_store(config.homes.records), config.homes.ports["objects"]
    # An S3 bucket stores state beside its keys.
    if records.served and not records.is_bucket and (objects.refused or objects.by == "default"):
        raise ConfigError(
            "keys are on a server, and their state would be in a directory of this host alone",
            do="set backends.objects to a store that every host reaches, such as s3://bucket/prefix",
        )


def _objects(store: Backend, config: Config, stores: Stores) -> Objects:
    if store.objects is not None:
        return store.objects

    async def opened() -> Objects:
        check_state_home(config)
        return await stores.open_objects(config.homes.objects)

    return LateObjects(opened)


def token_in_clear(own: LeaseSettings) -> bool:
    """Whether this program's token leaves the machine unencrypted."""
    return bool(own.token) and in_clear(own.server)


def client_tls(own: LeaseSettings) -> ssl.SSLContext | None:
    """The TLS context of the settings; None for the system's. Refuses to send a token in clear text."""
    if token_in_clear(own) and not own.insecure:
        raise ConfigError(
            "leases.token would be sent to leases.server without TLS, readable on the network",
            do="use https:// in leases.server, or set leases.insecure: true",
        )
    if bool(own.client_cert) != bool(own.client_key):
        raise ConfigError("leases.client_cert and leases.client_key belong together", do="name both files, or none")
    if not own.server_ca and not own.client_cert:
        return None
    try:
        context = ssl.create_default_context(cafile=own.server_ca or None)
        if own.client_cert:
            context.load_cert_chain(own.client_cert, own.client_key)
    except (OSError, ssl.SSLError) as error:
        names = ", ".join(Path(each).name for each in (own.server_ca, own.client_cert, own.client_key) if each)
        raise ConfigError(
            f"the TLS files {names} cannot be used: {error}", do="check leases.server_ca, client_cert and client_key"
        ) from None
    return context


def lease_client(own: LeaseSettings, clock: Clock) -> LeaseClient:
    """The client of `leases.server`."""
    # HTTP modules are imported only where they are used: their import is slow.
    from wrasse.leases.client import LeaseClient

    return LeaseClient(own.server, clock, token=own.token, tls=client_tls(own))


class LateObjects:
    """Objects that are opened when they are first used."""

    copies = multipart = versions = None

    def __init__(self, opened: Callable[[], Awaitable[Objects]]) -> None:
        self._open = opened
        self._opening = asyncio.Lock()
        self._objects: Objects | None = None

    async def create(self, key: str, data: Data, *, metadata: Mapping[str, str] = NO_METADATA) -> WriteResult:
        """See the port."""
        return await (await self._opened()).create(key, data, metadata=metadata)

    async def replace(self, key: str, data: Data, *, at: str, metadata: Mapping[str, str] = NO_METADATA) -> WriteResult:
        """See the port."""
        return await (await self._opened()).replace(key, data, at=at, metadata=metadata)

    async def head(self, key: str) -> ObjectHead | None:
        """See the port."""
        return await (await self._opened()).head(key)

    async def read(self, key: str, *, at: str | None = None) -> AsyncIterator[bytes]:
        """See the port."""
        async for chunk in (await self._opened()).read(key, at=at):
            yield chunk

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[ObjectInfo]:
        """See the port."""
        return await (await self._opened()).page(prefix, after, limit)

    async def delete(self, deletes: Sequence[ObjectDelete]) -> Sequence[Outcome]:
        """See the port."""
        return await (await self._opened()).delete(deletes)

    async def _opened(self) -> Objects:
        async with self._opening:
            if self._objects is None:
                self._objects = await self._open()
            return self._objects
