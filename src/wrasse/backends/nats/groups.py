"""Groups on JetStream: durable pull consumers for groups that share work, marks for groups that read by cursor.

The server keeps what is delivered, until when, and what is acked. Acks, naks and progress are confirmed by the server
before they count. This process keeps its open deliveries only to know the reply subjects of their acks.

Groups of earlier versions kept a ledger of commands (`LedgerGroups`), which is read once, so that they continue at
their position. A group that is joined becomes a durable (or a mark) that begins after what its ledger had settled, and
only then is the ledger removed: after a crash in between the next join removes it. Entries that the ledger does not
prove to be settled are delivered again. Workers of an earlier version that still run then fail with "there is no
group".
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from wrasse.backends.nats.append import Appender
from wrasse.backends.nats.client.connection import NatsConnection, NoResponders, packed, status_of
from wrasse.backends.nats.client.jetstream import JetStream, ServerTime
from wrasse.backends.nats.durables import NAK, Durable, Durables, PulledMessage, Pulls
from wrasse.backends.nats.group_cursors import Ages, GroupProgress, Marks
from wrasse.backends.nats.message_codec import NatsNames, entry, pulled
from wrasse.backends.nats.page_reader import PageReader
from wrasse.backends.nats.stream_map import StreamMap
from wrasse.bounded import UNREADABLE
from wrasse.clock import to_micros
from wrasse.errors import Refused, StoreBroken, StoreUnavailable, UsageError
from wrasse.ports.groups import (
    Answer,
    ConsumerState,
    DeadLetter,
    Delivery,
    Nak,
    StartAt,
    check_answers,
    check_deliver,
    check_group,
    no_group,
)
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import START, Draft, EntryId

_ACK, _PROGRESS = b"+ACK", b"+WPI"
_OPEN_MAX = 200_000  # open deliveries of one group whose reply subjects are known
_NOW = timedelta(0)
_MICROSECOND = timedelta(microseconds=1)
_TRIES = 50
_KEEPS_NAKS = (2, 10)  # older servers may answer a dead pull request with a nacked message
_LEDGER_PAGE = 1_000
_SNAPSHOT, _POSITIONS, _ACKS, _GONE = "S", ("j", "m"), ("a", "n"), "g"  # the commands of a ledger
_LEDGER_ACK = 0

Beginning = tuple[EntryId, Mapping[str, object]]  # where a group begins, for a mark and for a durable


@dataclass(frozen=True, slots=True)
class OpenDelivery:
    """A delivery of this process, with the subject of its ack. After a nak it can still be acked, not extended."""

    ms: int
    number: int
    reply: bytes
    ours: bool = True


class NatsGroups:
    """All groups over one connection."""

    def __init__(
        self,
        connection: NatsConnection,
        stream_map: StreamMap,
        marks: Marks,
        durables: Durables,
        appender: Appender,
        time: ServerTime,
    ) -> None:
        self._connection = connection
        self._stream_map = stream_map
        self._marks = marks
        self._durables = durables
        self._appender = appender
        self._time = time
        self._pulls = Pulls(stream_map.js)
        self._ledgers = LedgerGroups(stream_map.js, stream_map.layout, stream_map.reader)
        self._progress = GroupProgress(stream_map.js)
        self._ages = Ages(stream_map, marks)
        self._known: dict[tuple[str, str], Durable] = {}
        self._open: dict[tuple[str, str], dict[int, OpenDelivery]] = {}
        self._turn = 0

    async def join(
        self, subject: str, group: str, start: StartAt, *, ack_timeout: timedelta | None = None, cursor: bool = False
    ) -> bool:
        check_group(subject, group)
        subject_stream = await self._stream_map.make(subject)
        await self._ages.end(subject_stream)  # before the group exists: its entries must stay
        marked = await self._marks.get(subject, group)
        if marked is not None and not cursor:
            raise Refused(
                f"the group {group!r} of {subject!r} is moved by a cursor", do="use another group for a consumer"
            )
        settled = await self._ledgers.floor(subject, group)
        after, begins = await self._beginning(subject, start if settled is None else StartAt(after=settled))
        if settled is not None and not cursor:
            self._check_theirs(await self._durables.find(subject_stream, group), subject, settled)
        if cursor:
            made = marked is None and await self._marks.put(subject, group, after)
        else:
            self._known[subject, group], made = await self._durables.join(subject_stream, group, begins, ack_timeout)
        if settled is not None:
            await self._ledgers.remove(subject, group)
        await self._ages.end(subject_stream)  # a process that saw no group may have set one meanwhile
        return made and settled is None

    def _check_theirs(self, found: Durable | None, subject: str, settled: EntryId) -> None:
        """Refuses to continue from a ledger with a durable of another program: its position differs."""
        if found is not None and not found.ours:
            layout = self._stream_map.layout
            raise Refused(
                f"the group {found.group!r} of {subject!r} has a ledger of an earlier version, settled up to "
                f"{settled}, and {found.stream!r} a durable of its name that another program made, acked up "
                f"to {found.floor}",
                do="delete that durable, and the group continues from its ledger; or delete the ledger: "
                f"nats stream purge {layout.books} --subject={layout.ledger(subject, found.group)}",
            )

    async def _beginning(self, subject: str, start: StartAt) -> Beginning:
        if start.first:
            return START, {"deliver_policy": "all"}
        subject_stream = await self._stream_map.make(subject)
        tip = await self._stream_map.tip_of(subject, subject_stream, leader=True)
        latest = EntryId(tip.ms, tip.seq)
        if start.at is not None and to_micros(start.at) > to_micros(await self._time.now()):
            raise UsageError(
                "a group on NATS cannot begin at a future moment",
                do="join it then, or begin it now: messages until then count",
            )
        if start.after is not None and start.after.seq <= tip.seq:
            return _behind(start.after)
        if start.at is None and start.after is None:
            return latest, {"deliver_policy": "new"}
        start_ms = to_micros(start.at) // 1_000 if start.at is not None else (start.after or START).ms + 1
        if tip.ms < start_ms:
            return _behind(latest)
        found = await self._stream_map.last_upto(subject_stream, EntryId(start_ms, 0).previous, 1, tip.seq)
        return _behind(found or START)

    async def deliver(
        self,
        subjects: Sequence[str],
        group: str,
        consumer: str,
        limit: int,
        *,
        ack_timeout: timedelta,
        wait: timedelta = _NOW,
    ) -> Sequence[Delivery]:
        limit = check_deliver(limit, ack_timeout)
        durables = {subject: await self._durable(subject, group) for subject in subjects}
        if not limit:
            return ()
        now = await self._time.now()
        if len(durables) == 1:
            ((subject, durable),) = durables.items()
            return self._deliveries(subject, durable, consumer, await self._ask(subject, durable, limit, wait), now)
        given = await self._ready(durables, limit)
        if not given and wait > _NOW:
            given = await self._first(durables, limit, wait)
        found = [each for s, got in given.items() for each in self._deliveries(s, durables[s], consumer, got, now)]
        return sorted(found, key=lambda each: (each.number == 1, each.entry.id, each.entry.subject))

    async def _durable(self, subject: str, group: str) -> Durable:
        known = self._known.get((subject, group))
        if known is not None:
            return known
        subject_stream = await self._stream_map.find(subject)
        found = None if subject_stream is None else await self._durables.find(subject_stream, group)
        if found is None:
            raise no_group(group, subject)
        self._known[subject, group] = found
        return found

    async def _ask(self, subject: str, durable: Durable, limit: int, wait: timedelta) -> list[PulledMessage]:
        if durable.most > 0:
            limit = min(limit, durable.most)  # else the messages of a page would wait for the rest of it
        try:
            return await self._pulls.ask(durable.stream, durable.name, limit, wait)
        except NoResponders:
            del self._known[subject, durable.group]
            await self._durable(subject, durable.group)  # raises if it was deleted
            raise StoreUnavailable(
                f"the durable {durable.name!r} of {durable.stream!r} has no leader now", do="wait and try again"
            ) from None

    async def _ready(self, durables: Mapping[str, Durable], limit: int) -> dict[str, list[PulledMessage]]:
        """The messages available now: a share of each stream, filled up from the others."""
        self._turn += 1
        names = list(durables)
        left = names[self._turn % len(names) :] + names[: self._turn % len(names)]  # another one first each time
        found: dict[str, list[PulledMessage]] = {}
        while limit and left:
            share, extra = divmod(limit, len(left))
            shares = {subject: share + (place < extra) for place, subject in enumerate(left) if share or place < extra}
            for subject, got in zip(shares, await self._all(durables, shares), strict=True):
                if got:
                    found.setdefault(subject, []).extend(got)
                limit -= len(got)
                if len(got) < shares[subject]:
                    left.remove(subject)
        return found

    async def _all(self, durables: Mapping[str, Durable], shares: Mapping[str, int]) -> list[list[PulledMessage]]:
        """Pulls from several at once; if one fails, the messages of the others are nacked."""
        asking = [self._ask(each, durables[each], limit, _NOW) for each, limit in shares.items()]
        results = await asyncio.gather(*asking, return_exceptions=True)
        errors = [each for each in results if isinstance(each, BaseException)]
        if errors:
            self._pulls.nack([one.reply for got in results if isinstance(got, list) for one in got])
            raise errors[0]
        return [got for got in results if isinstance(got, list)]

    async def _first(
        self, durables: Mapping[str, Durable], limit: int, wait: timedelta
    ) -> dict[str, list[PulledMessage]]:
        """Waits at all of them, and returns the first messages; those beyond the limit are nacked."""
        each = max(limit // len(durables), 1)
        asking = {asyncio.ensure_future(self._ask(s, durable, each, wait)): s for s, durable in durables.items()}
        waiting = set(asking)
        got = False
        whole = False
        found: dict[str, list[PulledMessage]] = {}
        try:
            while waiting and not got:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                got = any(one.exception() is not None or one.result() for one in done)
            whole = True
        finally:
            for one in asking:
                one.cancel()
            failed: BaseException | None = None
            for one, result in zip(asking, await asyncio.gather(*asking, return_exceptions=True), strict=True):
                if isinstance(result, list):
                    kept = result[:limit] if whole else []
                    self._pulls.nack([given.reply for given in result[len(kept) :]])
                    limit -= len(kept)
                    found |= {asking[one]: kept} if kept else {}
                elif isinstance(result, Exception):
                    failed = result
        if failed is not None and not found:
            raise failed
        return found

    def _deliveries(
        self, subject: str, durable: Durable, consumer: str, given: Sequence[PulledMessage], now: datetime
    ) -> list[Delivery]:
        known = self._open.setdefault((subject, durable.group), {})
        until, found = now + durable.ack_wait, []
        for each in given:
            count, seq, rest = _parts_of_reply(each.reply)
            message = pulled(seq, rest, each.header, each.body)
            known.pop(message.seq, None)  # keeps the order of arrival
            known[message.seq] = OpenDelivery(message.ms, count, each.reply)
            found.append(Delivery(entry(subject, message, message.ms), durable.group, consumer, count, until))
        while len(known) > _OPEN_MAX:
            del known[next(iter(known))]
        return found

    async def extend(self, consumer: str, deliveries: Sequence[Delivery], *, ack_timeout: timedelta) -> Sequence[bool]:
        known = [self._open_delivery(each.entry.subject, each.group, each.entry.id) for each in deliveries]
        mine = [
            delivery if delivery is not None and delivery.ours and delivery.number == each.number else None
            for delivery, each in zip(known, deliveries, strict=True)
        ]
        await self._confirmed([(delivery.reply, _PROGRESS) for delivery in mine if delivery is not None])
        return tuple(delivery is not None for delivery in mine)

    async def answer(self, answers: Sequence[Answer]) -> Sequence[Outcome]:
        check_answers(answers)
        answered: dict[tuple[str, str, int], tuple[OpenDelivery, bool]] = {}  # and whether it is settled
        outcomes, sent, dead_letters = [], list[tuple[bytes, bytes]](), list[Draft]()
        for answer in answers:
            place = answer.subject, answer.group, answer.id.seq
            delivery = self._open_delivery(answer.subject, answer.group, answer.id)
            if delivery is None or answered.get(place, (delivery, False))[1]:
                outcomes.append(Outcome.CONFLICT)
                continue
            outcomes.append(Outcome.DONE)
            answered[place] = delivery, not isinstance(answer, Nak)
            sent.append((delivery.reply, _ACK if not isinstance(answer, Nak) else _nak(answer.delay)))
            if isinstance(answer, DeadLetter):
                draft = answer.draft
                dead_letters.append(Draft(draft.subject, draft.body, draft.key or _letter_key(answer), draft.fields))
        if dead_letters:
            # Stored before its original is acked: after a crash in between it is stored again under the same key.
            await self._appender.append(dead_letters)
        if not self._connection.server.at_least(*_KEEPS_NAKS):
            await self._forget_waiting({place[:2] for place, (_, settled) in answered.items() if not settled})
        await self._confirmed(sent)
        for (subject, group, seq), (delivery, settled) in answered.items():
            known = self._open[subject, group]
            if settled:
                known.pop(seq, None)  # also one that was delivered again meanwhile: the server acks by sequence
            elif known.get(seq) is delivery:
                known[seq] = OpenDelivery(delivery.ms, delivery.number, delivery.reply, ours=False)
        return tuple(outcomes)

    async def _forget_waiting(self, groups: Iterable[tuple[str, str]]) -> None:
        """Makes an old server drop dead pull requests, which it does when a durable's state is requested. Otherwise it
        would send a nacked message to one of these: that waits for AckWait, the next is delivered twice."""
        durables = [self._known[each] for each in groups if each in self._known]
        await asyncio.gather(*(self._durables.drop_dead_pulls(each) for each in durables))

    def _open_delivery(self, subject: str, group: str, id: EntryId) -> OpenDelivery | None:
        found = self._open.get((subject, group), {}).get(id.seq)
        return found if found is not None and found.ms == id.ms else None

    async def _confirmed(self, sent: Sequence[tuple[bytes, bytes]]) -> None:
        """Sends acks or naks, and waits until the server has confirmed every one."""
        if not sent:
            return
        left = len(sent)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def heard(_: bytes, __: bytes, header: bytes, ___: bytes) -> None:
            nonlocal left
            left -= 1
            if header and status_of(header) == 503:
                lost("the consumer does not exist or has no leader now")
            elif not left and not done.done():
                done.set_result(None)

        def lost(why: str) -> None:
            if not done.done():
                done.set_exception(StoreUnavailable(f"acks of a group were not confirmed: {why}", do="send them again"))

        inbox = self._connection.open_inbox(heard, lost)
        seconds = self._connection.options.read_timeout.total_seconds()
        try:
            await self._connection.send(b"".join([packed(reply, what, inbox) for reply, what in sent]), now=True)
            async with asyncio.timeout(seconds):
                await done
        except TimeoutError:
            raise StoreUnavailable(
                f"{self._connection.options.where} did not confirm {left} acks in {seconds:g}s", do="send them again"
            ) from None
        finally:
            self._connection.close_inbox(inbox)
            if done.done() and not done.cancelled():
                done.exception()

    async def mark(self, subject: str, group: str, upto: EntryId) -> Outcome:
        subject_stream = await self._stream_map.find(subject)
        mark = None if subject_stream is None else await self._marks.get(subject, group)
        if subject_stream is None or mark is None:
            if subject_stream is not None and await self._durables.find(subject_stream, group) is not None:
                raise Refused(
                    f"the group {group!r} of {subject!r} is a durable consumer",
                    do="ack its messages instead of marking",
                )
            return Outcome.CONFLICT
        if upto == START or 0 < upto.seq <= mark.at.seq:
            self._progress.show(subject_stream, subject, group, mark.at.seq)
            return Outcome.CONFLICT
        tip = await self._stream_map.tip_of(subject, subject_stream, leader=True)
        if upto.seq > tip.seq or (not upto.seq and upto > EntryId(tip.ms, tip.seq)):
            raise Refused(
                f"the group {group!r} of {subject!r} would be marked beyond the last entry",
                do="read the stream again: a mark there would count future entries as acked",
            )
        for _ in range(_TRIES):
            if mark is None or mark.at.seq >= upto.seq:
                return Outcome.CONFLICT
            if await self._marks.put(subject, group, upto, mark.revision):
                self._progress.show(subject_stream, subject, group, upto.seq)
                return Outcome.DONE
            mark = await self._marks.get(subject, group)
        raise StoreUnavailable(f"too many processes mark the group {group!r} at once", do="try again")

    async def close(self) -> None:
        """Writes the last progress of groups."""
        await self._progress.close()

    async def consumers(self, subject: str, group: str) -> Sequence[ConsumerState]:
        """None: the server does not keep to which consumer an entry was delivered."""
        return ()

    async def retire(self, subject: str, group: str, consumer: str) -> Outcome:
        """Nothing to do: a consumer's entries are delivered again when AckWait is over."""
        return Outcome.CONFLICT


def _behind(after: EntryId) -> Beginning:
    return after, {"deliver_policy": "by_start_sequence", "opt_start_seq": after.seq + 1}


def _nak(delay: timedelta) -> bytes:
    return NAK + b' {"delay":%d}' % (delay // _MICROSECOND * 1_000) if delay > _NOW else NAK


def _parts_of_reply(reply: bytes) -> tuple[int, bytes, bytes]:
    """From the reply subject of a delivery: its delivery count, its sequence, and what follows that."""
    words = reply.split(b".")
    at = 4 if len(words) == 9 else 6  # more words where it came from a domain
    if len(words) < at + 5 or not b"".join(words[at : at + 5]).isdigit():
        raise StoreUnavailable("a message came without a reply subject", do="look at the server's log")
    return int(words[at]), words[at + 1], b".".join(words[at + 2 : at + 5])


def _letter_key(dead_letter: DeadLetter) -> str:
    return hashlib.sha256(f"letter {dead_letter.subject} {dead_letter.group} {dead_letter.id}".encode()).hexdigest()


class LedgerGroups:
    """The ledgers that are left in the stream of notes."""

    def __init__(self, js: JetStream, layout: NatsNames, reader: PageReader) -> None:
        self._js = js
        self._layout = layout
        self._reader = reader

    async def floor(self, subject: str, group: str) -> EntryId | None:
        """Up to where a ledger proves all entries settled; None if there is no ledger."""
        name, bodies, after = self._layout.ledger(subject, group), list[bytes](), 0
        if await self._reader.one(self._layout.books, {"last_by_subj": name}, leader=True) is None:
            return None
        more = True
        while more:
            page, more = await self._reader.page(self._layout.books, name, after, _LEDGER_PAGE)
            bodies += [message.body for message in page]
            after = page[-1].seq if page else after
        return floor_of(bodies)

    async def remove(self, subject: str, group: str) -> None:
        """Deletes a ledger."""
        await self._js.call(f"STREAM.PURGE.{self._layout.books}", {"filter": self._layout.ledger(subject, group)})


def floor_of(bodies: Iterable[bytes]) -> EntryId:
    """The position up to which a ledger settled everything; lower if uncertain. Pure."""
    floor, settled = EntryId(0, 0), dict[int, int]()  # ranges: first sequence and the one behind the last
    try:
        for kind, version, _, told in map(json.loads, bodies):
            if version != 1:
                raise ValueError("another version")
            if kind == _SNAPSHOT:
                floor, settled = _snapshot(told)
            elif kind in _POSITIONS and told[1] >= floor.seq:
                floor = EntryId(told[0], told[1])
            elif kind in _ACKS:
                settled |= {answer[1]: answer[1] + answer[2] for answer in told[1] if answer[0] == _LEDGER_ACK}
            elif kind == _GONE:
                settled |= {seq: seq + count for seq, count in told[0]}
    except UNREADABLE as error:
        raise StoreBroken("a ledger of a group cannot be read", do="look at the stream of notes") from error
    for first, end in sorted(settled.items()):
        if first <= floor.seq + 1 < end:
            floor = EntryId(floor.ms, end - 1)
    return floor


def _snapshot(told: dict[str, Any]) -> tuple[EntryId, dict[int, int]]:
    """The floor of a whole state, and what is settled between the runs that are pending above it."""
    ms, delivered = told["delivered"]
    runs = sorted((run[0], run[0] + run[1], run[2]) for run in told["runs"])
    if not runs:
        return EntryId(ms, delivered), {}
    ends = [*(first for first, _, _ in runs[1:]), delivered + 1]
    between = {end: following for (_, end, _), following in zip(runs, ends, strict=True) if end < following}
    return EntryId(runs[0][2], runs[0][0]).previous, between
