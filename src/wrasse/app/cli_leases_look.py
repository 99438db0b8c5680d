"""wrasse leases list, show and get: what there is, changing nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime

import click

from wrasse.app.ago import ago
from wrasse.app.cli_asked import Asked, asks, finish
from wrasse.app.cli_leases import lease_operations, opened_leases
from wrasse.app.cli_table import show_pairs, show_table
from wrasse.errors import StoreBroken, UsageError
from wrasse.leases.lease import KeyRecord, shown
from wrasse.leases.leases import Leases, Seen
from wrasse.leases.names import checked_key, checked_namespace

NAMESPACE = click.option("--namespace", default="", metavar="NAME", help="Where the key is.  [default: default]")


@click.command("list")
@click.argument("prefix", default="")
@NAMESPACE
@click.option("--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="How many at most.")
@click.option("--after", metavar="CURSOR", help="Go on after the last page.")
@click.option("--namespaces", "spaces", is_flag=True, help="List namespaces instead.")
@asks
def list_(asked: Asked, prefix: str, namespace: str, limit: int, after: str | None, spaces: bool) -> None:
    """List keys that begin with PREFIX, and who holds them.

    \b
    Examples:
      wrasse leases list orders/
      wrasse leases list --namespaces --json
    """
    finish(_spaces(asked, after, limit) if spaces else _list(asked, prefix, namespace, limit, after))


async def _spaces(asked: Asked, after: str | None, limit: int) -> None:
    async with opened_leases(asked, "list --namespaces") as leasing:
        page = await leasing.namespaces.page(after, limit)
    answer = {"namespaces": list(page.items), "cursor": page.cursor}
    asked.answer(answer, lambda: click.echo("\n".join(page.items)))


async def _list(asked: Asked, prefix: str, namespace: str, limit: int, after: str | None) -> None:
    async with lease_operations(asked, create=False) as leases:
        name = checked_namespace(namespace)
        page = await leases.page(name, prefix.lower(), after, limit)
        found: list[tuple[str, KeyRecord]] = []
        invalid: list[tuple[str, str]] = []
        for key in page:
            try:
                if (meta := await leases.describe(name, key)) is not None:
                    found.append((key, meta))
                else:
                    invalid.append((key, "it has no record any more: deleted just now, or by another program"))
            except StoreBroken as error:
                invalid.append((key, error.message))
        now = page.at
    keys = [key_json(key, meta, now) for key, meta in found]
    keys += [{"key": key, "invalid": why} for key, why in invalid]
    answer = {"namespace": name, "keys": keys, "cursor": page.cursor}
    asked.answer(answer, lambda: _show_keys(found, invalid, now, page.cursor))


def _show_keys(
    found: Sequence[tuple[str, KeyRecord]], invalid: Sequence[tuple[str, str]], now: datetime, cursor: str | None
) -> None:
    rows: list[tuple[object, ...]] = [(key, meta.version, meta.token or "", *_held(meta, now)) for key, meta in found]
    rows += [(key, "", "", "invalid", why) for key, why in invalid]
    show_table(("key", "version", "token", "owner", "ends"), rows)
    if cursor is not None:
        click.echo(f"more: --after={cursor}")


@click.command()
@click.argument("key")
@NAMESPACE
@asks
def show(asked: Asked, key: str, namespace: str) -> None:
    """Show everything about KEY: who holds it, its token, its version.

    \b
    Examples:
      wrasse leases show orders/42
    """
    finish(_show(asked, key, namespace))


async def _show(asked: Asked, key: str, namespace: str) -> None:
    async with lease_operations(asked, create=False) as leases:
        name = checked_namespace(namespace)
        meta = await leases.describe(name, checked_key(key, name))
        now = await leases.now(name)
    if meta is None:
        raise UsageError(f"there is no key {key!r} in {name}", do="see `wrasse leases list`")
    owner, ends = _held(meta, now)
    pairs = [
        ("key", key), ("namespace", name), ("version", meta.version), ("token", meta.token or ""), ("etag", meta.etag),
        ("bytes", meta.state.size if meta.state else ""), ("owner", owner), ("ends", ends),
        ("staged", f"version {meta.staged.version}" if meta.staged else ""), ("changed", ago(meta.updated_at, now)),
    ]  # fmt: skip
    asked.answer(key_json(key, meta, now), lambda: show_pairs(pairs))


@click.command()
@click.argument("key")
@click.option("--lease", default="", metavar="ID", help="As the holder of this lease sees it, staged changes included.")
@NAMESPACE
@asks
def get(asked: Asked, key: str, lease: str, namespace: str) -> None:
    """Write the state of KEY as it was committed last to stdout. Fails if there is none.

    \b
    Examples:
      wrasse leases get orders/42
    """
    seen = finish(_get(asked, key, lease, namespace))
    answer = {"key": key, "version": seen.version, "etag": seen.etag, "state": seen.data.decode()}
    asked.answer(answer, lambda: _write(seen.data))


async def _get(asked: Asked, key: str, lease: str, namespace: str) -> Seen:
    async with lease_operations(asked, create=False) as leases:
        name = checked_namespace(namespace)
        stored = checked_key(key, name)
        if lease:
            meta = await leases.describe(name, stored)
            if not isinstance(leases, Leases):
                what = "a server shows staged state to the holder alone"
                raise UsageError(what, do="leave --lease out, or use lease.state in a program")
            token = 0 if meta is None or meta.lease is None else meta.lease.token
            seen = await leases.read(shown(name, stored, lease, token, ""))
        else:
            seen = await leases.read_public(name, stored)
    if seen is None:
        raise UsageError(f"the key {key!r} in {name} has no state", do="see `wrasse leases show`")
    return seen


def key_json(key: str, meta: KeyRecord, now: datetime) -> Mapping[str, object]:
    """A key for a program."""
    grant = meta.lease if meta.lease is not None and meta.lease.until > now else None
    return {
        "key": key,
        "version": meta.version,
        "token": meta.token or None,  # a server does not tell it
        "etag": meta.etag,
        "updated_at": meta.updated_at,
        "lease": None if grant is None else {"id": grant.id, "owner": grant.owner, "until": grant.until},
        "staged": None if meta.staged is None else meta.staged.version,
    }


def _held(meta: KeyRecord, now: datetime) -> tuple[str, str]:
    if meta.lease is None or meta.lease.until <= now:
        return "", ""
    return meta.lease.owner, ago(meta.lease.until, now)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.flush()
