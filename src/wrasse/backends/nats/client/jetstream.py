"""Calls of the JetStream API: JSON in both directions, and errors with a code.

A refusal means that nothing was done. The caller decides which refusals are answers and which are failures.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from wrasse.backends.foreign_protocol import printable
from wrasse.backends.nats.client.connection import NatsAnswer, NatsConnection, NoResponders
from wrasse.backends.page_loop import PageLoop
from wrasse.errors import StoreUnavailable

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
        raise StoreUnavailable(f"NATS answered without {name!r}", do=_LOOK)


_LOOK = "look at the server's log, and check that nothing but nats-server serves $JS.API"


def parsed(payload: bytes, where: str) -> JsAnswer:
    """The JSON object in an answer; StoreUnavailable for any other bytes."""
    try:
        answered = json.loads(payload, object_hook=JsAnswer)
    except (ValueError, RecursionError):
        answered = None
    if not isinstance(answered, JsAnswer):
        raise StoreUnavailable(f"{where} answered with something that is not a JSON object", do=_LOOK)
    return answered


def number(value: object) -> int:
    """A sequence or a count in an answer."""
    if isinstance(value, int) and 0 <= value < 1 << 64:
        return value
    raise StoreUnavailable(f"NATS answered with {printable(repr(value), 40)} instead of a number", do=_LOOK)


def refusal(answer: bytes, where: str) -> JsError | None:
    """The error in an answer, if it is one."""
    if b'"error"' not in answer:
        return None
    error = parsed(answer, where).get("error")
    if not error:
        return None
    if not isinstance(error, JsAnswer):
        raise StoreUnavailable(f"{where} answered with an error that is not a JSON object", do=_LOOK)
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
