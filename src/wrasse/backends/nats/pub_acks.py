"""The server's answers to what was appended: where it was stored, or that the place was taken.

One answer speaks for all entries of an atomic step: they stand together, and it names the last.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from wrasse.backends.nats.js import STORE_FAILED, JsError, refusal
from wrasse.backends.nats.link import Link, status_of
from wrasse.errors import StoreFull, StoreUnavailable
from wrasse.ports.streams import EntryId


class Outdated(Exception):
    """Another entry was stored first; nothing of this piece was, or only its beginning."""


class Vanished(Exception):
    """There is no such stream any more."""


class Acks:
    """What comes back for one piece of an append."""

    __slots__ = ("_entries", "_future", "_link", "_ms", "duplicate", "inbox")

    def __init__(self, link: Link, ms: int, entries: int = 1) -> None:
        self._link = link
        self._ms = ms
        self._entries = entries
        self._future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.duplicate = False
        self.inbox = link.open_inbox(self._heard, self._cut)

    async def wait(self) -> list[EntryId]:
        """The ids. Raises Outdated, Vanished, StoreFull, or StoreUnavailable: then nobody knows."""
        try:
            async with asyncio.timeout(self._link.options.read_timeout.total_seconds()):
                last = await self._future
        except TimeoutError:
            raise StoreUnavailable(
                f"{self._link.options.where} did not confirm an append in time", do="look whether it was stored"
            ) from None
        return [EntryId(self._ms, seq) for seq in range(last - self._entries + 1, last + 1)]

    def close(self) -> None:
        """Hears nothing more."""
        self._link.close_inbox(self.inbox)
        if self._future.done() and not self._future.cancelled():
            self._future.exception()  # nobody may have waited for it

    def _heard(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        if header and status_of(header) == 503:
            self._fail(Vanished())
        elif b'"error"' in payload:
            self._refused(payload)
        else:
            told: dict[str, Any] = json.loads(payload)
            self.duplicate = bool(told.get("duplicate", False))
            if not self._future.done():
                self._future.set_result(int(told["seq"]))

    def _refused(self, payload: bytes) -> None:
        refused = refusal(payload, self._link.options.where)
        if refused is None or refused.wrong_sequence:
            self._fail(Outdated())
        elif refused.code == STORE_FAILED:
            self._fail(StoreFull(refused.message, do="trim the stream, or raise its limit"))
        else:
            self._fail(refused)

    def _fail(self, error: Outdated | Vanished | StoreFull | StoreUnavailable | JsError) -> None:
        if not self._future.done():
            self._future.set_exception(error)

    def _cut(self, why: str) -> None:
        self._fail(StoreUnavailable(f"the connection ended before an append was confirmed: {why}", do="look if it is"))
