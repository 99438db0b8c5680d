"""wrasse leases list, show, get, transaction, messages, fsck: read-only commands; and how commands open leases."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

import click

from wrasse.cli.context import CommandContext, finish, with_context
from wrasse.cli.output import progress, show_facts, show_pairs, show_table
from wrasse.clock import SystemClock
from wrasse.config.load import Config
from wrasse.errors import ConfigError, Refused, StoreBroken, UsageError
from wrasse.lease_server.queue_service import QueueService
from wrasse.leases.fsck import Fsck, KeyInconsistency, TransactionsFsck
from wrasse.leases.lease import KeyRecord, presented_lease
from wrasse.leases.leases import KeyStateRead, Leases
from wrasse.leases.names import checked_key, checked_namespace, checked_transaction
from wrasse.leases.transactions.states import Decision, Transaction
from wrasse.observability.json_format import ago
from wrasse.ports.jobs import JobFilter, JobInfo, JobState
from wrasse.ports.page import Page
from wrasse.runtime.backends import Stores
from wrasse.runtime.leases import Leasing, lease_client, open_leasing

if TYPE_CHECKING:
    from wrasse.leases.client import LeaseClient

NAMESPACE = click.option("--namespace", default="", metavar="NAME", help="The key's namespace.  [default: default]")
STATES = (JobState.DEAD, JobState.READY, JobState.RUNNING)
SHOWN_MAX = 1_000


@asynccontextmanager
async def opened_leases(ctx: CommandContext, command: str) -> AsyncIterator[Leasing]:
    """The store of leases itself, for the length of a command; refused if `leases.server` is set."""
    config = ctx.config()
    home = config.homes.ports["leases"]
    if config.settings.leases.server:
        raise ConfigError(
            f"leases are stored at {home} ({home.by}), and `wrasse leases {command}` needs the store behind it",
            do="run it with the settings of that server: --config of its file, which has no leases.server",
        )
    async with _store(config) as leasing:
        yield leasing


@asynccontextmanager
async def lease_operations(ctx: CommandContext, *, create: bool = True) -> AsyncIterator[Leases | LeaseClient]:
    """The leases of this configuration: at `leases.server`, or in the store of records, which a command that only reads
    does not create."""
    config = ctx.config()
    if not config.settings.leases.server:
        async with _store(config, create=create) as leasing:
            yield leasing.leases
        return
    async with lease_client(config.settings.leases, SystemClock()) as client:
        yield client


@asynccontextmanager
async def _store(config: Config, *, create: bool = False) -> AsyncIterator[Leasing]:
    async with Stores.of(config.settings.worker, create=create) as stores:
        yield await open_leasing(config, stores)


@click.command("list")
@click.argument("prefix", default="")
@NAMESPACE
@click.option("--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="Maximum number.")
@click.option("--after", metavar="CURSOR", help="Continue after the last page.")
@click.option("--namespaces", "spaces", is_flag=True, help="List namespaces instead.")
@with_context
def list_(ctx: CommandContext, prefix: str, namespace: str, limit: int, after: str | None, spaces: bool) -> None:
    """List keys that begin with PREFIX, and their holders.

    \b
    Examples:
      wrasse leases list orders/
      wrasse leases list --namespaces --json
    """
    finish(_spaces(ctx, after, limit) if spaces else _list(ctx, prefix, namespace, limit, after))


async def _spaces(ctx: CommandContext, after: str | None, limit: int) -> None:
    async with opened_leases(ctx, "list --namespaces") as leasing:
        page = await leasing.namespaces.page(after, limit)
    answer = {"namespaces": list(page.items), "cursor": page.cursor}
    ctx.answer(answer, lambda: click.echo("\n".join(page.items)))


async def _list(ctx: CommandContext, prefix: str, namespace: str, limit: int, after: str | None) -> None:
    async with lease_operations(ctx, create=False) as leases:
        name = checked_namespace(namespace)
        page = await leases.page(name, prefix.lower(), after, limit)
        found: list[tuple[str, KeyRecord]] = []
        invalid: list[tuple[str, str]] = []
        for key in page:
            try:
                if (meta := await leases.describe(name, key)) is not None:
                    found.append((key, meta))
                else:
                    invalid.append((key, "its record was deleted meanwhile"))
            except StoreBroken as error:
                invalid.append((key, error.message))
        now = page.at
    keys = [key_json(key, meta, now) for key, meta in found]
    keys += [{"key": key, "invalid": why} for key, why in invalid]
    answer = {"namespace": name, "keys": keys, "cursor": page.cursor}
    ctx.answer(answer, lambda: _show_keys(found, invalid, now, page.cursor))


def _show_keys(
    found: Sequence[tuple[str, KeyRecord]], invalid: Sequence[tuple[str, str]], now: datetime, cursor: str | None
) -> None:
    rows: list[tuple[object, ...]] = [(key, meta.version, meta.token or "", *_held(meta, now)) for key, meta in found]
    rows += [(key, "", "", "invalid", why) for key, why in invalid]
    show_table(("key", "version", "token", "owner", "ends"), rows, after=cursor)


def invalid_json(key: str, namespace: str, broken: StoreBroken) -> dict[str, str]:
    """The answer for a key whose record cannot be read."""
    do = f"{broken.do}; `wrasse leases fsck` finds other inconsistencies"
    return {"key": key, "namespace": namespace, "invalid": broken.message, "do": do}


@click.command()
@click.argument("key")
@NAMESPACE
@with_context
def show(ctx: CommandContext, key: str, namespace: str) -> None:
    """Show everything about KEY: its holder, its token, its version.

    \b
    Examples:
      wrasse leases show orders/42
    """
    finish(_show(ctx, key, namespace))


async def _show(ctx: CommandContext, key: str, namespace: str) -> None:
    async with lease_operations(ctx, create=False) as leases:
        name = checked_namespace(namespace)
        try:
            meta = await leases.describe(name, checked_key(key, name))
        except StoreBroken as broken:
            unreadable = invalid_json(key, name, broken)
            ctx.answer(unreadable, lambda: show_pairs([*unreadable.items()]))
            return
        now = await leases.now(name)
    if meta is None:
        raise UsageError(f"there is no key {key!r} in {name}", do="see `wrasse leases list`")
    owner, ends = _held(meta, now)
    pairs = [
        ("key", key), ("namespace", name), ("version", meta.version), ("token", meta.token or ""), ("etag", meta.etag),
        ("bytes", meta.state.size if meta.state else ""), ("owner", owner), ("ends", ends),
        ("staged", f"version {meta.staged.version}" if meta.staged else ""), ("changed", ago(meta.updated_at, now)),
    ]  # fmt: skip
    ctx.answer(key_json(key, meta, now), lambda: show_pairs(pairs))


@click.command()
@click.argument("key")
@click.option(
    "--lease", default="", metavar="ID", help="As the holder of this lease sees it, including staged changes."
)
@NAMESPACE
@with_context
def get(ctx: CommandContext, key: str, lease: str, namespace: str) -> None:
    """Write the committed state of KEY to stdout. Fails if there is none.

    \b
    Examples:
      wrasse leases get orders/42
    """
    seen = finish(_get(ctx, key, lease, namespace))
    answer = {"key": key, "version": seen.version, "etag": seen.etag, "state": seen.data.decode()}
    ctx.answer(answer, lambda: _write(seen.data))


async def _get(ctx: CommandContext, key: str, lease: str, namespace: str) -> KeyStateRead:
    async with lease_operations(ctx, create=False) as leases:
        name = checked_namespace(namespace)
        stored = checked_key(key, name)
        if lease:
            meta = await leases.describe(name, stored)
            if not isinstance(leases, Leases):
                what = "a server returns staged state only to the holder"
                raise UsageError(what, do="omit --lease, or use lease.state in a program")
            token = 0 if meta is None or meta.lease is None else meta.lease.token
            seen = await leases.read(presented_lease(name, stored, lease, token, ""))
        else:
            seen = await leases.read_public(name, stored)
    if seen is None:
        raise UsageError(f"the key {key!r} in {name} has no state", do="see `wrasse leases show`")
    return seen


def key_json(key: str, meta: KeyRecord, now: datetime) -> Mapping[str, object]:
    """A key as JSON."""
    grant = meta.lease if meta.lease is not None and meta.lease.expires_at > now else None
    return {
        "key": key,
        "version": meta.version,
        "token": meta.token or None,  # a server does not return it
        "etag": meta.etag,
        "updated_at": meta.updated_at,
        "lease": None if grant is None else {"id": grant.id, "owner": grant.owner, "expires_at": grant.expires_at},
        "staged": None if meta.staged is None else meta.staged.version,
    }


def _held(meta: KeyRecord, now: datetime) -> tuple[str, str]:
    if meta.lease is None or meta.lease.expires_at <= now:
        return "", ""
    return meta.lease.owner, ago(meta.lease.expires_at, now)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.flush()


@click.command()
@click.argument("id")
@click.option("--commit", is_flag=True, help="Commit it, on all of its keys.")
@click.option("--rollback", is_flag=True, help="Roll it back, on all of its keys.")
@with_context
def transaction(ctx: CommandContext, id: str, commit: bool, rollback: bool) -> None:
    """Show the state of the transaction ID, or decide it. An earlier decision stays, and is shown; if it differs from
    the requested one, the exit code is 3. Decisions are kept for 24 hours after they were carried out. Fails if the
    transaction is unknown.

    \b
    Examples:
      wrasse leases transaction d5arif5qkajneqfrmsb0
      wrasse leases transaction d5arif5qkajneqfrmsb0 --rollback --json
    """
    if commit and rollback:
        raise UsageError("--commit and --rollback at once", do="choose one")
    state, open_ = finish(_transaction(ctx, checked_transaction(id), commit, rollback))
    if state is None:
        raise UsageError(f"the transaction {id} does not exist, or its decision has expired", do="check the id")
    keys = [f"{each.namespace}/{each.key}" for each in open_.participants] if open_ is not None else []
    answer = {"transaction": id, "state": state.value, "open": open_ is not None, "keys": keys}
    ctx.answer(answer, lambda: _tell_transaction(id, state, keys, open_))
    if (commit and state is not Decision.COMMIT) or (rollback and state is not Decision.ROLLBACK):
        raise Refused(f"{id} was decided before: {state.value}", do="nothing: the first decision counts")


async def _transaction(
    ctx: CommandContext, id: str, commit: bool, rollback: bool
) -> tuple[Decision | None, Transaction | None]:
    if commit or rollback:
        async with lease_operations(ctx) as operations:
            return await operations.decide(id, commit=commit), None
    async with opened_leases(ctx, "transaction without --commit or --rollback") as leasing:
        leases = leasing.leases
        kept = await leases.transactions.transaction_log.read(id)
        if kept is not None:
            return kept.transaction.state, kept.transaction
        return await leases.transactions.transaction_log.outcome(id), None


def _tell_transaction(id: str, state: Decision, keys: list[str], open_: Transaction | None) -> None:
    pairs: list[tuple[str, object]] = [("transaction", id), ("state", state.value)]
    if open_ is not None:
        done = "not everywhere yet" if open_.decided else "nothing is decided"
        pairs += [("carried out", done), ("keys", ", ".join(keys))]
    show_pairs(pairs)


@click.command()
@click.argument("queue")
@NAMESPACE
@click.option(
    "--state",
    type=click.Choice([each.value for each in STATES]),
    default=JobState.DEAD.value,
    show_default=True,
    help="Dead messages, ready ones, or those that a consumer has.",
)
@click.option("--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="Maximum number.")
@click.option("--after", metavar="CURSOR", help="Continue after the last page.")
@click.option("--requeue", default="", metavar="ID", help="Make this dead message ready again, with all its attempts.")
@click.option("--delete", default="", metavar="ID", help="Delete this dead message and its state. There is no undo.")
@with_context
def messages(
    ctx: CommandContext,
    queue: str,
    namespace: str,
    state: str,
    limit: int,
    after: str | None,
    requeue: str,
    delete: str,
) -> None:
    """List the messages of QUEUE, by default the dead ones; or requeue or delete a dead one.

    \b
    Examples:
      wrasse leases messages orders
      wrasse leases messages orders --state=ready --json
      wrasse leases messages orders --requeue=01a1e5cb-d95c-70af-93e6-422d958891e9
    """  # fmt: skip
    if requeue and delete:
        raise UsageError("--requeue and --delete at once", do="choose one")
    name, queue = checked_namespace(namespace), checked_key(queue)
    if requeue or delete:
        finish(_change(ctx, name, queue, requeue, delete))
        did = "requeued" if requeue else "deleted"
        ctx.answer({"message": requeue or delete, did: True}, lambda: click.echo(f"{requeue or delete} {did}"))
        return
    page = finish(_message_page(ctx, name, queue, JobState(state), limit, after))
    answer = {"queue": queue, "state": state, "messages": [_message_json(each) for each in page], "cursor": page.cursor}
    ctx.answer(answer, lambda: _show_messages(page, queue, state))


@asynccontextmanager
async def _queue_service(ctx: CommandContext) -> AsyncIterator[QueueService]:
    async with opened_leases(ctx, "messages") as leasing:
        service = QueueService(leasing.leases, leasing.leases.clock)
        try:
            yield service
        finally:
            await service.close()


async def _message_page(
    ctx: CommandContext, namespace: str, queue: str, state: JobState, limit: int, after: str | None
) -> Page[JobInfo]:
    async with _queue_service(ctx) as service:
        return await service.jobs(namespace).page(state, JobFilter(queue=queue), after, limit)


async def _change(ctx: CommandContext, namespace: str, queue: str, requeue: str, delete: str) -> None:
    id = requeue or delete
    async with _queue_service(ctx) as service:
        if not await (service.requeue if requeue else service.delete)(namespace, queue, id):
            raise UsageError(f"there is no dead message {id!r} in {queue!r}", do="list them without this option")


def _message_json(info: JobInfo) -> Mapping[str, object]:
    return {
        "message": info.id, "attempts": info.attempts, "failures": info.failures, "rescues": info.rescues,
        "reason": None if info.reason is None else info.reason.value, "error": info.error, "bytes": info.size,
        "created_at": info.created_at, "finished_at": info.finished_at,
    }  # fmt: skip


def _show_messages(page: Page[JobInfo], queue: str, state: str) -> None:
    if not page.items:
        click.echo(f"nothing is {state} in {queue}")
        return
    rows = [(each.id, each.attempts, each.reason or "", each.error, each.created_at) for each in page]
    show_table(("message", "attempts", "reason", "error", "created"), rows)
    if page.cursor is not None:
        click.echo(f"more with --after={page.cursor}")


@dataclass(slots=True)
class _FsckTotals:
    namespaces: int = 0
    keys: int = 0
    objects: int = 0
    transactions: int = 0
    decisions: int = 0
    wrong: int = 0
    repaired: int = 0
    inconsistencies: list[KeyInconsistency] = field(default_factory=list)  # the first SHOWN_MAX


@click.command()
@click.option("--repair", is_flag=True, help="Repair loose objects, index entries and transactions.")
@NAMESPACE
@with_context
def fsck(ctx: CommandContext, repair: bool, namespace: str) -> None:
    """Check every key, state object and index entry, in all namespaces or in one; without a namespace also transactions
    and their decisions. Changes nothing without --repair. Fails if inconsistencies remain. It reads everything: on S3
    that costs a request per key.

    \b
    Examples:
      wrasse leases fsck
      wrasse leases fsck --repair --namespace=orders
    """
    found = finish(_fsck(ctx, repair, namespace))
    ctx.answer(asdict(found), lambda: _tell_fsck(found))
    raise click.exceptions.Exit(0 if found.wrong == found.repaired else 1)


async def _fsck(ctx: CommandContext, repair: bool, namespace: str) -> _FsckTotals:
    found = _FsckTotals()
    async with opened_leases(ctx, "fsck") as leasing:
        after: str | None = None
        names: tuple[str, ...]
        with progress("namespaces", None) as seen:
            while True:
                if namespace:
                    names, after = (checked_namespace(namespace),), None
                else:
                    page = await leasing.namespaces.page(after, 100)
                    names, after = page.items, page.cursor
                for name in names:
                    check = Fsck(leasing.leases, name, repair=repair)
                    await _noted(check.run(), found)
                    found.keys += check.keys
                    found.objects += check.objects
                    found.namespaces += 1
                    seen(1)
                if after is None:
                    break
        if not namespace:  # transactions belong to no namespace
            all_ = TransactionsFsck(leasing.leases, repair=repair)
            await _noted(all_.run(), found)
            found.transactions, found.decisions = all_.transactions, all_.decisions
    return found


async def _noted(run: AsyncIterator[KeyInconsistency], found: _FsckTotals) -> None:
    async for each in run:
        found.wrong += 1
        found.repaired += each.repaired
        if len(found.inconsistencies) < SHOWN_MAX:
            found.inconsistencies.append(each)


def _tell_fsck(found: _FsckTotals) -> None:
    if facts := [asdict(each) for each in found.inconsistencies]:
        show_facts(("namespace", "key", "trouble", "repaired"), facts, empty="")
    click.echo(
        f"{found.keys} keys and {found.objects} objects in {found.namespaces} namespaces: "
        + (f"{found.wrong} wrong, {found.repaired} repaired" if found.wrong else "nothing is wrong")
    )
