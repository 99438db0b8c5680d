"""Groups on JetStream: each has a ledger in the stream of books. See `docs/design/015-nats-link.md`.

The server's own consumers would keep the deliveries, but could tell neither who holds what nor whether an ack counted,
and no trim could ask them for a floor in the moment it needs one.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from wrasse.backends.nats.appending import Appender
from wrasse.backends.nats.handouts import Handouts, Question
from wrasse.backends.nats.lanes import Lanes
from wrasse.backends.nats.ledger_entries import ACK, NAK, Extend, Join, Mark, Retire, Settle, frees
from wrasse.backends.nats.ledgers import Ledgers
from wrasse.backends.nats.link import Link, Subscription
from wrasse.backends.nats.positions import last_upto
from wrasse.backends.nats.progress import Progress
from wrasse.backends.nats.server_ages import Ages
from wrasse.backends.nats.stream_time import ServerTime
from wrasse.clock import from_micros, to_micros
from wrasse.errors import Refused
from wrasse.ports.groups import (
    Ack,
    Answer,
    ConsumerState,
    DeadLetter,
    Delivery,
    Nak,
    StartAt,
    check_answers,
    check_deliver,
    check_group,
)
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import START, Draft, EntryId

_MICROSECOND = timedelta(microseconds=1)
_ASKED_EVERY = 1.0  # while it waits: what it listens to may be lost with a connection
_SOON = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1)  # a message is heard before it is stored


class NatsGroups:
    """All groups behind one link."""

    def __init__(self, link: Link, lanes: Lanes, ledgers: Ledgers, appender: Appender, time: ServerTime) -> None:
        self._link = link
        self._lanes = lanes
        self._ledgers = ledgers
        self._appender = appender
        self._time = time
        self._handouts = Handouts(lanes, ledgers, time)
        self._progress = Progress(lanes.js)
        self._ages = Ages(lanes, ledgers)

    async def join(self, subject: str, group: str, start: StartAt) -> bool:
        check_group(subject, group)
        lane = await self._lanes.make(subject)
        await self._ages.end(lane)  # before the group is there: what it is promised stays
        ledger = self._ledgers.of(subject, group)
        if (await ledger.catch_up()).joined:
            return False
        made = bool(await ledger.submit(await self._beginning(subject, start)))
        await self._ages.end(lane)  # somebody who saw no group may have set one meanwhile
        return made

    async def _beginning(self, subject: str, start: StartAt) -> Join:
        if start.first:
            return Join(0, 0)
        lane = await self._lanes.make(subject)
        tip = await self._lanes.tip_of(subject, lane, leader=True)
        if start.at is None and start.after is None:
            return Join(tip.ms, tip.seq)
        if start.after is not None and start.after.seq <= tip.seq:
            return Join(start.after.ms, start.after.seq)
        start_ms = to_micros(start.at) // 1_000 if start.at is not None else (start.after or START).ms + 1
        if tip.ms < start_ms:
            return Join(tip.ms, tip.seq, start_ms)
        found = await last_upto(self._lanes, lane, EntryId(start_ms, 0).previous, 1, tip.seq)
        return Join(0, 0) if found is None else Join(found.ms, found.seq)

    async def deliver(
        self,
        subjects: Sequence[str],
        group: str,
        consumer: str,
        limit: int,
        *,
        ack_timeout: timedelta,
        wait: timedelta = timedelta(0),
    ) -> Sequence[Delivery]:
        limit = check_deliver(limit, ack_timeout)
        subjects = tuple(dict.fromkeys(subjects))
        asked = Question(group, consumer, limit, ack_timeout)
        delivered = await self._handouts.hand_out(subjects, asked)
        if delivered or not limit or wait <= timedelta(0):
            return delivered
        bell, listening = asyncio.Event(), []
        try:
            async with asyncio.timeout(wait.total_seconds()):
                for subject in subjects:
                    listening += await self._listened(bell, subject, group)
                delivered = await self._handouts.hand_out(subjects, asked)  # what came before we listened
                while not delivered:
                    rung = await self._rung(bell, subjects, group)
                    delivered = await self._handouts.hand_out(subjects, asked)
                    for pause in _SOON if rung else ():
                        if delivered:
                            break
                        await asyncio.sleep(pause)
                        delivered = await self._handouts.hand_out(subjects, asked)
        except TimeoutError:
            return delivered
        finally:
            for each in listening:
                each.end()
        return delivered

    async def _listened(self, bell: asyncio.Event, subject: str, group: str) -> list[Subscription]:
        """Rings when something is appended, or becomes due before its time."""
        stored, noted = self._lanes.layout.stored(subject), self._ledgers.of(subject, group).subject
        return [
            await self._link.listen(stored.encode(), lambda *_: bell.set()),
            await self._link.listen(noted.encode(), lambda *heard: bell.set() if frees(heard[3]) else None),
        ]

    async def _rung(self, bell: asyncio.Event, subjects: Sequence[str], group: str) -> bool:
        """Waits until something was said, something is due, or it is time to ask again."""
        due = min((self._ledgers.of(subject, group).state.next_due() for subject in subjects), default=1 << 62)
        left = min(_ASKED_EVERY, (due - to_micros(await self._time.now())) / 1e6)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(left, 0.001)):
                await bell.wait()
        rung = bell.is_set()
        bell.clear()
        return rung

    async def extend(
        self, consumer: str, deliveries: Sequence[Delivery], *, ack_timeout: timedelta
    ) -> Sequence[bool]:
        now = to_micros(await self._time.now())
        until = now + ack_timeout // _MICROSECOND
        by_group: dict[tuple[str, str], list[int]] = {}
        for place, delivery in enumerate(deliveries):
            by_group.setdefault((delivery.entry.subject, delivery.group), []).append(place)
        mine = [False] * len(deliveries)
        for (subject, group), places in by_group.items():
            ledger = self._ledgers.of(subject, group)
            if not ledger.state.joined and not (await ledger.catch_up()).joined:
                continue
            held = [_span(deliveries[place]) for place in places]
            answers = await ledger.submit(Extend(now, consumer, until, tuple(held)))
            for place, answer in zip(places, answers, strict=True):
                mine[place] = bool(answer)
        return tuple(mine)

    async def answer(self, answers: Sequence[Answer]) -> Sequence[Outcome]:
        letters = check_answers(answers)
        if letters:
            await self._post(answers)
        now = to_micros(await self._time.now())
        by_group: dict[tuple[str, str], list[int]] = {}
        for place, answer in enumerate(answers):
            by_group.setdefault((answer.subject, answer.group), []).append(place)
        outcomes = [Outcome.LOST] * len(answers)

        async def settle(subject: str, group: str, places: list[int]) -> None:
            ledger = self._ledgers.of(subject, group)
            if not ledger.state.joined and not (await ledger.catch_up()).joined:
                return
            runs = _runs([answers[place] for place in places])
            at = 0
            for run, row in zip(runs, await ledger.submit(Settle(now, tuple(runs))), strict=True):
                row = "1" * run[2] if row == run[2] else str(row)
                for place, done in zip(places[at : at + run[2]], row, strict=True):
                    if done == "1":
                        outcomes[place] = Outcome.DONE
                at += run[2]

        await asyncio.gather(*(settle(*key, places) for key, places in by_group.items()))
        return tuple(outcomes)

    async def _post(self, answers: Sequence[Answer]) -> None:
        """Dead letters are stored before their originals are acked: after a crash in between there are both, and a
        letter that is stored again within two minutes is the same one."""
        drafts: list[Draft] = []
        settled: set[tuple[str, str, EntryId]] = set()
        for answer in answers:
            key = (answer.subject, answer.group, answer.id)
            if isinstance(answer, DeadLetter) and key not in settled:
                state = await self._ledgers.of(answer.subject, answer.group).catch_up()
                if state.joined and state.find(answer.id) is not None:
                    draft = answer.draft
                    key_ = draft.key or _letter_key(answer)
                    drafts.append(Draft(draft.subject, draft.body, key_, draft.fields))
            if not isinstance(answer, Nak):
                settled.add(key)
        if drafts:
            await self._appender.append(drafts)

    async def mark(self, subject: str, group: str, upto: EntryId) -> Outcome:
        lane = await self._lanes.find(subject)
        ledger = self._ledgers.of(subject, group)
        if lane is None or not (state := await ledger.catch_up()).joined:
            return Outcome.LOST
        if upto == START or 0 < upto.seq <= state.floor_seq:
            self._progress.show(lane, subject, group, upto.seq)
            return Outcome.LOST
        tip = await self._lanes.tip_of(subject, lane, leader=True)
        if upto.seq > tip.seq or (not upto.seq and upto > EntryId(tip.ms, tip.seq)):
            raise Refused(
                f"the group {group!r} of {subject!r} would be marked beyond the last entry",
                do="read the stream again: entries still to come would count as acked",
            )
        if not await ledger.submit(Mark(upto.ms, upto.seq)):
            return Outcome.LOST
        if upto.seq:
            self._progress.show(lane, subject, group, upto.seq)
        return Outcome.DONE

    async def close(self) -> None:
        """Shows how far groups are for the last time."""
        await self._progress.close()

    async def consumers(self, subject: str, group: str) -> Sequence[ConsumerState]:
        state = await self._ledgers.of(subject, group).catch_up()
        return tuple(
            ConsumerState(subject, group, name, state.held(name), from_micros(seen), from_micros(until))
            for name, (seen, until) in sorted(state.consumers.items())
        )

    async def retire(self, subject: str, group: str, consumer: str) -> Outcome:
        ledger = self._ledgers.of(subject, group)
        if consumer not in (await ledger.catch_up()).consumers:
            return Outcome.LOST
        now = to_micros(await self._time.now())
        return Outcome.DONE if await ledger.submit(Retire(now, consumer)) else Outcome.LOST


def _span(delivery: Delivery) -> tuple[int, int, int, int]:
    return delivery.entry.id.seq, 1, delivery.entry.id.ms, delivery.number


def _runs(answers: Sequence[Answer]) -> list[tuple[int, int, int, int, int]]:
    """Answers as runs, in their order."""
    runs: list[tuple[int, int, int, int, int]] = []
    kind, first, last, at, delay = -1, 0, -2, 0, 0
    for answer in answers:
        seq, ms = answer.id.seq, answer.id.ms
        if type(answer) is Ack and kind == ACK and seq == last + 1 and ms == at:  # by far the commonest
            last = seq
            continue
        put_off = answer.delay // _MICROSECOND if isinstance(answer, Nak) else 0
        is_nak = NAK if isinstance(answer, Nak) else ACK
        if (kind, last + 1, at, delay) == (is_nak, seq, ms, put_off):
            last = seq
            continue
        if kind >= 0:
            runs.append((kind, first, last - first + 1, at, delay))
        kind, first, last, at, delay = is_nak, seq, seq, ms, put_off
    if kind >= 0:
        runs.append((kind, first, last - first + 1, at, delay))
    return runs


def _letter_key(letter: DeadLetter) -> str:
    return hashlib.sha256(f"letter {letter.subject} {letter.group} {letter.id}".encode()).hexdigest()
