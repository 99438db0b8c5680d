"""A consumer: delivers the messages of a subject or pattern to a handler, as a member of a group.

Guarantee. A message is delivered until it is acked; with `auto_ack` that is when the handler has returned, otherwise
when the handler acks it. An unanswered message is redelivered after `ack_timeout`, counted from when its handler ended:
while the handler runs, the deadline is extended. After `deliveries_max` deliveries, and at once if it is not an
envelope, it is moved to `<root>._deadletter.<domain>`, so that it does not block others. At most `inflight_max` are
unanswered at any time.

`close` fetches nothing more, lets running handlers end for up to `close_max`, releases messages that were not started,
and leaves the group if nothing is pending.

`InFlightDeliveries`: a delivery is in flight from when it is received until the backend has its answer, or until its
handler has ended without one and its deadline has passed: from then on another consumer may get it. Deadlines are
extended only for deliveries that wait for a handler or are in one.

`Outbox`: answers that are ready at the same time are sent in one call. The caller of each answer gets the backend's
outcome, or the error. One refused answer does not affect the others. Sending an answer twice after a lost reply is
harmless: an ack or a dead letter that was already made gets `conflict`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from wrasse.clock import Clock
from wrasse.errors import StoreBroken, StoreFull, StoreUnavailable, TooLarge, UsageError, WrasseError, exhausted
from wrasse.ports.groups import Ack, Answer, DeadLetter, Delivery, Groups, Nak, StartAt, check_group
from wrasse.ports.outcome import Outcome
from wrasse.ports.rules.subjects import check_pattern
from wrasse.ports.streams import EntryId, Streams
from wrasse.streams.delivery import (
    ROOT,
    Handler,
    HandlerCall,
    Received,
    dead_letter,
    envelope_in,
    is_dead_letter_subject,
    named_only,
)
from wrasse.streams.envelope import Envelope
from wrasse.streams.membership import JoinOptions, Membership, consumer_name
from wrasse.threads import cancelled

RELEASES_MAX = 10  # calls that end because this machine is out of a resource, before that counts as a failure
ANSWERS_MAX = 1_000  # in one call
_RETRY_MIN, _RETRY_MAX = 0.05, 2.0  # seconds before answers are sent again
_DELIVERIES_MAX = 100  # in one call
_WAIT = timedelta(seconds=1)  # how long one request waits
_PAUSE_MIN, _PAUSE_MAX = 0.1, 5.0  # seconds between requests while the backend is unavailable
_LEAVE_SECONDS_MAX = 10.0
_LATEST = StartAt()
_log = logging.getLogger(__name__)

Key = tuple[str, EntryId, int]  # subject, entry, number of the delivery


class StreamTally:
    """Counters of the consumers of this process. An answer is counted once the backend has said `done`."""

    __slots__ = ("acked", "again", "dead", "delivered", "dropped", "failed", "invalid", "nacked", "unavailable")

    def __init__(self) -> None:
        self.delivered = 0  # deliveries, of which
        self.again = 0  # were not the first of their entry
        self.acked = 0
        self.nacked = 0
        self.dead = 0  # set aside as dead letters
        self.failed = 0  # handlers that raised or took too long
        self.invalid = 0  # entries that are not envelopes
        self.dropped = 0  # dead letters that would have been set aside once more
        self.unavailable = 0  # calls that failed because the backend was unavailable


@dataclass(slots=True)
class _InFlight:
    delivery: Delivery
    deadline: float  # monotonic
    received: Received | None = None
    over: bool = False  # its handler has ended


class InFlightDeliveries:
    """The deliveries of one consumer."""

    def __init__(self, clock: Clock, inflight_max: int, ack_timeout: timedelta) -> None:
        self._clock = clock
        self._most = inflight_max
        self._seconds = ack_timeout.total_seconds()
        self._in_flight: dict[Key, _InFlight] = {}

    def __len__(self) -> int:
        return len(self._in_flight)

    def room(self) -> int:
        """How many more may be requested now."""
        now = self._clock.monotonic()
        for key in [key for key, each in self._in_flight.items() if each.over and each.deadline <= now]:
            del self._in_flight[key]
        return self._most - len(self._in_flight)

    def began(self, deliveries: Sequence[Delivery], requested_at: float) -> None:
        """Adds deliveries of a request that was sent at `requested_at`, which is no later than their start."""
        for delivery in deliveries:
            self._in_flight[key_of(delivery)] = _InFlight(delivery, requested_at + self._seconds)

    def handling(self, delivery: Delivery, received: Received) -> None:
        """A handler has started."""
        self._in_flight[key_of(delivery)].received = received

    def over(self, delivery: Delivery) -> None:
        """Its handler has ended; without an answer it stays until its deadline."""
        if (found := self._in_flight.get(key_of(delivery))) is not None:
            found.over = True

    def answered(self, delivery: Delivery) -> None:
        """The backend has its answer."""
        self._in_flight.pop(key_of(delivery), None)

    def kept(self) -> list[Delivery]:
        """Those whose deadlines are to be extended."""
        return [each.delivery for each in self._in_flight.values() if not each.over]

    def extended(self, deliveries: Sequence[Delivery], mine: Sequence[bool], requested_at: float) -> None:
        """The backend's answers to an extension: those that are no longer ours are removed."""
        for delivery, still_mine in zip(deliveries, mine, strict=True):
            found = self._in_flight.get(key_of(delivery))
            if found is None:
                continue
            if still_mine:
                found.deadline = requested_at + self._seconds
            else:
                del self._in_flight[key_of(delivery)]
                if found.received is not None:
                    found.received.lost = True

    def __contains__(self, delivery: Delivery) -> bool:
        return key_of(delivery) in self._in_flight


def key_of(delivery: Delivery) -> Key:
    """Identifies one delivery."""
    return delivery.entry.subject, delivery.entry.id, delivery.number


class Outbox:
    """The answers of one consumer."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._waiting: deque[tuple[Answer, asyncio.Future[Outcome]]] = deque()
        self._sending: list[tuple[Answer, asyncio.Future[Outcome]]] = []
        self._filled = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, answer: Answer) -> asyncio.Future[Outcome]:
        """Adds an answer; the future gets its outcome, or the error if it could not be sent."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((answer, future))
        self._filled.set()
        self._empty.clear()
        return future

    async def empty(self, seconds: float) -> bool:
        """Waits until all answers were sent, or failed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        return self._empty.is_set()

    async def run(self) -> None:
        """Sends until cancelled; pauses after a failure, with backoff."""
        pause = _RETRY_MIN
        while True:
            await self._filled.wait()
            if await self._send():
                pause = _RETRY_MIN
            else:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _RETRY_MAX)

    async def flush(self) -> None:
        """Sends what is left, once."""
        self._waiting.extendleft(reversed(self._sending))
        while self._waiting:
            await self._send()

    async def _send(self) -> bool:
        self._sending = [self._waiting.popleft() for _ in range(min(len(self._waiting), ANSWERS_MAX))]
        if not self._waiting:
            self._filled.clear()
        sent = await self._try(self._sending)
        self._sending = []
        if not self._waiting:
            self._empty.set()
        return sent

    async def _try(self, batch: list[tuple[Answer, asyncio.Future[Outcome]]]) -> bool:
        try:
            outcomes: list[Outcome | WrasseError] = [*await self._groups.answer([answer for answer, _ in batch])]
        except WrasseError as error:
            if len(batch) > 1 and not _is_unavailable(error):
                # One of them causes the error, such as a dead letter in a full stream.
                return all([await self._try([one]) for one in batch])
            outcomes = [error] * len(batch)
        for (_, future), outcome in zip(batch, outcomes, strict=True):
            _resolve(future, outcome)
        return not isinstance(outcomes[0], WrasseError)


def _is_unavailable(error: WrasseError) -> bool:
    return isinstance(error, StoreUnavailable) and not isinstance(error, StoreFull)


def _resolve(future: asyncio.Future[Outcome], what: Outcome | WrasseError) -> None:
    if future.done():
        return  # its caller was cancelled
    if isinstance(what, WrasseError):
        future.set_exception(what)
    else:
        future.set_result(what)


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The settings of a consumer."""

    auto_ack: bool = False
    start: StartAt = _LATEST  # where a new group begins
    ack_timeout: timedelta = timedelta(seconds=30)
    inflight_max: int = 100
    deliveries_max: int = 5
    concurrency: int = 1  # concurrent handlers; one keeps the order
    timeout: timedelta = timedelta(hours=1)  # how long a handler may take
    nak_delay: timedelta = timedelta(milliseconds=500)  # with auto_ack, after a failure; doubled for each further one
    nak_delay_max: timedelta = timedelta(seconds=10)
    discover: timedelta = timedelta(seconds=1)  # how soon a new stream that matches is found
    close_max: timedelta = timedelta(seconds=30)
    root: str = ROOT

    def __post_init__(self) -> None:
        for name in ("inflight_max", "deliveries_max", "concurrency", "ack_timeout", "timeout"):
            value = getattr(self, name)
            if value <= (timedelta(0) if isinstance(value, timedelta) else 0):
                raise UsageError(f"{name} of a consumer is {value}", do="use more than zero")

    def delay_after(self, number: int) -> timedelta:
        """The delay of a message after its `number`th failure."""
        return min(self.nak_delay * (1 << min(number - 1, 30)), self.nak_delay_max)


_DEFAULT = ConsumerSettings()


@dataclass(frozen=True, slots=True)
class StreamSubscription:
    """A handler of the messages of a subject or pattern, as a member of a group."""

    pattern: str
    group: str
    handler: Handler
    settings: ConsumerSettings = _DEFAULT


class Consumer:
    """One member of a group. `run` it once; `close` it from elsewhere."""

    def __init__(
        self,
        streams: Streams,
        groups: Groups,
        clock: Clock,
        subscription: StreamSubscription,
        tally: StreamTally | None = None,
    ) -> None:
        settings, group = subscription.settings, subscription.group
        check_pattern(subscription.pattern)
        check_group("any", group)
        self.name = consumer_name(clock)
        self.tally = tally if tally is not None else StreamTally()
        self._groups = groups
        self._clock = clock
        self._settings = settings
        self._group = group
        self._caller = HandlerCall(subscription.handler)
        join = JoinOptions(settings.start, settings.discover, settings.ack_timeout)
        self._members = Membership(streams, groups, clock, subscription.pattern, group, join)
        self._in_flight = InFlightDeliveries(clock, settings.inflight_max, settings.ack_timeout)
        self._outbox = Outbox(groups)
        self._queue: asyncio.Queue[Delivery | None] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()
        self._started = False

    @property
    def root(self) -> str:
        """The root of the stream for dead letters."""
        return self._settings.root

    async def run(self) -> None:
        """Delivers until `close`. Retries while the backend is unavailable; any other error ends it."""
        if self._started:
            raise UsageError("this consumer has run already", do="make another")
        self._started = True
        try:
            async with asyncio.TaskGroup() as tasks:
                helpers = [tasks.create_task(self._outbox.run()), tasks.create_task(self._extend_deadlines())]
                slots = [tasks.create_task(self._serve()) for _ in range(self._settings.concurrency)]
                puller = tasks.create_task(self._pull())
                await self._closing.wait()
                puller.cancel()
                await asyncio.wait([puller])
                await self._finish(slots)
                for task in (*slots, *helpers):
                    task.cancel()
        finally:
            try:
                await self._leave()
            finally:
                self._ended.set()

    async def close(self) -> None:
        """Ends `run`, and returns when it has ended."""
        self._closing.set()
        if self._started:
            await self._ended.wait()

    async def send(self, delivery: Delivery, answer: Answer) -> Outcome:
        """Sends one answer to the backend."""
        if self._ended.is_set():
            raise UsageError("this consumer is closed", do="answer before closing it; the message comes back")
        outcome = await self._outbox.put(answer)
        self._note_outcome(delivery, answer, outcome)
        return outcome

    async def _pull(self) -> None:
        pause = _PAUSE_MIN
        while True:
            try:
                await self._members.refresh()
                await self._fetch()
                pause = _PAUSE_MIN
            except (StoreUnavailable, StoreBroken) as error:
                if pause == _PAUSE_MIN and isinstance(error, StoreBroken):  # an operator has to repair it
                    _log.error("no messages are delivered: %s; %s", error.message, error.do)
                self.tally.unavailable += 1
                await asyncio.sleep(pause)
                pause = min(pause * 2, _PAUSE_MAX)

    async def _fetch(self) -> None:
        room = min(self._in_flight.room(), _DELIVERIES_MAX)
        wait = min(_WAIT, self._settings.discover)
        if room <= 0 or not self._members.subjects:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(wait, self._settings.ack_timeout / 4).total_seconds()):
                    await self._changed.wait()
            return
        requested_at = self._clock.monotonic()
        delivered = await self._groups.deliver(
            self._members.subjects, self._group, self.name, room, ack_timeout=self._settings.ack_timeout, wait=wait
        )
        self._in_flight.began(delivered, requested_at)
        for delivery in delivered:
            self.tally.delivered += 1
            self.tally.again += delivery.number > 1
            self._queue.put_nowait(delivery)

    async def _serve(self) -> None:
        """One concurrency slot: handles one message after another."""
        while (delivery := await self._queue.get()) is not None:
            if delivery not in self._in_flight:
                continue  # it waited too long in this queue; another consumer may have it
            if self._closing.is_set():
                self._send_answer(delivery, self._nak(delivery))
                continue
            try:
                envelope = envelope_in(delivery.entry, self.root)
            except StoreBroken:
                self.tally.invalid += 1
                self._set_aside(delivery, "the entry is not an envelope", delivery.number)
                continue
            if delivery.number > self._settings.deliveries_max:
                most = self._settings.deliveries_max
                self._set_aside(delivery, f"not acked in {most} deliveries", most)
                continue
            await self._handle(delivery, envelope)

    async def _handle(self, delivery: Delivery, envelope: Envelope) -> None:
        received = Received(delivery, envelope, self)
        self._in_flight.handling(delivery, received)
        try:
            finished = await self._call_handler(delivery, envelope, received)
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            if isinstance(error, asyncio.CancelledError) and cancelled():
                if not received.answered and not self._caller.plain:
                    self._send_answer(delivery, self._nak(delivery))
                raise
            self._failed(delivery, received, error)
        else:
            if finished and self._settings.auto_ack and not received.answered:
                self._send_answer(delivery, Ack(delivery.entry.subject, self._group, delivery.entry.id))
        finally:
            self._in_flight.over(delivery)

    async def _call_handler(self, delivery: Delivery, envelope: Envelope, received: Received) -> bool:
        """Calls the handler. If this machine is out of files, memory or disk, it is called again with the same
        delivery, without spending one of `deliveries_max`; False if the consumer ended before it succeeded."""
        for tries in range(1, RELEASES_MAX + 2):
            try:
                async with asyncio.timeout(self._settings.timeout.total_seconds()):
                    await self._caller.call(delivery, envelope, received)
                return True
            except Exception as error:
                short = exhausted(error)
                if not short or received.answered or received.lost or tries > RELEASES_MAX:
                    raise
                _log.warning(
                    "a handler of messages waits: this machine is out of a resource",
                    extra={"source": delivery.entry.subject, "error": short, "attempt": delivery.number},
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.delay_after(tries).total_seconds()):
                    await self._closing.wait()
            if self._closing.is_set():
                self._send_answer(delivery, self._nak(delivery))
                break
        return False

    def _failed(self, delivery: Delivery, received: Received, error: BaseException) -> None:
        self.tally.failed += 1
        kind = type(error).__name__
        _log.warning(
            "a handler of messages failed",
            extra={"source": delivery.entry.subject, "error": kind, "attempt": delivery.number},
        )
        if not self._settings.auto_ack or received.answered or received.lost:
            return
        if delivery.number >= self._settings.deliveries_max:
            self._set_aside(delivery, f"{kind}: {error}", delivery.number)
        else:
            self._send_answer(delivery, self._nak(delivery, self._settings.delay_after(delivery.number)))

    def _nak(self, delivery: Delivery, delay: timedelta = timedelta(0)) -> Nak:
        return Nak(delivery.entry.subject, self._group, delivery.entry.id, delay)

    def _set_aside(self, delivery: Delivery, reason: str, deliveries: int) -> None:
        entry = delivery.entry
        if is_dead_letter_subject(entry.subject, self.root):
            self.tally.dropped += 1
            _log.error(
                "a dead letter could not be handled either and is dropped",
                extra={"source": entry.subject, "key": str(entry.id), "reason": "dead_letter"},
            )
            self._send_answer(delivery, Ack(entry.subject, self._group, entry.id))
        else:
            self._send_answer(delivery, dead_letter(delivery, reason, deliveries=deliveries, root=self.root))

    def _send_answer(self, delivery: Delivery, answer: Answer) -> None:
        """Sends an answer of the consumer itself. If it cannot be sent it is retried: the message must not be handled
        twice."""
        self._outbox.put(answer).add_done_callback(partial(self._answer_sent, delivery, answer))

    def _answer_sent(self, delivery: Delivery, answer: Answer, sent: asyncio.Future[Outcome]) -> None:
        if sent.cancelled():
            return
        error = sent.exception()
        if error is None:
            self._note_outcome(delivery, answer, sent.result())
        elif isinstance(error, StoreUnavailable) and not self._closing.is_set() and delivery in self._in_flight:
            self._send_answer(delivery, answer)
        elif isinstance(error, TooLarge) and isinstance(answer, DeadLetter) and delivery in self._in_flight:
            self._send_answer(delivery, named_only(answer))

    def _note_outcome(self, delivery: Delivery, answer: Answer, outcome: Outcome) -> None:
        self._in_flight.answered(delivery)
        self._changed.set()
        if outcome is not Outcome.DONE:
            return
        match answer:
            case Ack():
                self.tally.acked += 1
            case Nak():
                self.tally.nacked += 1
            case DeadLetter():
                self.tally.dead += 1

    async def _extend_deadlines(self) -> None:
        """Extends deadlines while handlers run or messages wait for one."""
        every = self._settings.ack_timeout.total_seconds() / 3
        while True:
            await asyncio.sleep(every)
            kept = self._in_flight.kept()
            if not kept:
                continue
            requested_at = self._clock.monotonic()
            try:
                mine = await self._groups.extend(self.name, kept, ack_timeout=self._settings.ack_timeout)
            except StoreUnavailable:
                self.tally.unavailable += 1
                continue
            self._in_flight.extended(kept, mine, requested_at)

    async def _finish(self, slots: list[asyncio.Task[None]]) -> None:
        for _ in slots:
            self._queue.put_nowait(None)
        await asyncio.wait(slots, timeout=self._settings.close_max.total_seconds())
        # Cancelled during the call, an answer would have an unknown outcome and have to be sent again.
        await self._outbox.empty(_LEAVE_SECONDS_MAX)

    async def _leave(self) -> None:
        """Sends the last answers, releases messages not started, and leaves the group if nothing is pending."""
        self._closing.set()
        while not self._queue.empty():
            if (delivery := self._queue.get_nowait()) is not None and delivery in self._in_flight:
                self._send_answer(delivery, self._nak(delivery))
        with suppress(TimeoutError, StoreUnavailable):  # unsent answers are redelivered after their deadlines
            async with asyncio.timeout(_LEAVE_SECONDS_MAX):
                await self._outbox.flush()
                await asyncio.sleep(0)  # the answers have come; their callbacks have not
                if not len(self._in_flight):
                    await self._members.leave(self.name)
