"""wrasse leases acquire, keep, update, remove and release: what a holder does, one command a step."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import timedelta

import click
import msgspec

from wrasse.app.building import owner_name
from wrasse.app.cli_asked import DURATION, Asked, asks, finish
from wrasse.app.cli_leases import opened_leases
from wrasse.app.cli_leases_look import NAMESPACE
from wrasse.app.cli_table import show_pairs
from wrasse.errors import UsageError
from wrasse.leases.leases import Leased, Leases
from wrasse.leases.names import checked_key, checked_namespace
from wrasse.leases.rules import Held

LEASE = click.option("--lease", required=True, metavar="ID", help="The lease, as acquire gave it.")
TOKEN = click.option("--token", type=int, metavar="N", help="Refuse unless the lease has this token.")


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

    async def work() -> Leased:
        async with opened_leases(asked) as leasing:
            return await leasing.leases.acquire(
                key, owner or owner_name(), namespace=namespace, ttl=ttl, wait=wait, if_not_exists=if_not_exists,
                transaction=transaction,
            )  # fmt: skip

    _tell(asked, finish(work()))


@click.command()
@click.argument("key")
@LEASE
@TOKEN
@click.option("--ttl", type=DURATION, default="30s", show_default=True, help="How long from now.")
@NAMESPACE
@asks
def keep(asked: Asked, key: str, lease: str, token: int | None, ttl: timedelta, namespace: str) -> None:
    """Renew the lease of KEY: it then lasts --ttl from now.

    \b
    Examples:
      wrasse leases keep orders/42 --lease=d5arif5qkajneqfrmsb0 --ttl=5m
    """

    async def work() -> Leased:
        async with opened_leases(asked) as leasing:
            name, held = await held_by(leasing.leases, namespace, key, lease, token)
            return await leasing.leases.renew(name, held, ttl)

    _tell(asked, finish(work()))


@click.command()
@click.argument("key")
@click.argument("data", default="-")
@LEASE
@TOKEN
@click.option("--if-version", type=int, metavar="N", help="Refuse unless the key has this version.")
@NAMESPACE
@asks
def update(
    asked: Asked, key: str, data: str, lease: str, token: int | None, if_version: int | None, namespace: str
) -> None:
    """Stage DATA, which is JSON, as the new state of KEY; - reads it from stdin. `release` commits it.

    \b
    Examples:
      wrasse leases update orders/42 --lease=d5arif5qkajneqfrmsb0 '{"paid": true}'
    """
    state = _json(sys.stdin.buffer.read() if data == "-" else data.encode())

    async def work() -> int:
        async with opened_leases(asked) as leasing:
            name, held = await held_by(leasing.leases, namespace, key, lease, token)
            version, _ = await leasing.leases.update(name, held, state, if_version=if_version)
            return version

    _staged(asked, key, finish(work()))


@click.command()
@click.argument("key")
@LEASE
@TOKEN
@NAMESPACE
@asks
def remove(asked: Asked, key: str, lease: str, token: int | None, namespace: str) -> None:
    """Stage the removal of the state of KEY. `release` commits it.

    \b
    Examples:
      wrasse leases remove orders/42 --lease=d5arif5qkajneqfrmsb0
    """

    async def work() -> int | None:
        async with opened_leases(asked) as leasing:
            name, held = await held_by(leasing.leases, namespace, key, lease, token)
            return await leasing.leases.remove(name, held)

    _staged(asked, key, finish(work()))


@click.command()
@click.argument("key")
@LEASE
@TOKEN
@click.option("--rollback", is_flag=True, help="Throw away what is staged.")
@NAMESPACE
@asks
def release(asked: Asked, key: str, lease: str, token: int | None, rollback: bool, namespace: str) -> None:
    """Give KEY back and commit what is staged. Says so if the lease was over before, and then nothing is changed.

    \b
    Examples:
      wrasse leases release orders/42 --lease=d5arif5qkajneqfrmsb0
      wrasse leases release orders/42 --lease=d5arif5qkajneqfrmsb0 --rollback
    """

    async def work() -> int | None:
        async with opened_leases(asked) as leasing:
            name, held = await held_by(leasing.leases, namespace, key, lease, token)
            meta = await leasing.leases.release(name, held, commit=not rollback)
            return None if meta is None else meta.version

    version = finish(work())
    said = f"{key} is free; it has version {version}" if version is not None else f"{key} was not held under this lease"
    asked.answer({"key": key, "released": version is not None, "version": version}, lambda: click.echo(said))


async def held_by(leases: Leases, namespace: str, key: str, lease: str, token: int | None) -> tuple[str, Held]:
    """What the holder would show: the record has what was not typed."""
    name = checked_namespace(namespace)
    stored = checked_key(key, name)
    meta = await leases.describe(name, stored)
    grant = None if meta is None else meta.grant
    if grant is None or grant.id != lease:
        return name, Held(stored, lease, token or 0, lease)
    return name, Held(stored, lease, grant.token if token is None else token, grant.transaction)


def _tell(asked: Asked, leased: Leased) -> None:
    grant = leased.grant
    facts: Mapping[str, object] = {
        "namespace": leased.namespace, "key": leased.held.key, "lease": grant.id, "token": grant.token,
        "owner": grant.owner, "until": grant.until, "version": leased.meta.version, "transaction": grant.transaction,
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
