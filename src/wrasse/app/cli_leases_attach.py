"""wrasse leases attach, detach, attachments and fetch: files that ride along with a key's state."""

from __future__ import annotations

import asyncio
import mimetypes
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wrasse.app.cli_asked import Asked, asks, finish
from wrasse.app.cli_leases import lease_operations
from wrasse.app.cli_leases_hold import HOLDER, Holder, held_by, holder_options
from wrasse.app.cli_leases_look import NAMESPACE
from wrasse.app.cli_table import show_table
from wrasse.app.progress import progress
from wrasse.leases.attachments import CONTENT_TYPE, Attached, Sent
from wrasse.leases.attachments_client import FilePieces, write_file
from wrasse.leases.lease import Attachment, Lease, public
from wrasse.leases.leases import Leases
from wrasse.leases.names import checked_key, checked_namespace
from wrasse.ports.objects import CHUNK_BYTES

if TYPE_CHECKING:
    from wrasse.leases.client import LeaseClient

AS_HOLDER = holder_options(required=False)  # as the holder of a lease sees it


@click.command()
@click.argument("key")
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@HOLDER
@click.option("--name", default="", help="What it is called there.  [default: the name of the file]")
@click.option("--content-type", default="", metavar="TYPE", help="What it is.  [default: by the name]")
@click.option("--keep", is_flag=True, help="Leave one of this name as it is.")
@NAMESPACE
@asks
def attach(
    asked: Asked, key: str, source: Path, holder: Holder, name: str, content_type: str, keep: bool,
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
        raise click.UsageError("what comes from stdin needs --name")
    sent = Sent(name, content_type or mimetypes.guess_type(name)[0] or CONTENT_TYPE, keep=keep)
    size = source.stat().st_size if not piped and source.is_file() else None

    async def work() -> Attached:
        async with lease_operations(asked) as leases:
            held = await held_by(leases, namespace, key, holder)
            pieces = _stdin() if piped else aiter(FilePieces(source))
            with progress("bytes", size) as seen:
                return await leases.attachments.attach(held, sent, _counted(pieces, seen))

    attached = finish(work())
    found = attached.attachment
    said = f"{found.name}: {found.object.size} bytes, sha256 {found.sha256}; {key} will have version {attached.version}"
    if not attached.staged:
        said = f"{found.name} is there already and stays as it is"
    facts = {"key": key, **_json(found), "staged": attached.staged, "version": attached.version}
    asked.answer(facts, lambda: click.echo(said))


@click.command()
@click.argument("key")
@click.argument("name")
@HOLDER
@NAMESPACE
@asks
def detach(asked: Asked, key: str, name: str, holder: Holder, namespace: str) -> None:
    """Stage the removal of the attachment NAME of KEY. `release` commits it.

    \b
    Examples:
      wrasse leases detach orders/42 scan.pdf --lease=d5arif5qkajneqfrmsb0
    """

    async def work() -> tuple[int, int]:
        async with lease_operations(asked) as leases:
            return await leases.attachments.remove(await held_by(leases, namespace, key, holder), name=name)

    count, version = finish(work())
    said = f"{key} will have version {version}, without {name}" if count else f"{key} has no attachment {name}"
    asked.answer({"key": key, "staged": bool(count), "version": version}, lambda: click.echo(said))


@click.command()
@click.argument("key")
@AS_HOLDER
@NAMESPACE
@asks
def attachments(asked: Asked, key: str, holder: Holder, namespace: str) -> None:
    """List the attachments of KEY as they were committed last.

    \b
    Examples:
      wrasse leases attachments orders/42
    """

    async def work() -> Sequence[Attachment]:
        async with lease_operations(asked, create=False) as leases:
            return await leases.attachments.list(await _whose(leases, namespace, key, holder))

    found = finish(work())
    rows = [(each.name, each.object.size, each.content_type, each.sha256[:12], each.updated_at) for each in found]
    asked.answer(
        {"key": key, "attachments": [_json(each) for each in found]},
        lambda: show_table(("name", "bytes", "type", "sha256", "changed"), rows),
    )


@click.command()
@click.argument("key")
@click.argument("name")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write it there.")
@AS_HOLDER
@NAMESPACE
@asks
def fetch(asked: Asked, key: str, name: str, output: Path | None, holder: Holder, namespace: str) -> None:
    """Write the attachment NAME of KEY to stdout, or to a file that is then whole or not there.

    \b
    Examples:
      wrasse leases fetch orders/42 scan.pdf --output=scan.pdf
    """

    async def work() -> Attachment:
        async with lease_operations(asked, create=False) as leases:
            fetched = await leases.attachments.fetch(await _whose(leases, namespace, key, holder), name=name)
            if output is not None:
                await write_file(output, fetched.chunks)
            else:
                await _to_stdout(fetched.chunks)
            return fetched.attachment

    found = finish(work())
    if output is not None:
        facts = {"key": key, **_json(found), "file": str(output)}
        asked.answer(facts, lambda: click.echo(f"{output}: {found.object.size} bytes, sha256 {found.sha256}"))


async def _whose(leases: Leases | LeaseClient, namespace: str, key: str, holder: Holder) -> Lease:
    if holder.lease:
        return await held_by(leases, namespace, key, holder)
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


def _json(attachment: Attachment) -> Mapping[str, object]:
    return {
        "id": attachment.id, "name": attachment.name, "bytes": attachment.object.size, "sha256": attachment.sha256,
        "content_type": attachment.content_type, "created_at": attachment.created_at,
        "updated_at": attachment.updated_at,
    }  # fmt: skip
