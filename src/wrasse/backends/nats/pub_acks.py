"""The server's answers to what was appended: where it was stored, or that the place was taken.

One answer speaks for all entries of an atomic batch. Of a chain every entry is answered, and each named the place it
was for: where none was refused, all stand together, behind each other.
"""

from __future__ import annotations

import asyncio

from wrasse.backends.nats.js import STORE_FAILED, JsError, number, parsed, refusal
from wrasse.backends.nats.link import Link, status_of
from wrasse.errors import StoreFull, StoreUnavailable, WrasseError
from wrasse.ports.streams import EntryId


class Outdated(Exception):
    """Another entry was stored first; nothing of this step was, or only a part."""


class Vanished(Exception):
    """There is no such stream any more."""


class NotConfirmed(Exception):
    """The answer was lost: what was sent may be stored, or not. `error` is what to say if nobody finds out."""

    def __init__(self, error: StoreUnavailable) -> None:
        super().__init__(error.message)
        self.error = error


class Acks:
    """What comes back for one step of an append."""

    __slots__ = (
        "_answers", "_entries", "_failure", "_future", "_last", "_link", "_ms", "_wanted", "duplicate", "inbox",
    )  # fmt: skip

    def __init__(self, link: Link, subject: str, ms: int, entries: int, wanted: int) -> None:
        self._link = link
        self._ms = ms
        self._entries = entries
        self._wanted = wanted
        self._answers = 0
        self._last = b""
        self._failure: Exception | None = None
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.duplicate = False
        self.inbox = link.open_inbox(self._heard, self._cut, subject, self._denied)

    async def wait(self) -> list[EntryId]:
        """The ids. Raises Outdated, Vanished, StoreFull, ConfigError without the permission, or NotConfirmed: then
        nobody knows."""
        seconds, seen = self._link.options.read_timeout.total_seconds(), -1
        while not self._future.done():
            if seen == self._answers:  # nothing came for as long as an answer may take
                where = self._link.options.where
                raise NotConfirmed(StoreUnavailable(f"{where} did not confirm an append in time", do="look for it"))
            seen = self._answers
            await asyncio.wait([self._future], timeout=seconds)
        if self._failure is not None:
            raise self._failure
        told = parsed(self._last, self._link.options.where)
        self.duplicate = bool(told.get("duplicate", False))
        last = number(told["seq"])
        return [EntryId(self._ms, seq) for seq in range(last - self._entries + 1, last + 1)]

    def close(self) -> None:
        """Hears nothing more."""
        self._link.close_inbox(self.inbox)

    def _heard(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        self._answers += 1
        self._last = payload
        if header or b'"error"' in payload:
            self._refused(header, payload)
        if self._answers >= self._wanted and not self._future.done():
            self._future.set_result(None)

    def _refused(self, header: bytes, payload: bytes) -> None:
        """What is wrong; a chain is answered to its end, since any part of it may be stored."""
        if header and status_of(header) == 503:
            self._failure = Vanished()
            return
        try:
            refused: JsError | None = refusal(payload, self._link.options.where)
        except StoreUnavailable as unreadable:
            self._failure = NotConfirmed(unreadable)
            return
        if refused is None or refused.wrong_sequence:
            self._failure = self._failure or Outdated()
        elif refused.code == STORE_FAILED:
            self._failure = StoreFull(refused.message, do="trim the stream, or raise its limit")
        else:
            self._failure = refused

    def _denied(self, refusal: WrasseError) -> None:
        if not self._future.done():
            self._failure = refusal
            self._future.set_result(None)

    def _cut(self, why: str) -> None:
        if not self._future.done():
            self._failure = NotConfirmed(
                StoreUnavailable(f"the connection ended before an append was confirmed: {why}", do="look for it")
            )
            self._future.set_result(None)
