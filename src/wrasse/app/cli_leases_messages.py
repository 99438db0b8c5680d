"""wrasse leases messages: what is in a queue of the lease API, and a way out for what is dead there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import click

from wrasse.app.cli_asked import Asked, asks, finish
from wrasse.app.cli_leases import opened_leases
from wrasse.app.cli_leases_look import NAMESPACE
from wrasse.app.cli_table import show_table
from wrasse.app.leases_http.queues_desk import QueueDesk
from wrasse.errors import UsageError
from wrasse.leases.names import checked_key, checked_namespace
from wrasse.ports.jobs import JobFilter, JobState, Place
from wrasse.ports.page import Page

PLACES = (Place.DEAD, Place.READY, Place.HELD)


@click.command()
@click.argument("queue")
@NAMESPACE
@click.option(
    "--place", type=click.Choice([each.value for each in PLACES]), default=Place.DEAD.value, show_default=True,
    help="Dead messages, those that wait, or those that a consumer holds.",
)
@click.option("--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="How many at most.")
@click.option("--after", metavar="CURSOR", help="Go on after the last page.")
@click.option("--requeue", default="", metavar="ID", help="Hand this dead message out again, with all its attempts.")
@click.option("--delete", default="", metavar="ID", help="Delete this dead message and its state. There is no undo.")
@asks
def messages(
    asked: Asked, queue: str, namespace: str, place: str, limit: int, after: str | None, requeue: str, delete: str
) -> None:
    """List the messages of QUEUE, dead ones unless you say otherwise; or requeue or delete a dead one.

    \b
    Examples:
      wrasse leases messages orders
      wrasse leases messages orders --place=ready --json
      wrasse leases messages orders --requeue=01a1e5cb-d95c-70af-93e6-422d958891e9
    """  # fmt: skip
    if requeue and delete:
        raise UsageError("--requeue and --delete at once", do="choose one")
    name, queue = checked_namespace(namespace), checked_key(queue)
    if requeue or delete:
        finish(_change(asked, name, queue, requeue, delete))
        did = "requeued" if requeue else "deleted"
        asked.answer({"message": requeue or delete, did: True}, lambda: click.echo(f"{requeue or delete} {did}"))
        return
    page = finish(_page(asked, name, queue, Place(place), limit, after))
    answer = {"queue": queue, "place": place, "messages": [_json(each) for each in page], "cursor": page.cursor}
    asked.answer(answer, lambda: _show(page, queue, place))


@asynccontextmanager
async def _desk(asked: Asked) -> AsyncIterator[QueueDesk]:
    async with opened_leases(asked, "messages") as leasing:
        desk = QueueDesk(leasing.leases, leasing.leases.clock)
        try:
            yield desk
        finally:
            await desk.close()


async def _page(
    asked: Asked, namespace: str, queue: str, place: Place, limit: int, after: str | None
) -> Page[JobState]:
    async with _desk(asked) as desk:
        return await desk.jobs(namespace).page(place, JobFilter(queue=queue), after, limit)


async def _change(asked: Asked, namespace: str, queue: str, requeue: str, delete: str) -> None:
    id = requeue or delete
    async with _desk(asked) as desk:
        if not await (desk.revive if requeue else desk.bin)(namespace, queue, id):
            raise UsageError(f"there is no dead message {id!r} in {queue!r}", do="list them without this option")


def _json(state: JobState) -> Mapping[str, object]:
    return {
        "message": state.id, "attempts": state.attempts, "failures": state.failures, "deaths": state.rescues,
        "reason": None if state.reason is None else state.reason.value, "error": state.error, "bytes": state.size,
        "created_at": state.created_at, "finished_at": state.finished_at,
    }  # fmt: skip


def _show(page: Page[JobState], queue: str, place: str) -> None:
    if not page.items:
        click.echo(f"nothing is {place} in {queue}")
        return
    rows = [(each.id, each.attempts, each.reason or "", each.error, each.created_at) for each in page]
    show_table(("message", "attempts", "reason", "error", "created"), rows)
    if page.cursor is not None:
        click.echo(f"more with --after={page.cursor}")
