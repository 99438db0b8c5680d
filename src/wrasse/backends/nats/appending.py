"""Appending: every entry names the one it follows, so that ids only grow whoever else writes.

A batch for one stream is one atomic step where the server has it (2.12, up to 1,000 entries); on older servers each
entry is sent on condition that the one before it is the last, and what was stored before a failure stays. Appends of
one process to one stream take turns, and those that wait go together. A step that was not confirmed is never sent again
from here. Entries with a key are sent one by one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, groupby

from wrasse.backends.nats.key_memory import KeyMemory
from wrasse.backends.nats.lanes import UNLIMITED, Lane, Lanes, Tip, Waiting
from wrasse.backends.nats.link import Link, packed
from wrasse.backends.nats.pub_acks import Acks, Outdated, Vanished
from wrasse.backends.nats.stream_time import ServerTime
from wrasse.backends.nats.stored import written_fields
from wrasse.backends.nats.wire import Cut
from wrasse.errors import StoreUnavailable, TooLarge, WrasseError
from wrasse.ports.streams import Draft, EntryId, check_limits, draft_bytes

_STEP_MAX = 1_000  # the server takes so many in one atomic step
_HEADER_BYTES = 512  # at most, fields and key apart
_TRIES_MAX = 1_000  # against other writers: each try that fails means that somebody else's went through
_PATIENCE = 4  # tries before a pause is made
_PAUSE_MAX = 0.02
_COMMIT = b"Nats-Batch-Commit:1\r\n"


class Appender:
    """Appends for one backend."""

    def __init__(self, lanes: Lanes, time: ServerTime, *, atomic: bool | None = None) -> None:
        self._lanes = lanes
        self._time = time
        self._link: Link = lanes.js.link
        self._atomic = atomic  # None: as the server's version says
        self._batches = count(1)
        self._salt = b"%x." % random.getrandbits(40)
        self._keys = KeyMemory(lanes, time)

    async def append(self, drafts: Sequence[Draft]) -> tuple[EntryId, ...]:
        """Appends, in order; a draft whose key is known answers with the first entry's id."""
        self._fits(drafts)
        by_subject: dict[str, list[int]] = {}
        for place, draft in enumerate(drafts):
            by_subject.setdefault(draft.subject, []).append(place)
        for subject, places in by_subject.items():  # all of them, before the first entry is stored
            lane = await self._lanes.find(subject)
            if lane is not None:
                await self._check_room(subject, lane, [drafts[place] for place in places])
        ids: list[EntryId | None] = [None] * len(drafts)
        for subject, places in by_subject.items():
            for place, id in zip(places, await self._write(subject, [drafts[p] for p in places]), strict=True):
                ids[place] = id
        return tuple(id for id in ids if id is not None)

    def _fits(self, drafts: Sequence[Draft]) -> None:
        most = self._link.server.max_payload
        for draft in drafts:
            if len(draft.body) + _HEADER_BYTES > most or (
                draft.fields and len(draft.body) + len(written_fields(draft.fields)) + _HEADER_BYTES > most
            ):
                raise TooLarge(
                    f"an entry of {draft_bytes(draft)} bytes for {draft.subject!r}, and the server takes {most}",
                    do="raise max_payload of the NATS server, or put the data elsewhere and send its name",
                )

    async def _check_room(self, subject: str, lane: Lane, drafts: Sequence[Draft]) -> None:
        limits = (await self._lanes.note(subject, lane)).limits
        if limits == UNLIMITED:
            return
        lane.tip = await self._lanes.tip_of(subject, lane, leader=True)  # the append fails if it is not the last then
        held, size = await self._lanes.measure(subject, lane, lane.tip)
        fresh, seen = [], set()
        for draft in drafts:
            if not draft.key or (draft.key not in seen and await self._keys.known(subject, lane, draft.key) is None):
                fresh.append(draft)
            seen.add(draft.key)
        check_limits(subject, limits, held + len(fresh), size + sum(map(draft_bytes, fresh)))

    async def _write(self, subject: str, drafts: Sequence[Draft]) -> list[EntryId]:
        if not any(draft.key for draft in drafts):
            return await self._plain(subject, drafts)
        ids: list[EntryId] = []
        for keyed, run in groupby(drafts, key=lambda draft: bool(draft.key)):
            if keyed:
                ids += [await self._keyed(subject, draft) for draft in run]
            else:
                ids += await self._plain(subject, list(run))
        return ids

    async def _plain(self, subject: str, drafts: Sequence[Draft]) -> list[EntryId]:
        """Entries without keys. Those of callers who wait for the same turn go together."""
        lane = await self._lanes.make(subject)
        mine = Waiting(drafts)
        lane.waiting.append(mine)
        try:
            while not mine.future.done():
                async with lane.turn:
                    if not mine.future.done():
                        await self._together(subject, lane)
        except BaseException:
            if mine in lane.waiting:
                lane.waiting.remove(mine)
            raise
        return mine.future.result()

    async def _together(self, subject: str, lane: Lane) -> None:
        """Writes what waits, as much as one step takes and at least the first."""
        taken = [lane.waiting.pop(0)]
        size = len(taken[0].drafts)
        while lane.waiting and size + len(lane.waiting[0].drafts) <= _STEP_MAX:
            taken.append(lane.waiting.pop(0))
            size += len(taken[-1].drafts)
        try:
            ids = await self._in_steps(subject, [draft for each in taken for draft in each.drafts])
        except BaseException as error:
            told = error if isinstance(error, WrasseError) else _unknown(subject)
            for each in taken:
                if not each.future.done():
                    each.future.set_exception(told)
                    each.future.exception()  # its caller may be the one that was cancelled
            raise
        at = 0
        for each in taken:
            if not each.future.done():
                each.future.set_result(ids[at : at + len(each.drafts)])
            at += len(each.drafts)

    async def _in_steps(self, subject: str, drafts: Sequence[Draft]) -> list[EntryId]:
        ids: list[EntryId | None] = [None] * len(drafts)
        left = list(range(len(drafts)))
        for attempt in range(_TRIES_MAX + len(drafts) // _STEP_MAX):
            places = left[:_STEP_MAX]
            if not places:
                return [id for id in ids if id is not None]
            piece = [drafts[place] for place in places]
            lane = await self._ready(subject, piece, attempt if len(left) == len(drafts) else 0)
            stored, _ = await self._step(subject, lane, piece)
            for place, id in zip(places, stored, strict=False):
                ids[place] = id
            left = [place for place in left if ids[place] is None]
        raise _crowded(subject)

    async def _keyed(self, subject: str, draft: Draft) -> EntryId:
        lane = await self._lanes.make(subject)
        async with lane.turn:
            for attempt in range(_TRIES_MAX):
                lane = await self._ready(subject, [draft], attempt)
                known = await self._keys.known(subject, lane, draft.key, probe=attempt > 0)
                if known is not None:
                    return known
                ids, duplicate = await self._step(subject, lane, [draft], self._keys.header(subject, lane, draft.key))
                id = ids[0]
                if id is None:
                    continue
                if not duplicate:
                    self._keys.note(subject, draft.key, id)
                    return id
                first = await self._keys.first(subject, lane, draft.key, id.seq)
                if first is not None:
                    return first
                # By our clock its window is over: once more, under another name.
        raise _crowded(subject)

    async def _ready(self, subject: str, drafts: Sequence[Draft], attempt: int) -> Lane:
        """A lane whose tip is known, with room for the drafts."""
        if attempt > _PATIENCE:
            await asyncio.sleep(random.random() * min(_PAUSE_MAX, 0.001 * attempt))
        lane = await self._lanes.make(subject)
        await self._time.now()
        await self._check_room(subject, lane, drafts)
        if lane.tip is None:
            lane.tip = await self._lanes.tip_of(subject, lane, leader=attempt > 0)
        return lane

    async def _step(
        self, subject: str, lane: Lane, drafts: Sequence[Draft], msg_id: bytes = b""
    ) -> tuple[list[EntryId | None], bool]:
        """One piece behind the tip; no ids where another entry was stored first. True with it: the key was known."""
        wire = await self._link.ready()
        tip, lane.tip = lane.tip, None
        assert tip is not None, "the lane is ready"
        atomic = self._link.server.at_least(2, 12) if self._atomic is None else self._atomic
        stamp = max(self._time.reckoned_millis(), tip.ms)
        whole = atomic and len(drafts) > 1
        under_way = [Acks(self._link, stamp, len(drafts))] if whole else [Acks(self._link, stamp) for _ in drafts]
        ids: list[EntryId | None] = []
        try:
            if whole:
                data, after = self._batch(lane, drafts, tip, stamp, under_way[0].inbox)
            else:
                data, after = self._one_by_one(lane, drafts, tip, stamp, [acks.inbox for acks in under_way], msg_id)
            wire.send(data)
            for acks in under_way:
                ids += await self._confirmed(subject, acks, len(drafts) if whole else 1)
        except Cut as cut:
            raise _unknown(subject) from cut
        finally:
            for acks in under_way:
                acks.close()
        duplicate = under_way[0].duplicate
        if not duplicate and ids[-1] is not None:
            lane.tip = replace(after, seq=ids[-1].seq, expected=ids[-1].seq)
        return ids, duplicate

    async def _confirmed(self, subject: str, acks: Acks, count: int) -> Sequence[EntryId | None]:
        try:
            return await acks.wait()
        except Outdated:
            return [None] * count
        except Vanished:
            self._lanes.forget(subject)
            return [None] * count

    def _batch(
        self, lane: Lane, drafts: Sequence[Draft], tip: Tip, ms: int, inbox: bytes
    ) -> tuple[bytes, Tip]:
        """One atomic step; only its last message is answered."""
        name = self._salt + b"%d" % next(self._batches)
        subject, out = lane.subject.encode(), []
        number, total, last = tip.number, tip.total, len(drafts)
        extra = lane.condition(tip.expected)
        for place, draft in enumerate(drafts, 1):
            number += 1
            total += len(draft.body) if draft.fields is None else draft_bytes(draft)
            if draft.fields:
                extra += written_fields(draft.fields)
            if place == last:
                extra += _COMMIT
            header = b"NATS/1.0\r\nWrasse:%d %d %d\r\nNats-Batch-Id:%b\r\nNats-Batch-Sequence:%d\r\n%b\r\n" % (
                ms, number, total, name, place, extra,
            )  # fmt: skip
            size = len(header)
            out.append(b"HPUB %b %b %d %d\r\n" % (
                subject, inbox if place == last else b"", size, size + len(draft.body),
            ))  # fmt: skip
            out += (header, draft.body, b"\r\n")
            extra = b""
        return b"".join(out), Tip(tip.seq + last, ms, number, total, tip.expected + last)

    def _one_by_one(
        self, lane: Lane, drafts: Sequence[Draft], tip: Tip, ms: int, inboxes: Sequence[bytes], msg_id: bytes
    ) -> tuple[bytes, Tip]:
        """Each on condition that the one before it is the last."""
        subject, out = lane.subject.encode(), []
        for place, draft in enumerate(drafts):
            tip = Tip(tip.seq + 1, ms, tip.number + 1, tip.total + draft_bytes(draft), tip.expected + 1)
            extra = lane.condition(tip.expected - 1) if lane.own or not place else b""
            header = b"NATS/1.0\r\nWrasse:%d %d %d\r\n%b%b%b\r\n" % (
                ms, tip.number, tip.total, extra, msg_id, written_fields(draft.fields),
            )  # fmt: skip
            out.append(packed(subject, draft.body, inboxes[place], header))
        return b"".join(out), tip


def _unknown(subject: str) -> StoreUnavailable:
    return StoreUnavailable(f"an append to {subject!r} was not confirmed", do="look whether it was stored")


def _crowded(subject: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"other writers of {subject!r} were faster {_TRIES_MAX} times",
        do="write in larger batches, or from fewer processes",
    )
