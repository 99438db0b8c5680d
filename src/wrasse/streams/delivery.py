"""What a handler receives: one delivery of one message, and the three answers to it: ack, nak, dead-letter.

The first answer counts; later ones are no-ops. An answer that could not be sent raises, and may be repeated. A delivery
that another consumer has received meanwhile can still be acked, since the work is done, but not nacked or
dead-lettered. Async handlers run in the event loop, plain ones in a thread of their own. A message whose handler never
returns is redelivered when its deadline passes.

A dead letter has the original bytes unchanged, and the fields `reason`, `stream`, `entry_id`, `group` and `deliveries`.
Fields of an entry that another program wrote are kept as `raw.<name>`. A message too large for an entry is only
referred to by its id. There is one stream of dead letters per domain, `<root>._deadletter.<domain>`. The domain of a
subject is its second token (`gbe.tasks.email.queue` is of `tasks`), or its only one.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Protocol, cast

from wrasse.errors import StoreBroken, UsageError
from wrasse.ports.groups import Ack, Answer, DeadLetter, Delivery, Nak
from wrasse.ports.outcome import Outcome
from wrasse.ports.rules.subjects import check_subject
from wrasse.ports.streams import TOO_LONG, Draft, Entry, EntryId, is_appendable
from wrasse.streams.envelope import Envelope, decode
from wrasse.threads import HandlerThread, refuse_awaitable

ROOT = "gbe"
REASON_CHARS_MAX = 2_000  # of a dead letter
_DEAD = "_deadletter"
_ANSWER_SECONDS_MAX = 60.0


def domain(subject: str) -> str:
    """The token of a subject that names a part of the system."""
    tokens = subject.split(".", 2)
    return tokens[1] if len(tokens) > 1 else tokens[0]


def dead_letter_subject(subject: str, root: str = ROOT) -> str:
    """The stream of dead letters for this subject."""
    to = f"{root}.{_DEAD}.{domain(subject)}"
    check_subject(to)
    return to


def is_dead_letter_subject(subject: str, root: str = ROOT) -> bool:
    """Whether messages of this subject are dead letters, which are not dead-lettered again."""
    return subject.startswith(f"{root}.{_DEAD}.")


def dead_letter(delivery: Delivery, reason: str, *, deliveries: int, root: str = ROOT) -> DeadLetter:
    """The answer that dead-letters a delivery."""
    entry = delivery.entry
    fields = {
        "reason": reason[:REASON_CHARS_MAX].encode("utf-8", "backslashreplace"),
        "stream": entry.subject.encode(),
        "entry_id": str(entry.id).encode(),
        "group": delivery.group.encode(),
        "deliveries": str(deliveries).encode(),
    }
    raw = {f"raw.{name}": value for name, value in (entry.fields or {}).items()}
    draft = Draft(dead_letter_subject(entry.subject, root), entry.body, fields=raw | fields)
    letter = DeadLetter(entry.subject, delivery.group, entry.id, draft)
    return letter if is_appendable(draft) else named_only(letter)


def named_only(letter: DeadLetter) -> DeadLetter:
    """The same dead letter without the original bytes, which stay in its stream until trimmed; for one that is too
    large."""
    fields = {name: value for name, value in (letter.draft.fields or {}).items() if not name.startswith("raw.")}
    fields["reason"] += b" (too large to repeat here: see entry_id in stream)"
    return DeadLetter(letter.subject, letter.group, letter.id, Draft(letter.draft.subject, b"", fields=fields))


def envelope_in(entry: Entry, root: str = ROOT) -> Envelope:
    """The message in an entry; StoreBroken if there is none. For a dead letter without an envelope, its bytes."""
    if entry.fields and TOO_LONG in entry.fields:
        size = entry.fields[TOO_LONG].decode()
        raise StoreBroken(
            f"an entry of {size} bytes, larger than a reply may be",
            do="raise redis.reply_bytes_max, or publish less",
        )
    try:
        return decode(entry.body)
    except StoreBroken:
        if is_dead_letter_subject(entry.subject, root) and entry.fields and "reason" in entry.fields:
            return Envelope("", entry.subject, entry.id.ms, entry.body)
        raise


class Sends(Protocol):
    """Sends an answer to the backend."""

    @property
    def root(self) -> str:
        """The root of the stream for dead letters."""
        ...

    async def send(self, delivery: Delivery, answer: Answer) -> Outcome:
        """Returns the backend's outcome."""
        ...


class Message:
    """A message as it was delivered."""

    __slots__ = ("_delivery", "_envelope")

    def __init__(self, delivery: Delivery, envelope: Envelope) -> None:
        self._delivery = delivery
        self._envelope = envelope

    @property
    def message_id(self) -> str:
        """The id that its publisher got; empty for a dead letter that was not a message."""
        return self._envelope.message_id

    @property
    def subject(self) -> str:
        """The stream it was delivered from."""
        return self._delivery.entry.subject

    @property
    def payload(self) -> bytes:
        """The bytes as published."""
        return self._envelope.payload

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970 by the publisher's clock."""
        return self._envelope.timestamp

    @property
    def trace_id(self) -> str | None:
        """The publisher's trace id."""
        return self._envelope.trace_id

    @property
    def number(self) -> int:
        """Which delivery of this message it is, from 1."""
        return self._delivery.number

    @property
    def id(self) -> EntryId:
        """Its position in its stream."""
        return self._delivery.entry.id

    @property
    def fields(self) -> Mapping[str, bytes]:
        """The fields of a dead letter: reason, stream, entry_id, group and deliveries."""
        return self._delivery.entry.fields or {}


class Received(Message):
    """A message in an async handler."""

    __slots__ = ("_sends", "answered", "lost")

    def __init__(self, delivery: Delivery, envelope: Envelope, sends: Sends) -> None:
        super().__init__(delivery, envelope)
        self._sends = sends
        self.answered = False  # the backend has the first answer
        self.lost = False  # another consumer has the message

    async def ack(self) -> None:
        """The message is done."""
        await self._answer(Ack(self.subject, self._delivery.group, self.id))

    async def nak(self, delay: timedelta = timedelta(0)) -> None:
        """Redeliver it, not before `delay` from now."""
        if not self.lost:
            await self._answer(Nak(self.subject, self._delivery.group, self.id, delay))

    async def dead_letter(self, reason: str) -> None:
        """Set it aside with this reason, in the stream of dead letters."""
        if not self.lost:
            await self._answer(dead_letter(self._delivery, reason, deliveries=self.number, root=self._sends.root))

    async def _answer(self, answer: Answer) -> None:
        if not self.answered:
            await self._sends.send(self._delivery, answer)
            self.answered = True


class PlainReceived(Message):
    """A message in a plain handler, which runs in a thread: the same, without `await`."""

    __slots__ = ("_loop", "_received")

    def __init__(self, delivery: Delivery, envelope: Envelope, received: Received) -> None:
        super().__init__(delivery, envelope)
        self._received = received
        self._loop = asyncio.get_running_loop()

    def ack(self) -> None:
        """The message is done."""
        self._wait(self._received.ack())

    def nak(self, delay: timedelta = timedelta(0)) -> None:
        """Redeliver it, not before `delay` from now."""
        self._wait(self._received.nak(delay))

    def dead_letter(self, reason: str) -> None:
        """Set it aside with this reason, in the stream of dead letters."""
        self._wait(self._received.dead_letter(reason))

    def _wait(self, answer: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(answer, self._loop).result(_ANSWER_SECONDS_MAX)


AsyncHandler = Callable[[Received], Awaitable[object]]
PlainHandler = Callable[[PlainReceived], object]
Handler = AsyncHandler | PlainHandler


class HandlerCall:
    """Calls a handler in the way it needs, determined once."""

    def __init__(self, handler: Handler) -> None:
        if not callable(handler):
            raise UsageError(f"a handler of type {type(handler).__name__}", do="give a function that takes the message")
        if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
            raise UsageError("a handler that is a generator", do="return instead of yielding")
        self._handler = handler
        call = type(handler).__call__
        self.plain = not (inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call))

    async def call(self, delivery: Delivery, envelope: Envelope, received: Received) -> None:
        """Runs the handler; returns or raises as it does."""
        if self.plain:
            await _in_thread(cast(PlainHandler, self._handler), PlainReceived(delivery, envelope, received))
        else:
            await cast(AsyncHandler, self._handler)(received)


async def _in_thread(handler: PlainHandler, message: PlainReceived) -> None:
    thread = HandlerThread("wrasse-handler")
    try:
        await thread.start(lambda: refuse_awaitable(handler(message), "a plain handler"))
    finally:
        thread.close()
