"""One connection to one server: commands go out in order, answers come back in order, any number may be in flight.

The transport never sends anything twice. When the connection ends, everything unanswered fails with `ConnectionLost`,
and the callers decide what that means. An answer that does not arrive in time ends the connection: on an ordered pipe,
no later one would arrive either.

The server is not trusted. A reply may have `reply_bytes_max` bytes, an array may announce ARRAY_MAX elements; bytes
that violate the protocol and unexpected replies end the connection. hiredis bounds nesting, but allocates as many
elements as an array announces, so such lines are checked before it is fed.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import hiredis

from wrasse.backends.redis.options import REPLY_BYTES_MAX, RedisOptions
from wrasse.backends.tcp import BROKE, ENDED, ConnectionLost, Silent, TcpConnection, named, printable, reach

Word = str | bytes | int | float

ARRAY_MAX = 999_999
"""Elements that one array in a reply of a Redis may announce."""
ELEMENT_BYTES = 128
"""Bytes that each element of a reply of a Redis counts for, beside its own: about its memory in this process."""

REPLIES_MAX = 4
"""The answers to commands sent together may have this many times `redis.reply_bytes_max`."""
UNCOUNTED_BYTES = 4 << 20
"""Bytes of a reply of a Redis within which its elements are not counted."""

_LISTS = b"*~>|"  # what hiredis turns into a list of the announced length: array, set, push, attribute
_huge = re.compile(rb"\r\n[*~>|]\d{7}").search  # more digits than ARRAY_MAX has; begins with a literal, to be fast
_huge_first = re.compile(rb"[*~>|]\d{7}").match
_star, _tilde, _angle, _bar = (re.compile(rb"\%c\d{7}" % mark).search for mark in _LISTS)
HUGE_ANYWHERE = re.compile(rb"(?:\A|(?<=\r\n))[*~>|]\d{7}")
_UNFINISHED = re.compile(rb"(?:(?:\A|(?<=\r\n))[*~>|]\d*+)?+\r?+\Z")  # the beginning of such a line, at the end
_UNFINISHED_MAX = 16
_WORDS_MAX = 200  # characters of a server's message in an error
_TICKS = 4  # an overdue answer is noticed within a quarter of its timeout
_LINE_FEED = 10


class Oversized(ConnectionLost):
    """The reply exceeds the limit. A request for less may get an answer that fits."""


class RedisRefusal(Exception):
    """The server's error reply; `code` is its first word. The command was not executed."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = message.partition(" ")[0]


class _PendingReply:
    """Commands that were sent together, and the answers received so far."""

    __slots__ = ("answers", "future", "left")

    def __init__(self, future: asyncio.Future[Any], left: int, answers: list[Any] | None) -> None:
        self.future = future
        self.left = left
        self.answers = answers  # None: there is one, and it is not returned in a list


class RedisTransport(TcpConnection):
    """An open connection. Made by `dial`."""

    __slots__ = (
        "_cost",
        "_held_back",
        "_largest",
        "_late",
        "_late_first",
        "_pending",
        "_reader",
        "_retired",
        "_timer",
        "_together",
        "_wait",
        "closed",
        "heard",
    )  # fmt: skip

    def __init__(self, wait: float, largest: int = REPLY_BYTES_MAX) -> None:
        super().__init__()
        self._reader = hiredis.Reader(replyError=RedisRefusal)
        self._largest = largest
        self._cost = 0  # of the incomplete reply, so far
        self._together = 0  # of all replies to the oldest request, so far
        self._held_back = b""
        self._pending: deque[_PendingReply] = deque()
        self._wait = wait
        self._retired = False
        self._timer: asyncio.TimerHandle | None = None
        self._late = 0
        self._late_first: _PendingReply | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.heard: Callable[[Any], None] | None = None  # gets pushed messages, and None when the connection ends

    @property
    def open(self) -> bool:
        """Whether it accepts requests."""
        return self._transport is not None and not self._retired and not self._transport.is_closing()

    def ask(self, packed: bytes) -> asyncio.Future[Any]:
        """Sends one command; its answer comes later. A refusal is an answer, and is raised."""
        future = self._loop.create_future()
        self._send(packed, _PendingReply(future, 1, None))
        return future

    def ask_many(self, packed: bytes, count: int) -> asyncio.Future[list[Any]]:
        """Sends several commands; their answers come together, refusals among them as values."""
        future = self._loop.create_future()
        self._send(packed, _PendingReply(future, count, []))
        return future

    def patience(self, seconds: float) -> None:
        """Sets the timeout of answers from now on."""
        self._wait = seconds
        self._rearm()

    def retire(self, why: str) -> None:
        """Accepts no more requests; ends once those in flight are answered."""
        self._retired = True
        if not self._pending:
            self.end(why)

    def _send(self, packed: bytes, pending: _PendingReply) -> None:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLost(self._why)
        self._pending.append(pending)
        self._transport.write(packed)
        if self._timer is None:
            self._late_first, self._late = pending, 0
            self._timer = self._loop.call_later(self._wait / _TICKS, self._tick)

    def _rearm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._late = 0
            self._timer = self._loop.call_later(self._wait / _TICKS, self._tick)

    def _tick(self) -> None:
        """Counts how long the oldest request has been open. By ticks and not by the clock: after the event loop was
        blocked, data that has arrived meanwhile is read before the next tick."""
        self._timer = None
        if not self._pending:
            return
        if self._pending[0] is self._late_first:
            self._late += 1
            if self._late >= _TICKS:
                self.end(f"no answer within {self._wait:g}s")
                return
        else:
            self._late_first, self._late = self._pending[0], 0
        self._timer = self._loop.call_later(self._wait / _TICKS, self._tick)

    # Called by asyncio.

    def data_received(self, data: bytes) -> None:
        """Bytes of answers."""
        if self._held_back or data[-1] != _LINE_FEED:
            data, self._held_back = whole_lines(self._held_back + data)
            if not data:
                return
        if not announces_huge(data):
            self._read(data)
            return
        at = 0
        for found in HUGE_ANYWHERE.finditer(data):
            # It is the line of an array if hiredis has used up everything before it. Else it is part of a value, of
            # which hiredis uses nothing before it is complete.
            self._read(data[at : found.start()])
            at = found.start()
            if not self._reader.has_data():
                self.end(f"an array of more than {ARRAY_MAX} elements")
            if self.closed.done():
                return
        self._read(data[at:])

    def _read(self, data: bytes) -> None:
        reader = self._reader
        try:
            reader.feed(data)
            answer = reader.gets()
            if answer is False:
                self._cost += cost_of(data, self._cost)
            else:
                self._cost = 0
                while answer is not False:
                    self._answered(answer)
                    answer = reader.gets()
                if not self._pending:
                    return
            if self._pending:
                self._together += cost_of(data, self._together)
            self._check_cost()
        except (hiredis.ProtocolError, MemoryError, ValueError, TypeError, LookupError, AttributeError) as error:
            what = named(data) or printable(str(error), _WORDS_MAX)
            self.end(f"the server does not speak the protocol of Redis: {what}")

    def _check_cost(self) -> None:
        """Ends the connection if its replies exceed the limits."""
        many = self._together > REPLIES_MAX * self._largest
        if many or self._cost > self._largest:
            what = f"replies beyond {REPLIES_MAX} times" if many else "a reply beyond"
            why = f"{what} redis.reply_bytes_max ({self._largest} bytes)"
            if self._pending and not self._pending[0].future.done():
                self._pending[0].future.set_exception(Oversized(why))  # the other requests only lose their connection
            self.end(why)

    def _answered(self, answer: Any) -> None:
        if not self._pending and self.heard is not None:
            self.heard(answer)
            return
        if not self._pending:
            why = printable(str(answer), _WORDS_MAX) if isinstance(answer, RedisRefusal) else "an unexpected reply"
            self.end(why)  # such as: max number of clients reached
            return
        pending = self._pending[0]
        if pending.answers is not None:
            pending.answers.append(answer)
        pending.left -= 1
        if pending.left:
            return
        self._pending.popleft()
        self._together = 0
        if self._retired and not self._pending:
            self.end("this server does not serve our keys any more")
        if pending.future.done():  # its caller was cancelled
            return
        if pending.answers is not None:
            pending.future.set_result(pending.answers)
        elif isinstance(answer, RedisRefusal):
            pending.future.set_exception(answer)
        else:
            pending.future.set_result(answer)

    def _lose(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.resume_writing()
        pending, self._pending = self._pending, deque()
        for each in pending:
            if not each.future.done():
                each.future.set_exception(_closing_error(each) or ConnectionLost(self._why))
        if self.closed.done():
            return
        self.closed.set_result(None)
        if self.heard is not None:
            self.heard(None)


def whole_lines(data: bytes) -> tuple[bytes, bytes]:
    """The bytes without the beginning of an array's line at their end, and that part, held back until the rest
    comes."""
    found = _UNFINISHED.search(data, max(0, len(data) - _UNFINISHED_MAX))
    end = len(data) if found is None else found.start()
    return data[:end], data[end:]


def announces_huge(data: bytes) -> bool:
    """Whether a line may be that of a too long array. Searching for single bytes is thirty times as fast as a pattern,
    and most chunks have none of them, or only `*`."""
    if not (
        (b"*" in data and _star(data))
        or (b">" in data and _angle(data))
        or (b"~" in data and _tilde(data))
        or (b"|" in data and _bar(data))
    ):
        return False
    return _huge(data) is not None or (data[0] in _LISTS and _huge_first(data) is not None)


def cost_of(data: bytes, before: int) -> int:
    """The cost of more bytes of an answer: beyond a size that any page has, its lines count too, of which every element
    has at least one."""
    return len(data) + (ELEMENT_BYTES * data.count(b"\n") if before + len(data) > UNCOUNTED_BYTES else 0)


def _closing_error(pending: _PendingReply) -> RedisRefusal | None:
    """The last error of a server that accepted no command at all, such as: max number of clients reached."""
    first = pending.answers[0] if pending.answers else None
    return first if isinstance(first, RedisRefusal) else None


def pack(command: Sequence[Word]) -> bytes:
    """A command in wire format."""
    packed: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # its stub means any length
    return packed


async def dial(
    host: str, port: int, options: RedisOptions, *, sentinel: bool = False, master: bool = False
) -> RedisTransport:
    """An open connection, logged in. Raises OSError, ssl.SSLError, TimeoutError, ConnectionLost or RedisRefusal."""
    context = None if options.tls is None else options.tls.context("redis.tls")
    seconds = options.dial_timeout.total_seconds()
    wire: RedisTransport | None = None
    state = ""
    try:
        async with asyncio.timeout(seconds):
            wire = await reach(
                host, port, partial(RedisTransport, options.read_timeout.total_seconds(), options.reply_bytes_max)
            )
            if context is not None:
                state = f"it accepted the connection and did not finish a TLS handshake within {seconds:g}s"
                await wire.encrypt(context, host)
            state = f"it accepted the connection and did not answer PING within {seconds:g}s"
            await _log_in(wire, options, sentinel=sentinel, master=master)
    except BaseException as error:
        if wire is not None:
            wire.end("logging in failed")
        if isinstance(error, TimeoutError) and state:
            raise Silent(state) from None
        if context is None and isinstance(error, ConnectionLost) and str(error).startswith((ENDED, BROKE)):
            raise ConnectionLost(f"{error} at the first command, as on a port that expects TLS") from error
        raise
    return wire


async def _log_in(wire: RedisTransport, options: RedisOptions, *, sentinel: bool, master: bool) -> None:
    user, password = options.username, options.password
    if sentinel:
        user, password = options.sentinel_username, options.sentinel_password
    must: list[Sequence[Word]] = []
    if user or password:
        must.append(("AUTH", user, password) if user else ("AUTH", password))
    if options.db and not sentinel:
        must.append(("SELECT", options.db))
    must.append(("PING",))  # refused where a login is needed and none was given
    nice: list[Sequence[Word]] = [("CLIENT", "SETNAME", "wrasse"), *([("ROLE",)] if master else [])]
    commands = [*must, *nice]
    answers = await wire.ask_many(b"".join(pack(each) for each in commands), len(commands))
    for answer in answers[: len(must)]:
        if isinstance(answer, RedisRefusal):
            raise answer
    if master and isinstance(answers[-1], list) and answers[-1][:1] != [b"master"]:
        raise RedisRefusal("READONLY the server that the sentinels named is not a master any more")
