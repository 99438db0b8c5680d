"""wrasse leases fsck: a full look at keys, state objects and index entries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import click

from wrasse.app.cli_asked import Asked, asks, finish
from wrasse.app.cli_leases import opened_leases
from wrasse.app.cli_leases_look import NAMESPACE
from wrasse.app.cli_table import show_table
from wrasse.app.progress import progress
from wrasse.leases.fsck import Damage, Fsck, TransactionsFsck
from wrasse.leases.names import checked_namespace

SHOWN_MAX = 1_000


@dataclass(slots=True)
class _Found:
    keys: int = 0
    objects: int = 0
    wrong: int = 0
    repaired: int = 0
    namespaces: int = 0
    transactions: int = 0
    decisions: int = 0


@click.command()
@click.option("--repair", is_flag=True, help="Put right what can be: loose and stale things, entries, transactions.")
@NAMESPACE
@asks
def fsck(asked: Asked, repair: bool, namespace: str) -> None:
    """Look at every key, every state object and every index entry, in all namespaces or in one; without a namespace
    also at transactions and what was decided. Changes nothing without --repair. Fails if something is wrong afterwards.
    It reads everything: on a bucket that costs a request per key.

    \b
    Examples:
      wrasse leases fsck
      wrasse leases fsck --repair --namespace=orders
    """
    found, damages = finish(_fsck(asked, repair, namespace))
    answer = {
        "namespaces": found.namespaces, "keys": found.keys, "objects": found.objects, "wrong": found.wrong,
        "transactions": found.transactions, "decisions": found.decisions,
        "repaired": found.repaired, "damages": [_json(each) for each in damages],
    }  # fmt: skip
    asked.answer(answer, lambda: _tell(found, damages))
    raise click.exceptions.Exit(0 if found.wrong == found.repaired else 1)


async def _fsck(asked: Asked, repair: bool, namespace: str) -> tuple[_Found, list[Damage]]:
    found, damages = _Found(), list[Damage]()
    async with opened_leases(asked, "fsck") as leasing:
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
                    look = Fsck(leasing.leases, name, repair=repair)
                    await _noted(look.run(), found, damages)
                    found.keys += look.keys
                    found.objects += look.objects
                    found.namespaces += 1
                    seen(1)
                if after is None:
                    break
        if not namespace:  # transactions belong to none
            all_ = TransactionsFsck(leasing.leases, repair=repair)
            await _noted(all_.run(), found, damages)
            found.transactions, found.decisions = all_.transactions, all_.decisions
    return found, damages


async def _noted(run: AsyncIterator[Damage], found: _Found, damages: list[Damage]) -> None:
    async for damage in run:
        found.wrong += 1
        found.repaired += damage.repaired
        if len(damages) < SHOWN_MAX:
            damages.append(damage)


def _json(damage: Damage) -> dict[str, object]:
    return {
        "namespace": damage.namespace, "key": damage.key, "trouble": damage.trouble.value, "object": damage.name,
        "repaired": damage.repaired,
    }  # fmt: skip


def _tell(found: _Found, damages: list[Damage]) -> None:
    if damages:
        rows = [(each.namespace, each.key, each.trouble.value, "yes" if each.repaired else "no") for each in damages]
        show_table(("namespace", "key", "trouble", "repaired"), rows)
    click.echo(
        f"{found.keys} keys and {found.objects} objects in {found.namespaces} namespaces: "
        + (f"{found.wrong} wrong, {found.repaired} repaired" if found.wrong else "nothing is wrong")
    )
