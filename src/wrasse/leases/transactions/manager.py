"""Transactions: several keys, in any namespaces, that are committed together or not at all, whatever crashes.

The decision is one conditional write; it is carried out on all keys before the caller is answered. If the process dies
in between, any process can finish the transaction from its record: a replay, a sweep, or an operation that needs one of
the keys. Every step is a conditional write that may be repeated.

`TransactionReplay` finishes transactions that a crash left open, in the background while keys are in use: one run at a
time per process, at most one per interval, bounded in operations and time, never inside a caller's request. Its cursor
moves only past transactions that were completely processed. Several processes may replay at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from wrasse.clock import Clock
from wrasse.errors import StoreBroken, StoreUnavailable, WrasseError
from wrasse.leases.cleanup import BackgroundTasks
from wrasse.leases.key_state import KeyStates
from wrasse.leases.lease import KeyRecord, KeyRefused, Lease, Refusal, Terms
from wrasse.leases.transactions.enlistment import FirstKeyFinder
from wrasse.leases.transactions.log import RecordedDecision, TransactionLog, refused
from wrasse.leases.transactions.states import (
    Decision,
    KeptTransaction,
    Participant,
    Transaction,
    decode_transaction,
    lasts_until,
)
from wrasse.ports.records import Record

OPERATIONS_MAX = 128
SECONDS_MAX = 2.0
PAGE = 32

_log = logging.getLogger("wrasse.leases")
AT_ONCE = 16  # keys of one transaction
PENDING_FOR = timedelta(seconds=30)  # a transaction without leases, unless its maker says otherwise


class TransactionReplay:
    """Finishes open transactions while keys are in use."""

    def __init__(
        self,
        transactions: Transactions,
        clock: Clock,
        interval: timedelta,
        *,
        operations_max: int = OPERATIONS_MAX,
        seconds_max: float = SECONDS_MAX,
    ) -> None:
        self._transactions, self._clock, self._interval = transactions, clock, interval.total_seconds()
        self._operations_max, self._seconds_max = operations_max, seconds_max
        self._cursor: str | None = None
        self._last: float | None = None
        self._task: asyncio.Task[int] | None = None

    def nudge(self) -> None:
        """An operation is running: starts a background run, if one is due."""
        if self._interval <= 0 or (self._task is not None and not self._task.done()):
            return
        now = self._clock.monotonic()
        if self._last is not None and now - self._last < self._interval:
            return
        self._last = now
        self._task = asyncio.create_task(self._run_logged())

    async def finished(self) -> None:
        """Waits until no run is active."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def run(self) -> int:
        """One run; returns how many transactions it completely processed."""
        left, seen = self._operations_max, 0
        self._transactions.transaction_log.tally.replays += 1
        with suppress(TimeoutError):
            async with asyncio.timeout(self._seconds_max):
                while left > 0:
                    page = await self._transactions.transaction_log.page(self._cursor, min(left, PAGE))
                    for record, cursor in zip(page.items, page.cursors, strict=True):
                        if left <= 0:
                            return seen
                        left -= await self._finish(record)
                        self._cursor, seen = cursor, seen + 1
                    if not page.more:
                        self._cursor = None  # from the beginning next time
                        break
        return seen

    async def _finish(self, record: Record) -> int:
        """Finishes one transaction; returns its cost in operations."""
        try:
            kept = await self._transactions.transaction_log.confirmed(decode_transaction(record))
            if kept is None:
                return 1
            if await self._transactions.finish(kept) is not Decision.PENDING:
                self._transactions.transaction_log.tally.replayed += 1
        except StoreBroken as error:  # a broken record must not block the others
            _log.warning("a transaction cannot be finished: %s", error.message)
            return 1
        return 1 + len(kept.transaction.participants)

    async def _run_logged(self) -> int:
        try:
            return await self.run()
        except WrasseError as error:
            _log.debug("left for the next replay: %s", error.message)
            return 0


class Transactions:
    """The transactions of one store. `wake` notifies local waiters that a key may be free."""

    def __init__(
        self,
        transaction_log: TransactionLog,
        keys: Callable[[str], KeyStates],
        first_keys: FirstKeyFinder,
        terms: Terms,
        background: BackgroundTasks,
        wake: Callable[[str, str], None],
    ) -> None:
        self.transaction_log, self._keys, self._first_keys, self._terms = transaction_log, keys, first_keys, terms
        self._background, self._wake = background, wake

    async def join(self, transaction: str, namespace: str) -> None:
        """Called before a key is leased under a transaction that its caller names: a generated transaction becomes
        explicit."""
        await self._first_keys.join(transaction, namespace)

    async def end(self, lease: Lease, *, commit: bool) -> KeyRecord | None:
        """Releases a key, which decides for all keys of its transaction. Refused if it was decided otherwise before;
        returns the record after it."""
        keys = self._keys(lease.namespace)
        kept = await keys.checked(lease)
        current = kept.granted
        if kept.staged is None and (commit or await self.transaction_log.read(current.transaction) is None):
            return await keys.release(lease, commit=False, alone=True)
        wanted = Decision.COMMIT if commit else Decision.ROLLBACK
        me = Participant(lease.namespace, lease.key, current.token)
        at = await keys.now()
        verdict = await self.transaction_log.decide(current.transaction, wanted, (me,), current.expires_at, at)
        after = await self._ended(verdict, current.transaction, me)
        if verdict.state is not wanted:
            raise refused(current.transaction, verdict.state)
        return after or kept

    async def decide(
        self,
        transaction: str,
        state: Decision,
        participants: Sequence[Participant] = (),
        until: datetime | None = None,
        namespace: str = "",
    ) -> Decision:
        """Decides and carries out the decision; returns the decision that counts. For `pending` it only enlists the
        participants."""
        await self._first_keys.join(transaction, namespace)
        at = await self.transaction_log.now()
        verdict = await self.transaction_log.decide(transaction, state, participants, until or at + PENDING_FOR, at)
        if verdict.state is not Decision.PENDING:
            await self._ended(verdict, transaction, None)
        return verdict.state

    async def carried_out(self, transaction: str, state: Decision) -> Decision:
        """Carries out an earlier decision, if it is the expected one."""
        kept = await self.transaction_log.read(transaction)
        found = await self.transaction_log.outcome(transaction) if kept is None else kept.transaction.state
        if found is None:
            raise _unknown(transaction)
        if found is Decision.PENDING:
            raise KeyRefused(Refusal.TRANSACTION_PENDING, f"the transaction {transaction} is not decided yet")
        if found is not state:
            raise refused(transaction, found)
        if kept is not None:
            await self._ended(RecordedDecision(found, kept), transaction, None)
        return found

    async def replay(self, transaction: str) -> Decision:
        """Finishes a transaction that is decided or overdue; returns its state."""
        kept = await self.transaction_log.read(transaction)
        if kept is not None:
            return await self.finish(kept)
        found = await self.transaction_log.outcome(transaction)
        if found is None:
            raise _unknown(transaction)
        return found

    async def finish(self, kept: KeptTransaction) -> Decision:
        """Finishes a transaction that was just read: rolls it back if overdue, carries the decision out, and writes a
        decision record."""
        transaction = kept.transaction
        if not transaction.decided:
            at = await self.transaction_log.now()
            if at < transaction.until or at < await self.lasts_until(transaction):
                return Decision.PENDING
            verdict = await self.transaction_log.decide(transaction.id, Decision.ROLLBACK, (), transaction.until, at)
            if verdict.kept is None:
                return verdict.state
            kept = verdict.kept
        if await self._carry_out(kept.transaction):
            await self._finalise(kept)
        return kept.transaction.state

    async def lasts_until(self, transaction: Transaction) -> datetime:
        """When the last lease of a pending transaction has ended, including clock margins."""
        leases = await asyncio.gather(
            *(self._keys(each.namespace).enlisted_keys.lease(each.key, transaction.id, each.token)
              for each in transaction.participants)
        )  # fmt: skip
        return lasts_until(transaction, leases) + self._terms.margin + self._terms.delay

    async def _ended(self, verdict: RecordedDecision, transaction: str, me: Participant | None) -> KeyRecord | None:
        """Carries a decision out before the caller is answered. What fails because the store is unavailable is left to
        a replay: the decision cannot change any more."""
        kept = verdict.kept
        if me is not None and (kept is None or me not in kept.transaction.participants):
            await self._one(transaction, me, verdict.state)  # enlisted after the decision: it follows the decision
        if kept is None:
            return None
        mine: list[KeyRecord | None] = []
        if await self._carry_out(kept.transaction, me, mine):
            await self._background.add(self._finalise(kept))
        return mine[0] if mine else None

    async def _carry_out(
        self, transaction: Transaction, me: Participant | None = None, mine: list[KeyRecord | None] | None = None
    ) -> bool:
        """Carries the decision out on every key; whether all of them have it."""
        done = True
        for begin in range(0, len(transaction.participants), AT_ONCE):
            some = transaction.participants[begin : begin + AT_ONCE]
            answers = await asyncio.gather(
                *(self._one(transaction.id, each, transaction.state) for each in some), return_exceptions=True
            )
            for each, answer in zip(some, answers, strict=True):
                if isinstance(answer, StoreUnavailable):
                    done = False
                elif isinstance(answer, BaseException):
                    raise answer
                elif mine is not None and each == me:
                    mine.append(answer)
        return done

    async def _one(self, transaction: str, who: Participant, state: Decision) -> KeyRecord | None:
        after = await self._keys(who.namespace).enlisted_keys.carry_out(who.key, transaction, who.token, state)
        self._wake(who.namespace, who.key)
        return after

    async def _finalise(self, kept: KeptTransaction) -> None:
        await self.transaction_log.finalise(kept)
        if kept.transaction.state is Decision.COMMIT:
            self.transaction_log.tally.transactions_committed += 1
        else:
            self.transaction_log.tally.transactions_rolled_back += 1


def _unknown(transaction: str) -> KeyRefused:
    return KeyRefused(
        Refusal.TRANSACTION_UNKNOWN, f"the transaction {transaction} does not exist, or its decision has expired"
    )
