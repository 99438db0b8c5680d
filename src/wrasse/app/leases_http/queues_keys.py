"""Keys that ride along with a message: its state, and what makes it part of a transaction.

A message that is dequeued within a transaction has a lease on a key of its own there, under which its ack is staged. So
the transaction decides about it as about any other key, whoever decides and whatever crashes: committed, the message
is finished; rolled back, it is handed out again. Nobody takes it from its consumer before that is known.

Both keys go with the message. Its record says so until they are gone.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

from msgspec.structs import replace

from wrasse.jobs.record_queue.queue import Fate
from wrasse.leases.book import refused
from wrasse.leases.lease import KeyRecord, Lease, first_token, over
from wrasse.leases.leases import Leases
from wrasse.leases.refusal import KeyRefused, Refusal
from wrasse.leases.transaction import Decision
from wrasse.ports.jobs import Hold, JobState
from wrasse.ports.outcome import Outcome

TRIES_MAX = 8
WAIT = timedelta(seconds=2)  # for a lease of whoever had the message before and died with it


def state_key(queue: str, id: str) -> str:
    """The key of the state of a message."""
    return f"q/{queue}/state/{id}"


def ack_key(queue: str, id: str) -> str:
    """The key under which the ack of a message is part of a transaction."""
    return f"q/{queue}/msg/{id}"


class MessageKeys:
    """The keys of the messages of one namespace."""

    def __init__(self, leases: Leases, namespace: str) -> None:
        self._leases, self._namespace = leases, namespace

    async def take_state(
        self, queue: str, id: str, owner: str, visibility: timedelta, transaction: str
    ) -> KeyRecord:
        """The lease of the state of a message, for as long as that of the message."""
        return await self._leases.acquire(
            state_key(queue, id), owner, namespace=self._namespace, ttl=visibility, wait=WAIT, transaction=transaction
        )

    async def join(self, queue: str, hold: Hold, visibility: timedelta, transaction: str) -> None:
        """Makes a message that was just taken part of a transaction. Refused once that is decided."""
        leased = await self._leases.acquire(
            ack_key(queue, hold.id), hold.nonce, namespace=self._namespace, ttl=visibility, wait=WAIT,
            transaction=transaction,
        )  # fmt: skip
        await self._leases.hide(leased.held, True)

    async def leave(self, queue: str, id: str) -> None:
        """Takes a message that was not handed out after all out of its transaction."""
        await self._drop(ack_key(queue, id))

    async def end(self, queue: str, hold: Hold, transaction: str, *, commit: bool) -> None:
        """Decides the transaction of a message for all of its keys. Refused if it was decided otherwise before."""
        held = await self._joined(queue, hold)
        if held is None:
            state = await self._leases.transactions.book.outcome(transaction) if transaction else None
            acked = acks(await self._look(ack_key(queue, hold.id))) or state is Decision.COMMIT
            if acked is not commit:
                raise refused(transaction, Decision.COMMIT if acked else Decision.ROLLBACK)
            return
        if transaction and transaction != held.transaction:
            raise KeyRefused(Refusal.TRANSACTION_MISMATCH, "the message belongs to another transaction")
        await self._leases.release(held, commit=commit)

    async def renew(self, queue: str, hold: Hold, by: timedelta) -> None:
        """Keeps a message in its transaction for so long from now."""
        held = await self._joined(queue, hold)
        if held is not None:
            await self._leases.renew(held, by)

    async def decided(self, queue: str, id: str) -> bool | None:
        """Whether the transaction of a message was committed; None as long as nobody has decided."""
        kept = await self._look(ack_key(queue, id))
        return acks(kept) if kept is None or kept.lease is None else None

    async def held_state(self, held: Lease) -> Lease:
        """What a consumer shows of the state of its message, with its transaction, which it need not name."""
        if held.transaction:
            return held
        kept = await self._look(held.key)
        lease = None if kept is None else kept.lease
        return held if lease is None else replace(held, transaction=lease.transaction)

    async def fate(self, state: JobState) -> Fate:
        """A message whose ack was committed is finished; one that may still be is left to its consumer."""
        keys, key = self._leases.keys(self._namespace), ack_key(state.queue, state.id)
        for _ in range(TRIES_MAX):
            kept = await keys.look(key)
            lease = None if kept is None else kept.lease
            if kept is None or lease is None:
                return Fate.FINISHED if acks(kept) else Fate.RESCUED
            if not over(lease, at := await keys.now(), self._leases.terms):
                return Fate.LEFT
            await keys.clear(key, kept, at)  # which settles its transaction first
        return Fate.LEFT

    async def ended(self, state: JobState) -> bool:
        """Nobody will ask for the keys of this message again: its id is never used twice."""
        keys = (state_key(state.queue, state.id), ack_key(state.queue, state.id))
        return all([await self._drop(key) for key in keys])

    async def _drop(self, key: str) -> bool:
        """Whether it is gone. One whose lease is over for its holder, and not yet for others, stays a little longer."""
        keys = self._leases.keys(self._namespace)
        for _ in range(TRIES_MAX):
            kept = await keys.look(key)
            if kept is None:
                await keys.clean(key, first_token(await keys.now()))  # a crash may have left its objects
                return True
            lease, at = kept.lease, await keys.now()
            if lease is None:
                if await keys.delete(key, kept) is Outcome.DONE:
                    return True
            elif over(lease, at, self._leases.terms):
                await keys.clear(key, kept, at)  # of a consumer that died
            else:  # of the one that acked, or of somebody who has no message for it any more
                with suppress(KeyRefused):
                    await keys.give_back(replace(lease, key=key, namespace=self._namespace))
        return False

    async def _joined(self, queue: str, hold: Hold) -> Lease | None:
        """The lease by which this delivery is in its transaction, while nothing is decided."""
        key = ack_key(queue, hold.id)
        kept = await self._look(key)
        lease = None if kept is None else kept.lease
        if lease is None or lease.owner != hold.nonce:
            return None
        return replace(lease, key=key, namespace=self._namespace)

    async def _look(self, key: str) -> KeyRecord | None:
        return await self._leases.keys(self._namespace).look(key)


def acks(kept: KeyRecord | None) -> bool:
    """Whether the ack of a message was committed. Only `join` hides a key of that name."""
    return kept is not None and kept.hidden and kept.version > 0
