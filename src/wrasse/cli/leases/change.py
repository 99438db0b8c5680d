"""wrasse leases acquire, keep, update, remove, release, and attachments: the operations of a holder."""

from __future__ import annotations

import asyncio
import functools
import mimetypes
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from wrasse.cli.context import DURATION, CommandContext, finish, with_context
from wrasse.cli.leases.inspect import NAMESPACE, lease_operations
from wrasse.cli.output import progress, show_pairs, show_table
from wrasse.errors import UsageError
from wrasse.leases.attachments import CONTENT_TYPE, Attached, FilePieces, Sent, write_file
from wrasse.leases.lease import Attachment, KeyRecord, Lease, presented_lease, public
from wrasse.leases.leases import Leases
from wrasse.leases.names import checked_key, checked_namespace
from wrasse.ports.objects import CHUNK_BYTES
from wrasse.runtime.worker import owner_name

if TYPE_CHECKING:
    from wrasse.leases.client import LeaseClient


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LeaseProof:
    """The lease as its holder presents it."""

    lease: str
    token: int | None = None
    transaction: str = ""


def holder_options(*, required: bool = True) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Adds the options of a holder; the function gets them as `holder`."""

    def add(function: Callable[..., T]) -> Callable[..., T]:
        @click.option(
            "--lease",
            required=required,
            default=None if required else "",
            metavar="ID",
            help="The lease, as acquire gave it.",
        )
        @click.option(
            "--token",
            type=int,
            metavar="N",
            help="Refuse unless the lease has this token; needed where leases.server is set.",
        )
        @click.option(
            "--transaction",
            default="",
            metavar="ID",
            help="The transaction, as acquire gave it; needed where leases.server is set.",
        )
        @functools.wraps(function)
        def wrapper(*args: Any, lease: str, token: int | None, transaction: str, **options: Any) -> T:
            return function(*args, holder=LeaseProof(lease, token, transaction), **options)

        return wrapper

    return add  # fmt: skip


HOLDER = holder_options()


@click.command()
@click.argument("key")
@click.option("--owner", default="", metavar="NAME", help="The holder.  [default: this machine and process]")
@click.option(
    "--ttl", type=DURATION, default="30s", show_default=True, help="How long it lasts unless renewed with `keep`."
)
@click.option("--wait", type=DURATION, default="0s", show_default=True, help="How long to wait for the key.")
@click.option("--if-not-exists", is_flag=True, help="Only if the key is new.")
@click.option("--transaction", default="", metavar="ID", help="The transaction to join.")
@NAMESPACE
@with_context
def acquire(
    ctx: CommandContext, key: str, owner: str, ttl: timedelta, wait: timedelta, if_not_exists: bool, transaction: str,
    namespace: str,
) -> None:  # fmt: skip
    """Acquire the lease of KEY; fails if another holder has it for all of --wait.

    \b
    Examples:
      wrasse leases acquire orders/42 --ttl=5m
      wrasse leases acquire orders/42 --wait=1m --json
      wrasse leases acquire orders/43 --transaction=d5arif5qkajneqfrmsbg
    """

    async def work() -> KeyRecord:
        async with lease_operations(ctx) as leases:
            return await leases.acquire(
                key, owner or owner_name(), namespace=namespace, ttl=ttl, wait=wait, if_not_exists=if_not_exists,
                transaction=transaction,
            )  # fmt: skip

    record = finish(work())
    _tell(ctx, record.granted, record.version)


@click.command()
@click.argument("key")
@HOLDER
@click.option("--ttl", type=DURATION, default="30s", show_default=True, help="How long from now.")
@NAMESPACE
@with_context
def keep(ctx: CommandContext, key: str, holder: LeaseProof, ttl: timedelta, namespace: str) -> None:
    """Renew the lease of KEY: it then lasts --ttl from now.

    \b
    Examples:
      wrasse leases keep orders/42 --lease=d5arif5qkajneqfrmsb0 --ttl=5m
    """

    async def work() -> tuple[Lease, int]:
        async with lease_operations(ctx) as leases:
            lease = await leases.renew(await lease_of(leases, namespace, key, holder), ttl)
            known = await leases.describe(lease.namespace, lease.key)
            return lease, 0 if known is None else known.version

    _tell(ctx, *finish(work()))


@click.command()
@click.argument("key")
@click.argument("data", default="-")
@HOLDER
@click.option("--if-version", type=int, metavar="N", help="Refuse unless the key has this version.")
@NAMESPACE
@with_context
def update(
    ctx: CommandContext, key: str, data: str, holder: LeaseProof, if_version: int | None, namespace: str
) -> None:
    """Stage DATA, which is JSON, as the new state of KEY; - reads it from stdin. `release` commits it.

    \b
    Examples:
      wrasse leases update orders/42 --lease=d5arif5qkajneqfrmsb0 '{"paid": true}'
    """
    state = _compact(sys.stdin.buffer.read() if data == "-" else data.encode())

    async def work() -> int:
        async with lease_operations(ctx) as leases:
            lease = await lease_of(leases, namespace, key, holder)
            version, _ = await leases.update(lease, state, if_version=if_version)
            return version

    _staged(ctx, key, finish(work()))


@click.command()
@click.argument("key")
@HOLDER
@NAMESPACE
@with_context
def remove(ctx: CommandContext, key: str, holder: LeaseProof, namespace: str) -> None:
    """Stage the removal of the state of KEY. `release` commits it.

    \b
    Examples:
      wrasse leases remove orders/42 --lease=d5arif5qkajneqfrmsb0
    """

    async def work() -> int | None:
        async with lease_operations(ctx) as leases:
            return await leases.remove(await lease_of(leases, namespace, key, holder))

    _staged(ctx, key, finish(work()))


@click.command()
@click.argument("key")
@HOLDER
@click.option("--rollback", is_flag=True, help="Discard what is staged.")
@NAMESPACE
@with_context
def release(ctx: CommandContext, key: str, holder: LeaseProof, rollback: bool, namespace: str) -> None:
    """Release KEY and commit what is staged. If the lease has ended before, nothing is changed, and the answer says so.

    \b
    Examples:
      wrasse leases release orders/42 --lease=d5arif5qkajneqfrmsb0
      wrasse leases release orders/42 --lease=d5arif5qkajneqfrmsb0 --rollback
    """

    async def work() -> tuple[bool, int | None]:
        async with lease_operations(ctx) as leases:
            lease = await lease_of(leases, namespace, key, holder)
            meta = await leases.release(lease, commit=not rollback)
            complete = meta is None or isinstance(leases, Leases)  # a server does not return the version
            record = meta if complete else await leases.describe(lease.namespace, lease.key)
            return meta is not None, None if record is None else record.version

    released, version = finish(work())
    said = f"{key} is free; it has version {version}" if released else f"{key} was not leased under this id"
    ctx.answer({"key": key, "released": released, "version": version}, lambda: click.echo(said))


async def lease_of(leases: Leases | LeaseClient, namespace: str, key: str, holder: LeaseProof) -> Lease:
    """The lease as its holder presents it. The store supplies what was not typed; a server does not."""
    name = checked_namespace(namespace)
    stored = checked_key(key, name)
    if not isinstance(leases, Leases):
        if holder.token is None or not holder.transaction:
            raise UsageError(
                "a lease at leases.server needs its token and transaction",
                do="add --token and --transaction, as `wrasse leases acquire` gave them",
            )
        return presented_lease(name, stored, holder.lease, holder.token, holder.transaction)
    meta = await leases.describe(name, stored)
    grant = None if meta is None else meta.lease
    if grant is None or grant.id != holder.lease:
        return presented_lease(name, stored, holder.lease, holder.token or 0, holder.transaction or holder.lease)
    return presented_lease(
        name, stored, grant.id, grant.token if holder.token is None else holder.token, grant.transaction
    )


def _tell(ctx: CommandContext, lease: Lease, version: int) -> None:
    facts: Mapping[str, object] = {
        "namespace": lease.namespace, "key": lease.key, "lease": lease.id, "token": lease.token,
        "owner": lease.owner, "expires_at": lease.expires_at, "version": version, "transaction": lease.transaction,
    }  # fmt: skip
    ctx.answer(facts, lambda: show_pairs([(name, value) for name, value in facts.items()]))


def _staged(ctx: CommandContext, key: str, version: int | None) -> None:
    said = f"{key} will have version {version}" if version is not None else f"{key} has no state"
    ctx.answer({"key": key, "staged": version is not None, "version": version}, lambda: click.echo(said))


def _compact(data: bytes) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(data))
    except msgspec.DecodeError as why:
        raise UsageError(f"the state is not JSON: {why}", do="quote it for the shell, or pass it on stdin") from None


AS_HOLDER = holder_options(required=False)  # optional, for reading as the holder


@click.command()
@click.argument("key")
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@HOLDER
@click.option("--name", default="", help="The attachment's name.  [default: the file's name]")
@click.option("--content-type", default="", metavar="TYPE", help="Its content type.  [default: by the name]")
@click.option("--keep", is_flag=True, help="Keep an existing attachment of this name.")
@NAMESPACE
@with_context
def attach(
    ctx: CommandContext,
    key: str,
    source: Path,
    holder: LeaseProof,
    name: str,
    content_type: str,
    keep: bool,
    namespace: str,
) -> None:
    """Stage FILE as an attachment of KEY; - reads stdin and needs --name. `release` commits it.

    \b
    Examples:
      wrasse leases attach orders/42 scan.pdf --lease=d5arif5qkajneqfrmsb0
      pg_dump shop | wrasse leases attach backups/shop - --name=shop.sql --lease=d5arif5qkajneqfrmsb0
    """  # fmt: skip
    piped = str(source) == "-"
    name = name or ("" if piped else source.name)
    if not name:
        raise click.UsageError("input from stdin needs --name")
    sent = Sent(name, content_type or mimetypes.guess_type(name)[0] or CONTENT_TYPE, keep=keep)
    size = source.stat().st_size if not piped and source.is_file() else None

    async def work() -> Attached:
        async with lease_operations(ctx) as leases:
            lease = await lease_of(leases, namespace, key, holder)
            pieces = _stdin() if piped else aiter(FilePieces(source))
            with progress("bytes", size) as seen:
                return await leases.attachments.attach(lease, sent, _counted(pieces, seen))

    attached = finish(work())
    found = attached.attachment
    said = f"{found.name}: {found.object.size} bytes, sha256 {found.sha256}; {key} will have version {attached.version}"
    if not attached.staged:
        said = f"{found.name} exists already and is not changed"
    facts = {"key": key, **_attachment_json(found), "staged": attached.staged, "version": attached.version}
    ctx.answer(facts, lambda: click.echo(said))


@click.command()
@click.argument("key")
@click.argument("name")
@HOLDER
@NAMESPACE
@with_context
def detach(ctx: CommandContext, key: str, name: str, holder: LeaseProof, namespace: str) -> None:
    """Stage the removal of the attachment NAME of KEY. `release` commits it.

    \b
    Examples:
      wrasse leases detach orders/42 scan.pdf --lease=d5arif5qkajneqfrmsb0
    """

    async def work() -> tuple[int, int]:
        async with lease_operations(ctx) as leases:
            return await leases.attachments.remove(await lease_of(leases, namespace, key, holder), name=name)

    count, version = finish(work())
    said = f"{key} will have version {version}, without {name}" if count else f"{key} has no attachment {name}"
    ctx.answer({"key": key, "staged": bool(count), "version": version}, lambda: click.echo(said))


@click.command()
@click.argument("key")
@AS_HOLDER
@NAMESPACE
@with_context
def attachments(ctx: CommandContext, key: str, holder: LeaseProof, namespace: str) -> None:
    """List the committed attachments of KEY; with --lease, also staged changes.

    \b
    Examples:
      wrasse leases attachments orders/42
    """

    async def work() -> Sequence[Attachment]:
        async with lease_operations(ctx, create=False) as leases:
            return await leases.attachments.list(await _whose(leases, namespace, key, holder))

    found = finish(work())
    rows = [(each.name, each.object.size, each.content_type, each.sha256[:12], each.updated_at) for each in found]
    ctx.answer(
        {"key": key, "attachments": [_attachment_json(each) for each in found]},
        lambda: show_table(("name", "bytes", "type", "sha256", "changed"), rows),
    )


@click.command()
@click.argument("key")
@click.argument("name")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write to this file.")
@AS_HOLDER
@NAMESPACE
@with_context
def fetch(ctx: CommandContext, key: str, name: str, output: Path | None, holder: LeaseProof, namespace: str) -> None:
    """Write the attachment NAME of KEY to stdout, or to a file that is complete or absent afterwards.

    \b
    Examples:
      wrasse leases fetch orders/42 scan.pdf --output=scan.pdf
    """

    async def work() -> Attachment:
        async with lease_operations(ctx, create=False) as leases:
            fetched = await leases.attachments.fetch(await _whose(leases, namespace, key, holder), name=name)
            if output is not None:
                await write_file(output, fetched.chunks)
            else:
                await _to_stdout(fetched.chunks)
            return fetched.attachment

    found = finish(work())
    if output is not None:
        facts = {"key": key, **_attachment_json(found), "file": str(output)}
        ctx.answer(facts, lambda: click.echo(f"{output}: {found.object.size} bytes, sha256 {found.sha256}"))


async def _whose(leases: Leases | LeaseClient, namespace: str, key: str, holder: LeaseProof) -> Lease:
    if holder.lease:
        return await lease_of(leases, namespace, key, holder)
    space = checked_namespace(namespace)
    return public(space, checked_key(key, space))


async def _stdin() -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(sys.stdin.buffer.read, CHUNK_BYTES):
        yield piece


async def _counted(pieces: AsyncIterator[bytes], seen: Callable[[int], None]) -> AsyncIterator[bytes]:
    async for piece in pieces:
        seen(len(piece))
        yield piece


async def _to_stdout(chunks: AsyncGenerator[bytes]) -> None:
    async with aclosing(chunks):
        async for chunk in chunks:
            await asyncio.to_thread(sys.stdout.buffer.write, chunk)
    sys.stdout.buffer.flush()


def _attachment_json(attachment: Attachment) -> Mapping[str, object]:
    return {
        "id": attachment.id, "name": attachment.name, "bytes": attachment.object.size, "sha256": attachment.sha256,
        "content_type": attachment.content_type, "created_at": attachment.created_at,
        "updated_at": attachment.updated_at,
    }  # fmt: skip
