"""wrasse leases: the group, and how its commands get at leases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from wrasse.app.cli_asked import Asked
from wrasse.app.cli_group import LazyGroup
from wrasse.app.config import Config
from wrasse.app.lease_ports import Leasing
from wrasse.app.leasing import open_leasing
from wrasse.app.wiring import Stores
from wrasse.clock import SystemClock
from wrasse.errors import ConfigError
from wrasse.leases.leases import Leases

if TYPE_CHECKING:
    from wrasse.leases.client import LeaseClient

HOMES = {
    "list": ("cli_leases_look:list_", "keys, and who holds them"),
    "show": ("cli_leases_look", "everything about a key"),
    "get": ("cli_leases_look", "the state of a key"),
    "acquire": ("cli_leases_hold", "take the lease of a key"),
    "keep": ("cli_leases_hold", "renew a lease"),
    "update": ("cli_leases_hold", "stage a new state under a lease"),
    "remove": ("cli_leases_hold", "stage the removal of the state under a lease"),
    "release": ("cli_leases_hold", "give a lease back, with a commit of what is staged or without"),
    "attach": ("cli_leases_attach", "stage a file under a lease, to be committed with the state"),
    "detach": ("cli_leases_attach", "stage the removal of a file under a lease"),
    "attachments": ("cli_leases_attach", "the files of a key"),
    "fetch": ("cli_leases_attach", "the bytes of one file of a key"),
    "transaction": ("cli_leases_transaction", "what became of several keys that change together, or decide it"),
    "messages": ("cli_leases_messages", "what is in a queue of the lease API, and what is dead there"),
    "fsck": ("cli_leases_fsck", "look at every key, object and index entry, and repair what can be"),
}

leases = LazyGroup(
    "leases",
    HOMES,
    about="Leases on keys, and the state that changes with them.",
    examples="""\b
Examples:
  wrasse leases acquire orders/42 --ttl=5m
  wrasse leases update orders/42 --lease=d5arif5qkajneqfrmsb0 '{"paid": true}'
  wrasse leases release orders/42 --lease=d5arif5qkajneqfrmsb0
  wrasse leases get orders/42
""",
)


@asynccontextmanager
async def opened_leases(asked: Asked, command: str) -> AsyncIterator[Leasing]:
    """The store of leases itself, for the length of a command; refused where `leases.server` has them."""
    config = asked.config()
    home = config.homes.ports["leases"]
    if config.settings.leases.server:
        raise ConfigError(
            f"leases live at {home} ({home.by}), and `wrasse leases {command}` looks at the store behind it",
            do="run it with the settings of that server: --config of its file, which has no leases.server",
        )
    async with _store(config) as leasing:
        yield leasing


@asynccontextmanager
async def lease_operations(asked: Asked, *, create: bool = True) -> AsyncIterator[Leases | LeaseClient]:
    """Leases where this configuration has them: at `leases.server`, or in the store of records, which a command that
    only reads does not create."""
    config = asked.config()
    if not config.settings.leases.server:
        async with _store(config, create=create) as leasing:
            yield leasing.leases
        return
    # What speaks HTTP is imported only where it is used: it takes longer than all the rest.
    from wrasse.app.leases_http.calling import lease_client

    async with lease_client(config.settings.leases, SystemClock()) as client:
        yield client


@asynccontextmanager
async def _store(config: Config, *, create: bool = False) -> AsyncIterator[Leasing]:
    stores = Stores(SystemClock(), done_max=config.settings.worker.done_max, create=create)
    try:
        yield await open_leasing(config, stores)
    finally:
        await stores.close()
