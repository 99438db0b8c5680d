"""A consumer: delivers the messages of a subject or pattern to a handler, as a member of a group.

Promise. A message is delivered until it is acked; with `auto_ack` that is when the handler has returned, otherwise when
the handler says so. One that is not answered comes back after `ack_timeout`, counted from when its handler ended: while
it runs, its deadline is moved on. After `deliveries_max` deliveries, and at once if it is no envelope, it goes to
`<root>._deadletter.<domain>`, and nothing blocks behind it. No more than `inflight_max` are unanswered at any time.

`close` takes nothing more, lets running handlers end for up to `close_max`, gives back at once what did not start, and
leaves the group if nothing is pending.

What a consumer has been given and has not answered: never more than `inflight_max`.

A delivery is in flight from when it is handed out until the backend has its answer, or until its handler is over
without one and its deadline has passed: from then on it is anybody's. Only what waits for a handler or is in one has
its deadline moved on. Pure but for the clock.

Answers on their way to the backend: those that are ready at the same time go in one call.

Promise. Whoever hands in an answer is told what the backend said, or that it could not be asked. One answer that the
backend refuses does not spoil the others. Sending an answer twice after a lost reply is harmless: an ack or a dead
letter that was made is `conflict` the second time.
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
from wrasse.streams.dead_letter import ROOT, dead_letter, envelope_in, is_dead_letter_subject, named_only
from wrasse.streams.delivery import Handler, HandlerCall, Received
from wrasse.streams.envelope import Envelope
from wrasse.streams.membership import Membership, consumer_name
from wrasse.streams.tally import StreamTally
from wrasse.threads import cancelled

Key = tuple[str, EntryId, int]


@dataclass(slots=True)
class _Flight:
    delivery: Delivery
    until: float  # monotonic
    received: Received | None = None
    over: bool = False  # its handler has ended


class InFlightDeliveries:
    """The deliveries of one consumer."""

    def __init__(self, clock: Clock, inflight_max: int, ack_timeout: timedelta) -> None:
        self._clock = clock
        self._most = inflight_max
        self._seconds = ack_timeout.total_seconds()
        self._flights: dict[Key, _Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def room(self) -> int:
        """How many more may be asked for now."""
        now = self._clock.monotonic()
        for key in [key for key, flight in self._flights.items() if flight.over and flight.until <= now]:
            del self._flights[key]
        return self._most - len(self._flights)

    def began(self, deliveries: Sequence[Delivery], asked_at: float) -> None:
        """Notes what was handed out in answer to a question asked at `asked_at`, which is no later than it began."""
        for delivery in deliveries:
            self._flights[key_of(delivery)] = _Flight(delivery, asked_at + self._seconds)

    def handling(self, delivery: Delivery, received: Received) -> None:
        """A handler has it now."""
        self._flights[key_of(delivery)].received = received

    def over(self, delivery: Delivery) -> None:
        """Its handler has ended; without an answer it stays until its deadline."""
        if (flight := self._flights.get(key_of(delivery))) is not None:
            flight.over = True

    def answered(self, delivery: Delivery) -> None:
        """The backend has its answer."""
        self._flights.pop(key_of(delivery), None)

    def kept(self) -> list[Delivery]:
        """Those whose deadlines are to be moved on."""
        return [flight.delivery for flight in self._flights.values() if not flight.over]

    def extended(self, deliveries: Sequence[Delivery], mine: Sequence[bool], asked_at: float) -> None:
        """What the backend said to moving them on: those that are no longer ours leave."""
        for delivery, held in zip(deliveries, mine, strict=True):
            flight = self._flights.get(key_of(delivery))
            if flight is None:
                continue
            if held:
                flight.until = asked_at + self._seconds
            else:
                del self._flights[key_of(delivery)]
                if flight.received is not None:
                    flight.received.lost = True

    def __contains__(self, delivery: Delivery) -> bool:
        return key_of(delivery) in self._flights


def key_of(delivery: Delivery) -> Key:
    """What tells one hand-out from every other."""
    return delivery.entry.subject, delivery.entry.id, delivery.number


BATCH_MAX = 1_000
_RETRY_MIN, _RETRY_MAX = 0.05, 2.0


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
        """Hands in an answer; the future has what became of it, or the error if it could not be sent."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((answer, future))
        self._filled.set()
        self._empty.clear()
        return future

    async def empty(self, seconds: float) -> bool:
        """Waits until all that was handed in was sent, or failed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        return self._empty.is_set()

    async def run(self) -> None:
        """Sends until cancelled; after a failure it pauses, longer each time."""
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
        self._sending = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH_MAX))]
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
            if len(batch) > 1 and not _nobody_home(error):
                # One of them is at fault, such as a dead letter that finds no room.
                return all([await self._try([one]) for one in batch])
            outcomes = [error] * len(batch)
        for (_, future), outcome in zip(batch, outcomes, strict=True):
            _tell(future, outcome)
        return not isinstance(outcomes[0], WrasseError)


def _nobody_home(error: WrasseError) -> bool:
    return isinstance(error, StoreUnavailable) and not isinstance(error, StoreFull)


def _tell(future: asyncio.Future[Outcome], what: Outcome | WrasseError) -> None:
    if future.done():
        return  # whoever asked has gone
    if isinstance(what, WrasseError):
        future.set_exception(what)
    else:
        future.set_result(what)


_BATCH_MAX = 100
_WAIT = timedelta(seconds=1)  # how long one question waits
_PAUSE_MIN, _PAUSE_MAX = 0.1, 5.0
_LEAVE_SECONDS_MAX = 10.0
RELEASES_MAX = 10  # calls that end because this machine ran out of something, before that counts as a failure
_LATEST = StartAt()
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """How a consumer works."""

    auto_ack: bool = False
    start: StartAt = _LATEST  # where the group begins, if it is new
    ack_timeout: timedelta = timedelta(seconds=30)
    inflight_max: int = 100
    deliveries_max: int = 5
    concurrency: int = 1  # handlers at a time; one keeps the order
    timeout: timedelta = timedelta(hours=1)  # how long a handler may take
    nak_delay: timedelta = timedelta(milliseconds=500)  # with auto_ack, after the first failure; doubled after each
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
        """How long a message waits after its handler failed for the so manieth time."""
        return min(self.nak_delay * (1 << min(number - 1, 30)), self.nak_delay_max)


_DEFAULT = ConsumerSettings()


class Consumer:
    """One member of a group. `run` it once; `close` it from elsewhere."""

    def __init__(
        self,
        streams: Streams,
        groups: Groups,
        clock: Clock,
        pattern: str,
        group: str,
        handler: Handler,
        settings: ConsumerSettings = _DEFAULT,
        tally: StreamTally | None = None,
    ) -> None:
        check_pattern(pattern)
        check_group("any", group)
        self.name = consumer_name(clock)
        self.tally = tally if tally is not None else StreamTally()
        self._groups = groups
        self._clock = clock
        self._settings = settings
        self._group = group
        self._caller = HandlerCall(handler)
        self._members = Membership(
            streams, groups, clock, pattern, group, settings.start, settings.discover, ack_timeout=settings.ack_timeout
        )
        self._flights = InFlightDeliveries(clock, settings.inflight_max, settings.ack_timeout)
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
        """Delivers until `close`. A backend that does not answer is asked again; any other error ends it."""
        if self._started:
            raise UsageError("this consumer has run already", do="make another")
        self._started = True
        try:
            async with asyncio.TaskGroup() as tasks:
                helpers = [tasks.create_task(self._outbox.run()), tasks.create_task(self._keep())]
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
        """Takes one answer to the backend."""
        if self._ended.is_set():
            raise UsageError("this consumer is closed", do="answer before closing it; the message comes back")
        outcome = await self._outbox.put(answer)
        self._settled(delivery, answer, outcome)
        return outcome

    async def _pull(self) -> None:
        pause = _PAUSE_MIN
        while True:
            try:
                await self._members.look()
                await self._ask()
                pause = _PAUSE_MIN
            except (StoreUnavailable, StoreBroken) as error:
                if pause == _PAUSE_MIN and isinstance(error, StoreBroken):  # a person has to mend it
                    _log.error("no messages are delivered: %s; %s", error.message, error.do)
                self.tally.unavailable += 1
                await asyncio.sleep(pause)
                pause = min(pause * 2, _PAUSE_MAX)

    async def _ask(self) -> None:
        room = min(self._flights.room(), _BATCH_MAX)
        wait = min(_WAIT, self._settings.discover)
        if room <= 0 or not self._members.subjects:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(wait, self._settings.ack_timeout / 4).total_seconds()):
                    await self._changed.wait()
            return
        asked_at = self._clock.monotonic()
        delivered = await self._groups.deliver(
            self._members.subjects, self._group, self.name, room, ack_timeout=self._settings.ack_timeout, wait=wait
        )
        self._flights.began(delivered, asked_at)
        for delivery in delivered:
            self.tally.delivered += 1
            self.tally.again += delivery.number > 1
            self._queue.put_nowait(delivery)

    async def _serve(self) -> None:
        """One slot: a message after another."""
        while (delivery := await self._queue.get()) is not None:
            if delivery not in self._flights:
                continue  # it waited too long here, and is somebody else's now
            if self._closing.is_set():
                self._post(delivery, self._nak(delivery))
                continue
            try:
                envelope = envelope_in(delivery.entry, self.root)
            except StoreBroken:
                self.tally.invalid += 1
                self._set_aside(delivery, "the entry is not an envelope", delivery.number)
                continue
            if delivery.number > self._settings.deliveries_max:
                told = self._settings.deliveries_max
                self._set_aside(delivery, f"not acked in {told} deliveries", told)
                continue
            await self._handle(delivery, envelope)

    async def _handle(self, delivery: Delivery, envelope: Envelope) -> None:
        received = Received(delivery, envelope, self)
        self._flights.handling(delivery, received)
        try:
            finished = await self._called(delivery, envelope, received)
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            if isinstance(error, asyncio.CancelledError) and cancelled():
                if not received.answered and not self._caller.plain:
                    self._post(delivery, self._nak(delivery))
                raise
            self._failed(delivery, received, error)
        else:
            if finished and self._settings.auto_ack and not received.answered:
                self._post(delivery, Ack(delivery.entry.subject, self._group, delivery.entry.id))
        finally:
            self._flights.over(delivery)

    async def _called(self, delivery: Delivery, envelope: Envelope, received: Received) -> bool:
        """Calls the handler. Where this machine runs out of files, memory or disk it is called again with the same
        delivery, so that none of `deliveries_max` is spent; False if the consumer ended before that."""
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
                    "a handler of messages waits: this machine ran out of something",
                    extra={"source": delivery.entry.subject, "error": short, "attempt": delivery.number},
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.delay_after(tries).total_seconds()):
                    await self._closing.wait()
            if self._closing.is_set():
                self._post(delivery, self._nak(delivery))
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
            self._post(delivery, self._nak(delivery, self._settings.delay_after(delivery.number)))

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
            self._post(delivery, Ack(entry.subject, self._group, entry.id))
        else:
            self._post(delivery, dead_letter(delivery, reason, deliveries=deliveries, root=self.root))

    def _post(self, delivery: Delivery, answer: Answer) -> None:
        """Sends an answer of our own. If it cannot be sent it is tried again: what was done is not to be done twice."""
        self._outbox.put(answer).add_done_callback(partial(self._posted, delivery, answer))

    def _posted(self, delivery: Delivery, answer: Answer, sent: asyncio.Future[Outcome]) -> None:
        if sent.cancelled():
            return
        error = sent.exception()
        if error is None:
            self._settled(delivery, answer, sent.result())
        elif isinstance(error, StoreUnavailable) and not self._closing.is_set() and delivery in self._flights:
            self._post(delivery, answer)
        elif isinstance(error, TooLarge) and isinstance(answer, DeadLetter) and delivery in self._flights:
            self._post(delivery, named_only(answer))

    def _settled(self, delivery: Delivery, answer: Answer, outcome: Outcome) -> None:
        self._flights.answered(delivery)
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

    async def _keep(self) -> None:
        """Moves deadlines on while handlers run or messages wait for one."""
        every = self._settings.ack_timeout.total_seconds() / 3
        while True:
            await asyncio.sleep(every)
            kept = self._flights.kept()
            if not kept:
                continue
            asked_at = self._clock.monotonic()
            try:
                mine = await self._groups.extend(self.name, kept, ack_timeout=self._settings.ack_timeout)
            except StoreUnavailable:
                self.tally.unavailable += 1
                continue
            self._flights.extended(kept, mine, asked_at)

    async def _finish(self, slots: list[asyncio.Task[None]]) -> None:
        for _ in slots:
            self._queue.put_nowait(None)
        await asyncio.wait(slots, timeout=self._settings.close_max.total_seconds())
        # Cut off in the middle of a call, an answer would have to be sent again without knowing what became of it.
        await self._outbox.empty(_LEAVE_SECONDS_MAX)

    async def _leave(self) -> None:
        """Sends the last answers, gives back what did not start, and leaves the group if nothing is pending."""
        self._closing.set()
        while not self._queue.empty():
            if (delivery := self._queue.get_nowait()) is not None and delivery in self._flights:
                self._post(delivery, self._nak(delivery))
        with suppress(TimeoutError, StoreUnavailable):  # what cannot be said now, the deadline says later
            async with asyncio.timeout(_LEAVE_SECONDS_MAX):
                await self._outbox.flush()
                await asyncio.sleep(0)  # the answers have come; their callbacks have not
                if not len(self._flights):
                    await self._members.leave(self.name)
