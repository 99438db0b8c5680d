"""States of a transaction and its decision. Pure.

A transaction changes several keys together or not at all. Its record lists the enlisted keys; each is enlisted before
it stages anything, and only while the transaction is pending. It is decided once, by one conditional write of that
record; everything after that only carries the decision out, and may be repeated by any process.

    pending -> commit or rollback -> carried out on every key -> a decision record until it expires

A lease of a pending transaction is cleared only after a rollback was decided. So what is staged under an expired lease
still counts while the transaction is pending: a commit never finds some of its keys discarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeVar

import msgspec

from wrasse.bounded import decoded as decoded_value
from wrasse.clock import EPOCH
from wrasse.errors import StoreBroken, TooLarge
from wrasse.leases.lease import KeyRecord, Lease
from wrasse.ports.records import Collection, Record

TRANSACTIONS = Collection(data=".txns", index=".txn-index", buckets=".txn-index/buckets.json")
DECISIONS = Collection(
    data=".txn-decisions/m", index=".txn-decisions/e", buckets=".txn-decisions/buckets.json", width=timedelta(hours=1)
)
DECISION_KEPT = timedelta(hours=24)
PARTICIPANTS_MAX = 1_000


class Decision(StrEnum):
    """What became of a transaction."""

    PENDING = "pending"
    COMMIT = "commit"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True, order=True)
class Participant:
    """An enlisted key, and the token of its lease; 0: any lease that names the transaction."""

    namespace: str
    key: str
    token: int = 0


@dataclass(frozen=True, slots=True)
class Transaction:
    """The record. `until`: a lower bound for when its leases end, before which they need not be checked. `confirmed`:
    after this record was created, a read showed that its id has no decision record, so the id was not finished before.
    """

    id: str
    state: Decision
    participants: tuple[Participant, ...]
    until: datetime
    confirmed: bool = False
    created_at: datetime = EPOCH
    updated_at: datetime = EPOCH

    @property
    def decided(self) -> bool:
        """Whether the state is final."""
        return self.state is not Decision.PENDING


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision record: what remains of a transaction that was carried out on every key."""

    id: str
    state: Decision
    expires_at: datetime


def begun(id: str, state: Decision, participants: Sequence[Participant], until: datetime, at: datetime) -> Transaction:
    """A new record; pending, or decided at once."""
    return Transaction(id, state, _merged((), participants), until, created_at=at, updated_at=at)


def enlisted(
    transaction: Transaction, participants: Sequence[Participant], until: datetime, at: datetime
) -> Transaction | None:
    """The record with these keys enlisted; None if they already are."""
    assert not transaction.decided, "a key is enlisted only while nothing is decided"
    merged = _merged(transaction.participants, participants)
    if merged == transaction.participants:
        return None
    until = max(transaction.until, until)
    return replace(transaction, participants=merged, until=until, confirmed=True, updated_at=at)


def decided(
    transaction: Transaction, state: Decision, participants: Sequence[Participant], at: datetime
) -> Transaction | None:
    """The record with the decision, with these keys enlisted; None if it was decided before."""
    assert state is not Decision.PENDING, "a decision is a commit or a rollback"
    if transaction.decided:
        return None
    merged = _merged(transaction.participants, participants)
    return replace(transaction, state=state, participants=merged, confirmed=True, updated_at=at)


def enlisted_lease(record: KeyRecord | None, transaction: str, token: int) -> Lease | None:
    """The lease through which a key is enlisted in a transaction; None if it is not, or no longer."""
    lease = None if record is None else record.lease
    if lease is None or lease.transaction != transaction or (token and lease.token != token):
        return None
    return lease


def lasts_until(transaction: Transaction, leases: Sequence[Lease | None]) -> datetime:
    """When the last of its leases ends: before that it is not overdue. Renewing any lease extends it."""
    return max((lease.expires_at for lease in leases if lease is not None), default=transaction.until)


def _merged(before: Sequence[Participant], more: Sequence[Participant]) -> tuple[Participant, ...]:
    """Each key once; a known token replaces 0."""
    tokens = {(each.namespace, each.key): each.token for each in before}
    for each in more:
        tokens[each.namespace, each.key] = each.token or tokens.get((each.namespace, each.key), 0)
    if len(tokens) > PARTICIPANTS_MAX:
        raise TooLarge(
            f"a transaction of {len(tokens)} keys", do=f"at most {PARTICIPANTS_MAX} keys can change together"
        )
    return tuple(sorted(Participant(namespace, key, token) for (namespace, key), token in tokens.items()))


@dataclass(frozen=True, slots=True)
class KeptTransaction:
    """A transaction's record as last read, and the version that a change must name."""

    transaction: Transaction
    version: str


T = TypeVar("T", Transaction, Decided)

_TRANSACTION = msgspec.json.Decoder(Transaction)
_DECIDED = msgspec.json.Decoder(Decided)


def encode(value: Transaction | Decided) -> bytes:
    """The bytes of a record."""
    return msgspec.json.encode(value)


def decode_transaction(record: Record) -> KeptTransaction:
    """Decodes a transaction's record."""
    try:
        return KeptTransaction(_of(record, decoded_value(_TRANSACTION.decode, record.value)), record.version)
    except ValueError as error:
        raise _foreign("transaction", record) from error


def decode_decision(record: Record) -> Decided:
    """Decodes a decision record."""
    try:
        found = _of(record, decoded_value(_DECIDED.decode, record.value))
        if found.state is Decision.PENDING:
            raise ValueError("a decision that is pending")
        return found
    except ValueError as error:
        raise _foreign("decision", record) from error


def _of(record: Record, found: T) -> T:
    if found.id != record.key:
        raise ValueError(f"it is of {found.id[:40]!r}, under the key of another transaction")
    return found


def _foreign(what: str, record: Record) -> StoreBroken:
    return StoreBroken(
        f"the record of the {what} {record.key!r} is not one that wrasse wrote",
        do="find what else writes there; once no lease names it, delete the record",
    )
