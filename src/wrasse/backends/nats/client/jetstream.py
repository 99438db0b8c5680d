"""Calls of the JetStream API: JSON in both directions, and errors with a code.

A refusal means that nothing was done. The caller decides which refusals are answers and which are failures.

`ServerTime` estimates the server's time: requested now and then, and advanced by our own monotonic clock. It is behind
the server's clock by at most the round trip of the request and the drift of two clocks in half a minute, and never goes
back by itself. Where the error must be below MARGIN, only answers with a shorter round trip count.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from wrasse.backends.nats.client.connection import NatsAnswer, NatsConnection, NoResponders
from wrasse.backends.nats.message_codec import moment
from wrasse.backends.page_loop import PageLoop
from wrasse.backends.tcp import printable
from wrasse.clock import Clock, to_micros
from wrasse.errors import StoreUnavailable
from wrasse.ports.rules.store_time import StoreTime

STREAM_NOT_FOUND = 10059
STREAM_NAME_IN_USE = 10058
SUBJECTS_OVERLAP = 10065
WRONG_LAST_SEQUENCE = 10071
WRONG_LAST_SEQUENCE_CONSTANT = 10164
MESSAGE_NOT_FOUND = 10037
CONSUMER_NOT_FOUND = 10014
STORE_FAILED = 10077
NO_BATCHES = 10174
NO_JETSTREAM = 10039
_WAIT_AND_SEE = (10008, 10009, 10074, 10023)  # no leader, no peers, short of resources: may be temporary
MARGIN = timedelta(seconds=1)
CARRIED_MAX = 30.0  # seconds until the server is asked again
_TRIES = 3
_ADVICE = "look at the server's log, and check that nothing but nats-server serves $JS.API"


class JsError(StoreUnavailable):
    """JetStream refused; `code` is its err_code. Nothing was done."""

    def __init__(self, message: str, *, do: str = "", code: int = 0) -> None:
        super().__init__(message, do=do)
        self.code = code

    @property
    def wrong_sequence(self) -> bool:
        """Whether a condition on the last sequence did not hold."""
        return self.code in (WRONG_LAST_SEQUENCE, WRONG_LAST_SEQUENCE_CONSTANT)


class JsAnswer(dict[str, Any]):
    """The JSON object of an answer. A missing field raises StoreUnavailable, not KeyError."""

    def __missing__(self, name: str) -> Any:
        raise StoreUnavailable(f"NATS answered without {name!r}", do=_ADVICE)


def parsed(payload: bytes, where: str) -> JsAnswer:
    """The JSON object in an answer; StoreUnavailable for any other bytes."""
    try:
        answered = json.loads(payload, object_hook=JsAnswer)
    except (ValueError, RecursionError):
        answered = None
    if not isinstance(answered, JsAnswer):
        raise StoreUnavailable(f"{where} answered with something that is not a JSON object", do=_ADVICE)
    return answered


def number(value: object) -> int:
    """A sequence or a count in an answer."""
    if isinstance(value, int) and 0 <= value < 1 << 64:
        return value
    raise StoreUnavailable(f"NATS answered with {printable(repr(value), 40)} instead of a number", do=_ADVICE)


def refusal(answer: bytes, where: str) -> JsError | None:
    """The error in an answer, if it is one."""
    if b'"error"' not in answer:
        return None
    error = parsed(answer, where).get("error")
    if not error:
        return None
    if not isinstance(error, JsAnswer):
        raise StoreUnavailable(f"{where} answered with an error that is not a JSON object", do=_ADVICE)
    code, words = number(error.get("err_code", 0)), printable(str(error.get("description", "")))
    if code == NO_JETSTREAM:
        return JsError(f"JetStream is not enabled for us on {where}", do="start nats-server with -js", code=code)
    do = "wait: the cluster has no leader now" if code in _WAIT_AND_SEE else "look at the server's log"
    return JsError(f"{where} refused: {words} ({code})", do=do, code=code)


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where a message was stored; `duplicate`: earlier, under the same message id."""

    seq: int
    duplicate: bool = False


class JetStream:
    """The API over one connection."""

    __slots__ = ("api", "connection")

    def __init__(self, connection: NatsConnection) -> None:
        self.connection = connection
        self.api = connection.options.api

    async def call(self, verb: str, params: Mapping[str, object] | None = None) -> JsAnswer:
        """One call, such as `STREAM.INFO.name`. Raises JsError with the server's code."""
        body = json.dumps(params, separators=(",", ":")).encode() if params else b""
        try:
            answer = await self.connection.request(f"{self.api}.{verb}", body)
        except NoResponders as nobody:
            raise JsError(
                f"JetStream does not answer on {self.connection.options.where}",
                do="start nats-server with -js, or check nats.domain", code=NO_JETSTREAM,
            ) from nobody  # fmt: skip
        refused = refusal(answer.payload, self.connection.options.where)
        if refused is not None:
            raise refused
        return parsed(answer.payload, self.connection.options.where)

    async def pages(
        self, verb: str, of: str, params: Mapping[str, object] | None = None, *, whole: bool = False
    ) -> AsyncIterator[Collection[Any]]:
        """The pages of a listing: `of` is streams, consumers or subjects. With `whole`, none may be left out."""
        offset, page_loop = 0, PageLoop(self.connection.options.where, verb)
        while True:
            page_loop.turn(offset)
            answered = await self.call(verb, {**(params or {}), "offset": offset})
            if whole and (missing := answered.get("missing")):
                raise StoreUnavailable(f"{len(missing)} {of} of {verb} have no leader now", do="wait and try again")
            page = (answered["state"] if of == "subjects" else answered).get(of) or ()
            yield page
            offset += len(page)
            if not page or offset >= number(answered.get("total", 0)):
                return

    async def receipt(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> Receipt:
        """Publishes to a stream; returns where it was stored."""
        answer: NatsAnswer = await self.connection.request(subject, payload, headers)
        refused = refusal(answer.payload, self.connection.options.where)
        if refused is not None:
            raise refused
        answered = parsed(answer.payload, self.connection.options.where)
        return Receipt(number(answered["seq"]), bool(answered.get("duplicate", False)))

    async def store(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> int:
        """Publishes to a stream; returns its sequence, or that of the earlier message with the same id."""
        return (await self.receipt(subject, payload, headers)).seq


class ServerTime:
    """The server's time. `told` replaces it: only for tests that let hours pass. `within`: the longest round trip that
    counts."""

    __slots__ = ("_ask", "_clock", "_lock", "_time", "_within", "told")

    def __init__(
        self,
        clock: Clock,
        ask: Callable[[], Awaitable[datetime]],
        told: Clock | None = None,
        *,
        within: timedelta = timedelta.max,
    ) -> None:
        self._clock, self._ask, self._within = clock, ask, within.total_seconds()
        self._time = StoreTime(clock, self._measured, kept=CARRIED_MAX)
        self._lock = asyncio.Lock()
        self.told = told

    async def now(self) -> datetime:
        """The time that decides what is due."""
        return self.told.now() if self.told is not None else await self.server()

    async def server(self) -> datetime:
        """The server's own clock, as in its messages; asks the server if the last answer is too old."""
        at = self._time.earliest()
        if at is not None:
            return at
        async with self._lock:
            try:
                return await self._time.now()
            except StoreUnavailable:
                at = self._time.reckoned()
                if at is None:
                    raise
                return at  # a write that was made must not fail because the time cannot be read now

    async def millis(self) -> int:
        """The same as `server`, in whole milliseconds since 1970."""
        return to_micros(await self.now()) // 1_000

    def reckoned_millis(self) -> int:
        """The result of `reckoned`, in whole milliseconds since 1970."""
        return to_micros(self.reckoned()) // 1_000

    def read(self, at: datetime) -> datetime:
        """The time that decides, where an answer contains it."""
        return self.told.now() if self.told is not None else at

    def heard(self, timestamp: str) -> datetime:
        """Takes the server's time from an answer that just arrived."""
        if self.told is not None:
            return self.told.now()
        at = moment(timestamp)
        self._time.note(self._never_back(at))
        return at

    def reckoned(self) -> datetime:
        """The last answer plus the time since."""
        if self.told is not None:
            return self.told.now()
        at = self._time.reckoned()
        assert at is not None, "the server was asked"
        return at

    async def _measured(self) -> datetime:
        for _ in range(_TRIES):
            sent_at = self._clock.monotonic()
            at = await self._ask()
            if self._clock.monotonic() - sent_at <= self._within:
                return self._never_back(at)
        raise StoreUnavailable("the server takes too long to tell the time", do="see what else uses it")

    def _never_back(self, at: datetime) -> datetime:
        """An answer, which does not go back behind an earlier one unless by more than a second."""
        before = self._time.reckoned()
        return at if before is None else max(at, min(before, at + timedelta(seconds=1)))
