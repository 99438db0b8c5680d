"""Suspects: what a pass found inconsistent, and the one script that decides whether it is.

Reading all structures takes many round trips, in which jobs move. So whatever seems wrong is only a suspect; the script
checks it again, completely, and repairs it atomically.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.fsck.kinds import Kind
from wrasse.backends.redis.jobs.dead_list import DeadListEntry, adopt_dead
from wrasse.backends.redis.jobs.enqueue import CallKeys, in_ms
from wrasse.backends.redis.jobs.strays import Unclaimed, adopt
from wrasse.backends.redis.keys import RedisKeys
from wrasse.backends.redis.scripts import load
from wrasse.ports.inconsistency import NAMES_MAX, Inconsistency
from wrasse.ports.jobs import IDS_KEPT

_BATCH, _BATCH_BYTES = 200, 4 << 20
GROUP_MAX = 1_000  # claims of equal bytes that are checked together


@dataclass(frozen=True, slots=True)
class FsckSuspect:
    """`words` are the script's arguments; `name` is what a person would search for."""

    kind: Kind
    name: str
    words: tuple[Word, ...] = ()
    worker: str = ""
    queue: str = ""
    raw: bytes = b""  # the entry, where the repair needs it
    place: int = 0  # of a dead letter in its list, counted from the old end

    @property
    def size(self) -> int:
        """Bytes to send, nearly."""
        return sum(len(word) for word in self.words if isinstance(word, str | bytes))

    def item(self, call_keys: CallKeys) -> tuple[Word, ...]:
        """The arguments of the script."""
        first = call_keys.worker(self.worker) if self.worker else call_keys.queue(self.queue) if self.queue else 0
        return self.kind.value.letter, 1 + len(self.words), first, *self.words


class FsckTally:
    """The findings of one kind."""

    def __init__(self) -> None:
        self.count = self.repaired = 0
        self.names: list[str] = []

    def add(self, name: str, count: int, *, repaired: int) -> None:
        """Adds findings, with an example name."""
        self.count += count
        self.repaired += repaired
        if len(self.names) < NAMES_MAX:
            self.names.append(name)


class Judge:
    """Keeps the tallies of one check."""

    def __init__(self, client: RedisClient, keys: RedisKeys, *, repair: bool, heartbeat_timeout: timedelta) -> None:
        self.repair = repair
        self._client, self._keys, self._heartbeat_timeout = client, keys, heartbeat_timeout
        self._tallies: dict[Kind, FsckTally] = {}
        self._repairs: dict[Kind, Callable[[Sequence[FsckSuspect]], Awaitable[None]]] = {
            Kind.ENTRY_WITHOUT_CLAIM: self._adopt,
            Kind.DEAD_ENTRY_WITHOUT_INDEX: self._index,
        }

    def tally(self, kind: Kind) -> FsckTally:
        """The findings of this kind so far."""
        return self._tallies.setdefault(kind, FsckTally())

    def found(self, *kinds: Kind) -> bool:
        """Whether there are findings of these kinds, or of any."""
        return any(self.tally(kind).count for kind in kinds or Kind)

    def report(self) -> tuple[Inconsistency, ...]:
        """The findings, in the order of the kinds."""
        return tuple(
            Inconsistency(kind.shown, kind.value.about, kind.value.repair, each.count, each.repaired, tuple(each.names))
            for kind in Kind
            if (each := self.tally(kind)).count
        )

    async def judge_all(self, suspects: AsyncIterator[FsckSuspect]) -> None:
        """Judges all suspects, in batches."""
        async for some in _batches(suspects):
            counts = await self._run(some, repair=self.repair)
            for suspect, count in zip(some, counts, strict=True):
                if count:
                    self.tally(suspect.kind).add(suspect.name, count, repaired=count if self.repair else 0)
            for kind, mend in self._repairs.items() if self.repair else ():
                confirmed = [each for each, count in zip(some, counts, strict=True) if count and each.kind is kind]
                if confirmed:
                    await mend(confirmed)

    async def confirmed(self, suspects: Iterable[FsckSuspect]) -> list[FsckSuspect]:
        """Those that are inconsistent at this moment. Changes nothing."""
        every, confirmed = list(suspects), []
        for start in range(0, len(every), _BATCH):
            some = every[start : start + _BATCH]
            counts = await self._run(some, repair=False)
            confirmed += [each for each, count in zip(some, counts, strict=True) if count]
        return confirmed

    async def _run(self, suspects: Sequence[FsckSuspect], *, repair: bool) -> list[int]:
        call_keys = CallKeys(self._keys, (*self._keys.shared, self._keys.workers, self._keys.workers_info))
        items = [word for each in suspects for word in each.item(call_keys)]
        args = [int(repair), in_ms(self._heartbeat_timeout), in_ms(IDS_KEPT), len(suspects), *items]
        counts: list[int] = await self._client.run(load("mend"), call_keys.keys, args)
        return counts

    async def _adopt(self, confirmed: Sequence[FsckSuspect]) -> None:
        # A worker without a heartbeat may turn out to live: the rescue of its jobs checks the heartbeat again.
        beats = await self._client.ask_many([("EXISTS", self._keys.heartbeat(each.worker)) for each in confirmed])
        unheld = [Unclaimed(each.worker, each.raw, ours=beat == 1) for each, beat in zip(confirmed, beats, strict=True)]
        await adopt(self._client, self._keys, unheld, self._heartbeat_timeout)

    async def _index(self, confirmed: Sequence[FsckSuspect]) -> None:
        await adopt_dead(self._client, self._keys, [DeadListEntry(each.place, each.raw) for each in confirmed])


async def _batches(suspects: AsyncIterator[FsckSuspect]) -> AsyncIterator[list[FsckSuspect]]:
    some: list[FsckSuspect] = []
    size = 0
    async for each in suspects:
        some.append(each)
        size += each.size
        if len(some) == _BATCH or size > _BATCH_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some
