"""Conditional deletes, many at once where the store has conditions for that, each with an outcome of its own.

A delete whose reply was lost is looked at again: what still has its tag is deleted again, about the rest nobody can
tell who deleted it, and the outcome is `unknown`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from wrasse.backends.s3.abreast import AT_ONCE, abreast
from wrasse.backends.s3.client import Client
from wrasse.backends.s3.failures import Denied
from wrasse.backends.s3.replies import is_etag, sayable
from wrasse.backends.s3.wire import TRIES, NoAnswer, pause
from wrasse.errors import StoreUnavailable
from wrasse.ports.outcome import Outcome

_LOST = frozenset({"PreconditionFailed", "NoSuchKey", "ConditionalRequestConflict", "NoSuchVersion"})
_REFUSED = frozenset({"AccessDenied", "NotImplemented", "InvalidArgument", "MethodNotAllowed"})

Delete = tuple[bytes, str]


class Deletes:
    """Deletes objects of one bucket."""

    def __init__(self, client: Client, *, in_batches: bool) -> None:
        self._client = client
        self._in_batches = in_batches

    async def delete(self, deletes: Sequence[Delete]) -> list[Outcome]:
        """Each outcome, in the order of what was asked."""
        outcomes: list[Outcome | None] = [None] * len(deletes)
        batch: dict[bytes, int] = {}
        single: list[int] = []
        for place, (key, etag) in enumerate(deletes):
            if not is_etag(etag):
                outcomes[place] = Outcome.LOST
            elif self._in_batches and key not in batch and _sayable(key):
                batch[key] = place
            else:
                single.append(place)
        if batch:
            found = await self._many([deletes[place] for place in batch.values()])
            for place, outcome in zip(batch.values(), found, strict=True):
                outcomes[place] = outcome
        for begin in range(0, len(single), AT_ONCE):  # one key named twice is deleted in the order named
            some = single[begin : begin + AT_ONCE]
            alone = len({deletes[place][0] for place in some}) == len(some)
            for group in [some] if alone else [[place] for place in some]:
                for place, outcome in zip(group, await self._together([deletes[p] for p in group]), strict=True):
                    outcomes[place] = outcome
        return [outcome for outcome in outcomes if outcome is not None]

    async def _together(self, deletes: Sequence[Delete]) -> list[Outcome]:
        return await abreast(self._one, deletes)

    async def _one(self, delete: Delete) -> Outcome:
        key, etag = delete
        for attempt in range(1, TRIES + 1):
            try:
                return Outcome.DONE if await self._client.delete(key, etag) else Outcome.LOST
            except Denied:
                return Outcome.FAILED  # this key is held back, for example by a lock; others may not be
            except NoAnswer as unknown:
                if attempt == TRIES:
                    raise unknown.why from unknown
                if not await self._has(delete):
                    return Outcome.UNKNOWN
            await asyncio.sleep(pause(attempt))
        raise AssertionError("the last try returns or raises")

    async def _many(self, deletes: Sequence[Delete]) -> list[Outcome]:
        outcomes: dict[bytes, Outcome] = {}
        left = list(deletes)
        for attempt in range(1, TRIES + 1):
            try:
                outcomes |= await self._batch(left)
                return [outcomes[key] for key, _ in deletes]
            except NoAnswer as unknown:
                if attempt == TRIES:
                    raise unknown.why from unknown
            there = await self._which(left)
            outcomes |= {key: Outcome.UNKNOWN for key, _ in left if key not in there}
            left = [each for each in left if each[0] in there]
            if not left:
                break
            await asyncio.sleep(pause(attempt))
        return [outcomes[key] for key, _ in deletes]

    async def _batch(self, deletes: Sequence[Delete]) -> dict[bytes, Outcome]:
        outcomes = {key: Outcome.DONE for key, _ in deletes}
        for refusal in await self._client.delete_many(deletes):
            if refusal.key not in outcomes:
                raise StoreUnavailable(
                    f"{self._client.where} answered a delete with a key that was not asked", do="try again later"
                )
            if refusal.code in _LOST:
                outcomes[refusal.key] = Outcome.LOST
            else:
                outcomes[refusal.key] = Outcome.FAILED if refusal.code in _REFUSED else Outcome.UNKNOWN
        return outcomes

    async def _which(self, deletes: Sequence[Delete]) -> set[bytes]:
        """The keys that still have their tag."""
        there = await abreast(self._has, deletes)
        return {key for (key, _), has in zip(deletes, there, strict=True) if has}

    async def _has(self, delete: Delete) -> bool:
        key, etag = delete
        seen = await self._client.head(key)
        return seen is not None and seen.etag == etag


def _sayable(key: bytes) -> bool:
    try:
        return sayable(key.decode())
    except UnicodeDecodeError:
        return False
