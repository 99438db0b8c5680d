"""What happened to keys, written down at the store, and the laws that every history of leases obeys.

Each write names the version it builds on, so the writes of a key form a chain, whatever order their answers came in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

from wrasse.clock import Clock
from wrasse.leases.lease import KeyRecord, decode
from wrasse.ports.objects import Objects
from wrasse.ports.page import Page
from wrasse.ports.records import IndexEntry, Record, Records, Written, refuse_emit, refuse_index_entry
from wrasse.ports.streams import Draft


@dataclass(frozen=True, slots=True)
class Step:
    """One write of a key's record: over which version, what it made, and when by the store's clock."""

    over: str | None
    version: str
    meta: KeyRecord
    at: datetime


@dataclass
class History:
    """Everything that was written and promised."""

    steps: dict[str, dict[str, Step]] = field(default_factory=lambda: defaultdict(dict))
    granted: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    committed: list[tuple[str, int, bytes]] = field(default_factory=list)  # acknowledged: key, version, data
    refused: list[tuple[str, bytes]] = field(default_factory=list)  # commits that were told they did not happen
    kept: list[tuple[str, bytes]] = field(default_factory=list)  # commits answered by "nothing of it was lost"
    read: list[tuple[str, int, bytes]] = field(default_factory=list)  # publicly: key, version, data
    bytes_of: dict[str, bytes] = field(default_factory=dict)  # of every state object that was written, by name

    def chain(self, key: str) -> list[Step]:
        """The writes of a key in the order in which they count."""
        following: dict[str | None, list[Step]] = defaultdict(list)
        for step in self.steps[key].values():
            following[step.over].append(step)
        chain: list[Step] = []
        at: str | None = None
        while found := following.pop(at, []):
            assert len(found) == 1, f"two writes over one version of {key}"
            chain.append(found[0])
            at = found[0].version
        assert not following, f"writes of {key} over versions that never were"
        return chain

    def values(self, key: str) -> dict[int, bytes | None]:
        """What each version of a key was."""
        states = {step.meta.version: step.meta.state for step in self.chain(key)}
        return {version: None if state is None else self.bytes_of[state.name] for version, state in states.items()}

    def check(self) -> None:
        """All laws."""
        for key in list(self.steps):
            chain = self.chain(key)
            for before, after in pairwise(chain):
                check_step(before.meta, after)
        for key, tokens in self.granted.items():
            assert len(tokens) == len(set(tokens)), f"one token of {key} for two leases"
        values = {key: self.values(key) for key in self.steps}
        for key, version, data in [*self.committed, *self.read]:
            assert values[key].get(version) == data, f"version {version} of {key} is not what was acknowledged or read"
        for key, data in self.refused:
            assert data not in values[key].values(), f"a commit of {key} that was refused has happened"
        for key, data in self.kept:
            assert data in values[key].values(), f"a commit of {key} is lost, and nobody was told"


def check_step(before: KeyRecord, step: Step) -> None:
    """One holder, growing tokens, and commits that are whole."""
    after = step.meta
    new = after.lease is not None and (before.lease is None or after.lease.id != before.lease.id)
    assert after.token > before.token if new else after.token == before.token, "tokens grow with every grant"
    if new and before.lease is not None:
        assert step.at >= before.lease.expires_at, "a lease was taken while it lasted"
    if after.version == before.version:
        assert after.state == before.state, "a state changed without a version"
        return
    assert before.staged is not None, "a version out of nothing"
    assert after.lease is None, "a commit gives the key back"
    assert after.version == before.staged.version > before.version, "versions grow by what was staged"
    assert after.state == (before.state if before.staged.same else before.staged.state), "a torn commit"


class Witness:
    """Records, and a history of what was really written. A `careless` one ignores conditions, to be found out."""

    def __init__(self, records: Records, history: History, clock: Clock, *, careless: bool = False) -> None:
        self._records, self._history, self._clock, self._careless = records, history, clock, careless

    @property
    def resolution(self) -> timedelta:
        return self._records.resolution

    @property
    def emits(self) -> bool:
        return False

    @property
    def shelves(self) -> None:
        return None

    @property
    def shared(self) -> None:
        return None

    async def create(
        self,
        key: str,
        value: bytes,
        *,
        due_at: datetime | None = None,
        nonce: str | None = None,
        emit: Sequence[Draft] = (),
        index_entry: IndexEntry | None = None,
    ) -> Written:
        refuse_emit(emit)
        refuse_index_entry(index_entry)
        written = await self._records.create(key, value, due_at=due_at, nonce=nonce)
        self._note(key, None, value, written)
        return written

    async def get(self, key: str, *, entering: datetime | None = None) -> Record | None:
        return await self._records.get(key, entering=entering)

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        at: str,
        due_at: datetime | None = None,
        nonce: str | None = None,
        entry_stays: bool = False,
        emit: Sequence[Draft] = (),
        index_entry: IndexEntry | None = None,
    ) -> Written:
        refuse_emit(emit)
        refuse_index_entry(index_entry)
        written = await self._records.put(key, value, at=at, due_at=due_at, nonce=nonce, entry_stays=entry_stays)
        if not written and self._careless and (record := await self._records.get(key)) is not None:
            written = await self._records.put(key, value, at=record.version, due_at=due_at, entry_stays=entry_stays)
        self._note(key, at, value, written)
        return written

    async def leave(self, key: str, due_at: datetime) -> None:
        await self._records.leave(key, due_at)

    async def delete(self, key: str, *, at: str, nonce: str | None = None) -> Written:
        return await self._records.delete(key, at=at, nonce=nonce)

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[Record]:
        return await self._records.page(prefix, after, limit)

    async def due(self, before: datetime | None, after: str | None, limit: int) -> Page[Record]:
        return await self._records.due(before, after, limit)

    def _note(self, key: str, over: str | None, value: bytes, written: Written) -> None:
        if written and written.version is not None:
            meta = decode(Record(key, value, written.version, None))
            step = Step(over, written.version, meta, self._clock.now())
            self._history.steps[key].setdefault(written.version, step)


async def nothing_is_left(records: Records, objects: Objects, namespace: str, history: History) -> None:
    """After the last sweep: no lease, nothing due, no state object that no record names, none that is missing."""
    named = set()
    for key in history.steps:
        record = await records.get(key)
        assert record is not None, f"{key} has no record any more"
        meta = decode(record)
        assert (meta.lease, meta.staged) == (None, None), f"{key} is still held"
        named |= set() if meta.state is None else {meta.state.name}
    found, after = set(), None
    while True:
        page = await objects.page(f"{namespace}/state/", after, 500)
        found |= {info.key for info in page}
        after = page.cursor
        if after is None:
            break
    assert found - named == set(), "objects that no record names"
    assert named - found == set(), "records that name objects which are gone"
    assert [record.key for record in await records.due(None, None, 100)] == [], "index entries that stand for nothing"
