"""Transactions under test: what a caller was told, what became of it, and the laws that hold for both.

The state of every key is the list of the transactions that changed it. So the last states tell the whole history: a
transaction is in all of its keys or in none, what was acknowledged is in, what was refused is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec

from leases.places import HOURS, NS, Backend
from wrasse.clock import ManualClock
from wrasse.engine.run import AnySweep
from wrasse.engine.sweep import Action
from wrasse.leases.core import leases_in
from wrasse.leases.lease import KeyRecord, KeyRefused, Refusal, decode
from wrasse.leases.leases import Leases
from wrasse.leases.transactions.states import DECISIONS, TRANSACTIONS
from wrasse.sweeps.expired_leases import ExpiredLeases
from wrasse.sweeps.open_transactions import OpenTransactions
from wrasse.sweeps.spent_decisions import SpentDecisions

KEYS = ("a", "b/c", "d")
UNDONE = (Refusal.TRANSACTION_ROLLED_BACK, Refusal.LEASE_EXPIRED, Refusal.LEASE_REQUIRED)
DAY = timedelta(hours=25)


def name_of(number: int) -> str:
    """The id of the nth transaction."""
    return f"{number:019d}0"


@dataclass
class Told:
    """What callers were told, by transaction."""

    keys: dict[str, Sequence[str]] = field(default_factory=dict)
    committed: set[str] = field(default_factory=set)
    undone: set[str] = field(default_factory=set)


async def marks(leases: Leases, key: str) -> list[str]:
    """The transactions that changed a key, in the order in which they did."""
    seen = await leases.read_public(NS, key)
    return [] if seen is None else msgspec.json.decode(seen.data, type=list[str])


async def stage(leases: Leases, leased: KeyRecord, mark: str) -> None:
    """Stages the key's state with one more mark, as its holder saw it."""
    seen = await leases.read(leased.granted)
    before = [] if seen is None else msgspec.json.decode(seen.data, type=list[str])
    await leases.update(leased.granted, msgspec.json.encode([*before, mark]))


async def release(leases: Leases, leased: KeyRecord, told: Told, mark: str, *, commit: bool = True) -> None:
    """Gives a key back; notes what was said about its transaction."""
    try:
        await leases.release(leased.granted, commit=commit)
    except KeyRefused as refused:
        if commit and refused.code in UNDONE:
            told.undone.add(mark)
        if not commit and refused.code is Refusal.TRANSACTION_COMMITTED:
            told.committed.add(mark)
        return
    (told.committed if commit else told.undone).add(mark)


async def check(leases: Leases, told: Told) -> dict[str, list[str]]:
    """The laws; gives the last states."""
    states = {key: await marks(leases, key) for key in KEYS}
    for key, found in states.items():
        assert len(found) == len(set(found)), f"a transaction changed {key} twice"
    for mark, keys in told.keys.items():
        there = [mark in states[key] for key in keys]
        assert all(there) or not any(there), f"{mark} is torn: {dict(zip(keys, there, strict=True))}"
        assert mark not in told.committed or all(there), f"{mark} was acknowledged, and is not there"
        assert mark not in told.undone or not any(there), f"{mark} was refused, and has happened"
    return states


async def run(sweep: AnySweep) -> int:
    """One run of a sweep to its end; how many actions it took."""
    after, done = None, 0
    while True:
        page = await sweep.find(after, 10)
        for suspect in page:
            verdict = sweep.decide(suspect, page.at)
            if isinstance(verdict, Action):
                await sweep.apply([verdict])
                done += 1
        after = page.cursor
        if after is None:
            return done


async def sweep_all(leases: Leases, backend: Backend) -> None:
    """The idle group, each of them once."""
    for sweep in (ExpiredLeases(leases, backend.namespaces), OpenTransactions(leases), SpentDecisions(leases)):
        await run(sweep)
    await leases.close()


async def settle(leases: Leases, backend: Backend, clock: ManualClock) -> None:
    """Hours in which nobody does anything but sweep; then a day."""
    for by in (HOURS, HOURS, HOURS, DAY, HOURS):
        clock.advance(by)
        await sweep_all(leases, backend)


async def nothing_is_left(backend: Backend) -> None:
    """After a day of sweeps: no lease, nothing staged, no transaction, no decision, no loose object, no entry."""
    records = backend.records(leases_in(NS))
    named = set()
    for record in await records.page("", None, 1_000):
        meta = decode(record)
        assert (meta.lease, meta.staged) == (None, None), f"{record.key} is still held"
        named |= {state.name for state in meta.objects()}
    found = {info.key for info in await backend.objects.page(f"{NS}/state/", None, 1_000)}
    assert (found - named, named - found) == (set(), set()), "objects that no record names, or the other way round"
    assert [record.key for record in await records.due(None, None, 100)] == [], "entries that stand for nothing"
    for collection in (TRANSACTIONS, DECISIONS):
        left = [record.key for record in await backend.records(collection).page("", None, 100)]
        assert left == [], f"left in {collection.data}: {left}"
    raw = [info.key for info in await backend.objects.page(".txn", None, 100)]  # where records are objects, too
    assert [key for key in raw if not key.endswith("buckets.json")] == [], f"left in the bucket: {raw}"


async def held_by_nobody(leases: Leases, keys: Sequence[str] = KEYS) -> bool:
    """Whether every key can be taken at once."""
    for key in keys:
        with suppress(KeyRefused):
            leased = await leases.acquire(key, "probe", ttl=timedelta(seconds=5))
            await leases.release(leased.granted)
            continue
        return False
    return True
