"""wrasse leases acquire, keep, update, remove and release: what a holder does, one command a step."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from wrasse.app.building import owner_name
from wrasse.app.cli_asked import DURATION, Asked, asks, finish
from wrasse.app.cli_leases import lease_operations
from wrasse.app.cli_leases_look import NAMESPACE
from wrasse.app.cli_table import show_pairs
from wrasse.errors import UsageError
from wrasse.leases.lease import KeyRecord, Lease, shown
from wrasse.leases.leases import Leases
from wrasse.leases.names import checked_key, checked_namespace

if TYPE_CHECKING:
    from wrasse.leases.client import LeaseClient

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Holder:
    """What a holder shows of its lease."""

    lease: str
    token: int | None = None
    transaction: str = ""


def holder_options(*, required: bool = True) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Adds the options of a holder; the function gets them as `holder`."""

    def add(function: Callable[..., T]) -> Callable[..., T]:
        @click.option("--lease", required=required, default=None if required else "", metavar="ID",
                      help="The lease, as acquire gave it.")
        @click.option("--token", type=int, metavar="N",
                      help="Refuse unless the lease has this token; needed where leases.server is set.")
        @click.option("--transaction", default="", metavar="ID",
                      help="The transaction, as acquire gave it; needed where leases.server is set.")
        @functools.wraps(function)
        def wrapper(*args: Any, lease: str, token: int | None, transaction: str, **options: Any) -> T:
            return function(*args, holder=Holder(lease, token, transaction), **options)

        return wrapper

    return add  # fmt: skip


HOLDER = holder_options()


@click.command()
@click.argument("key")
@click.option("--owner", default="", metavar="NAME", help="Who takes it.  [default: this machine and process]")
@click.option("--ttl", type=DURATION, default="30s", show_default=True, help="How long it lasts without `keep`.")
@click.option("--wait", type=DURATION, default="0s", show_default=True, help="How long to wait for the key.")
@click.option("--if-not-exists", is_flag=True, help="Only if the key is new.")
@click.option("--transaction", default="", metavar="ID", help="Change it together with the other keys of this one.")
@NAMESPACE
@asks
def acquire(
    asked: Asked, key: str, owner: str, ttl: timedelta, wait: timedelta, if_not_exists: bool, transaction: str,
    namespace: str,
) -> None:  # fmt: skip
    """Take the lease of KEY; fails if somebody else holds it for all of --wait.

    \b
    Examples:
      wrasse leases acquire orders/42 --ttl=5m
      wrasse leases acquire orders/42 --wait=1m --json
      wrasse leases acquire orders/43 --transaction=d5arif5qkajneqfrmsbg
    """

    async def work() -> KeyRecord:
        async with lease_operations(asked) as leases:
            return await leases.acquire(
                key, owner or owner_name(), namespace=namespace, ttl=ttl, wait=wait, if_not_exists=if_not_exists,
                transaction=transaction,
            )  # fmt: skip

    record = finish(work())
    _tell(asked, record.held, record.version)


@click.command()
@click.argument("key")
@HOLDER
@click.option("--ttl", type=DURATION, default="30s", show_default=True, help="How long from now.")
@NAMESPACE
@asks
def keep(asked: Asked, key: str, holder: Holder, ttl: timedelta, namespace: str) -> None:
    """Renew the lease of KEY: it then lasts --ttl from now.

    \b
    Examples:
      wrasse leases keep orders/42 --lease=d5arif5qkajneqfrmsb0 --ttl=5m
    """

    async def work() -> tuple[Lease, int]:
        async with lease_operations(asked) as leases:
            lease = await leases.renew(await held_by(leases, namespace, key, holder), ttl)
            known = await leases.describe(lease.namespace, lease.key)
            return lease, 0 if known is None else known.version

    _tell(asked, *finish(work()))


@click.command()
@click.argument("key")
@click.argument("data", default="-")
@HOLDER
@click.option("--if-version", type=int, metavar="N", help="Refuse unless the key has this version.")
@NAMESPACE
@asks
def update(
    asked: Asked, key: str, data: str, holder: Holder, if_version: int | None, namespace: str
) -> None:
    """Stage DATA, which is JSON, as the new state of KEY; - reads it from stdin. `release` commits it.

    \b
    Examples:
      wrasse leases update orders/42 --lease=d5arif5qkajneqfrmsb0 '{"paid": true}'
    """
    state = _json(sys.stdin.buffer.read() if data == "-" else data.encode())

    async def work() -> int:
        async with lease_operations(asked) as leases:
            held = await held_by(leases, namespace, key, holder)
            version, _ = await leases.update(held, state, if_version=if_version)
            return version

    _staged(asked, key, finish(work()))


@click.command()
@click.argument("key")
@HOLDER
@NAMESPACE
@asks
def remove(asked: Asked, key: str, holder: Holder, namespace: str) -> None:
    """Stage the removal of the state of KEY. `release` commits it.

    \b
    Examples:
      wrasse leases remove orders/42 --lease=d5arif5qkajneqfrmsb0
    """

    async def work() -> int | None:
        async with lease_operations(asked) as leases:
            return await leases.remove(await held_by(leases, namespace, key, holder))

    _staged(asked, key, finish(work()))


@click.command()
@click.argument("key")
@HOLDER
@click.option("--rollback", is_flag=True, help="Throw away what is staged.")
@NAMESPACE
@asks
def release(asked: Asked, key: str, holder: Holder, rollback: bool, namespace: str) -> None:
    """Give KEY back and commit what is staged. Says so if the lease was over before, and then nothing is changed.

    \b
    Examples:
      wrasse leases release orders/42 --lease=d5arif5qkajneqfrmsb0
      wrasse leases release orders/42 --lease=d5arif5qkajneqfrmsb0 --rollback
    """

    async def work() -> tuple[bool, int | None]:
        async with lease_operations(asked) as leases:
            held = await held_by(leases, namespace, key, holder)
            meta = await leases.release(held, commit=not rollback)
            told = meta is None or isinstance(leases, Leases)  # a server does not tell the version
            known = meta if told else await leases.describe(held.namespace, held.key)
            return meta is not None, None if known is None else known.version

    released, version = finish(work())
    said = f"{key} is free; it has version {version}" if released else f"{key} was not held under this lease"
    asked.answer({"key": key, "released": released, "version": version}, lambda: click.echo(said))


async def held_by(leases: Leases | LeaseClient, namespace: str, key: str, holder: Holder) -> Lease:
    """What the holder would show. The store has what was not typed; a server does not tell it."""
    name = checked_namespace(namespace)
    stored = checked_key(key, name)
    if not isinstance(leases, Leases):
        if holder.token is None or not holder.transaction:
            raise UsageError(
                "a lease at leases.server is shown with its token and transaction",
                do="add --token and --transaction, as `wrasse leases acquire` gave them",
            )
        return shown(name, stored, holder.lease, holder.token, holder.transaction)
    meta = await leases.describe(name, stored)
    grant = None if meta is None else meta.lease
    if grant is None or grant.id != holder.lease:
        return shown(name, stored, holder.lease, holder.token or 0, holder.transaction or holder.lease)
    return shown(name, stored, grant.id, grant.token if holder.token is None else holder.token, grant.transaction)


def _tell(asked: Asked, lease: Lease, version: int) -> None:
    facts: Mapping[str, object] = {
        "namespace": lease.namespace, "key": lease.key, "lease": lease.id, "token": lease.token,
        "owner": lease.owner, "until": lease.until, "version": version, "transaction": lease.transaction,
    }  # fmt: skip
    asked.answer(facts, lambda: show_pairs([(name, value) for name, value in facts.items()]))


def _staged(asked: Asked, key: str, version: int | None) -> None:
    said = f"{key} will have version {version}" if version is not None else f"{key} has no state"
    asked.answer({"key": key, "staged": version is not None, "version": version}, lambda: click.echo(said))


def _json(data: bytes) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(data))
    except msgspec.DecodeError as why:
        raise UsageError(f"the state is no JSON: {why}", do="quote it for the shell, or give it on stdin") from None
