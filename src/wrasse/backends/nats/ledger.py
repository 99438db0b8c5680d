"""The ledger of one group, as this process reads and writes it.

A command is written on condition that we have read everything before it: then its answer is known at once, in one
round trip. If others were faster, their commands are read first; after a few such failures the command is written
without the condition, and its answer is what the ledger comes to, so nobody is kept waiting for ever. Every command has
a name, which the server remembers for two minutes and the state for 64 commands: written again after a lost reply, it
counts once.

Now and then the whole state is written, which takes all before it away.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from wrasse.backends.nats.js import JetStream, JsError
from wrasse.backends.nats.ledger_entries import SNAPSHOT, Command, packed, packed_snapshot, unpacked
from wrasse.backends.nats.ledger_state import LedgerState
from wrasse.backends.nats.reading import Reader
from wrasse.errors import StoreUnavailable

_PAGE = 1_000
_CONDITIONAL_TRIES = 3
_COMMANDS_MAX = 256  # between two snapshots
_LOOKS = 60  # for a command that a replica does not have yet
_LOOK_SECONDS = 0.05
_SNAPSHOT_SHARE = 0.9  # of the largest message


class Ledger:
    """One group's. Make it with its subject in the stream of books."""

    def __init__(self, js: JetStream, reader: Reader, stream: str, subject: str) -> None:
        self._js = js
        self._reader = reader
        self._stream = stream
        self.subject = subject
        self.state = LedgerState()
        self._read_upto = 0
        self._since = 0  # commands after the last snapshot
        self._lock = asyncio.Lock()
        self.turn = asyncio.Lock()  # of those in this process who look for something to claim

    async def catch_up(self) -> LedgerState:
        """Reads what others have written since."""
        async with self._lock:
            await self._catch_up()
        return self.state

    async def submit(self, command: Command) -> Any:
        """Writes a command; gives its answer. The caller knows that the group was joined, or joins it."""
        name = secrets.token_urlsafe(9)
        async with self._lock:
            try:
                return await self._submit(name, command)
            except JsError:
                raise
            except StoreUnavailable:
                # Whether it was written nobody knows; under the same name it is written at most once.
                return await self._submit(name, command)

    async def _submit(self, name: str, command: Command) -> Any:
        if not self._read_upto:
            await self._catch_up()
        for attempt in range(_CONDITIONAL_TRIES):
            if name in self.state.answers:
                return self.state.answers[name]
            try:
                return await self._conditional(name, command)
            except JsError as refused:
                if not refused.wrong_sequence:
                    raise
                await self._others(leader=attempt > 0)
        receipt = await self._js.receipt(self.subject, packed(name, command), {"Nats-Msg-Id": name})
        return await self._answered(name, receipt.seq)

    async def _conditional(self, name: str, command: Command) -> Any:
        headers = {"Nats-Msg-Id": name, "Nats-Expected-Last-Subject-Sequence": str(self._read_upto)}
        receipt = await self._js.receipt(self.subject, packed(name, command), headers)
        if receipt.duplicate:  # written by the question whose reply was lost
            return await self._answered(name, receipt.seq)
        answer = self.state.apply(name, command)
        self._read_upto = receipt.seq
        self._since += 1
        if self._since > _COMMANDS_MAX:
            await self._shorten()
        return answer

    async def _others(self, *, leader: bool) -> None:
        """Reads what came before us. Where there is nothing, the ledger was removed, and begins again."""
        before = self._read_upto
        await self._catch_up(leader=leader)
        if leader and self._read_upto == before:
            self.state, self._read_upto, self._since = LedgerState(), 0, 0
            await self._catch_up(leader=True)

    async def _answered(self, name: str, seq: int) -> Any:
        for look in range(_LOOKS):
            if name in self.state.answers:
                return self.state.answers[name]
            await self._catch_up(leader=look > 0)
            if self._read_upto < seq:
                await asyncio.sleep(_LOOK_SECONDS)
        raise StoreUnavailable("the answer of a group cannot be found any more", do="ask again")

    async def _catch_up(self, *, leader: bool = False) -> None:
        more = True
        while more:
            page, more = await self._reader.page(self._stream, self.subject, self._read_upto, _PAGE)
            for message in page:
                self._take(message.seq, message.body)
        while leader:
            asked = {"seq": self._read_upto + 1, "next_by_subj": self.subject}
            message_ = await self._reader.one(self._stream, asked, leader=True)
            if message_ is None:
                return
            self._take(message_.seq, message_.body)

    def _take(self, seq: int, body: bytes) -> None:
        kind, name, told = unpacked(body)
        if kind == SNAPSHOT:
            self.state = LedgerState.restored(told)
            self._since = 0
        else:
            self.state.apply(name, told)
            self._since += 1
        self._read_upto = seq

    async def _shorten(self) -> None:
        """Writes the state instead of all that led to it; somebody else will if we lose the race."""
        body = packed_snapshot(self.state.snapshot())
        if len(body) > self._js.link.server.max_payload * _SNAPSHOT_SHARE:
            return
        headers = {"Nats-Rollup": "sub", "Nats-Expected-Last-Subject-Sequence": str(self._read_upto)}
        try:
            self._read_upto = await self._js.store(self.subject, body, headers)
        except JsError as refused:
            if not refused.wrong_sequence:
                raise
        else:
            self._since = 0

