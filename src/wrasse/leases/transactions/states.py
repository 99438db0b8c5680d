"""States of a transaction and its decision. Pure.

A transaction changes several keys together or not at all. Its record lists the keys that take part; each is written
down before it stages anything, and only while nothing is decided. It is decided once, by one conditional write of that
record; everything after that only carries the decision out, and can be done any number of times by anybody.

    pending -> commit or rollback -> carried out on every key -> a decision record, kept for a while

Who clears a lease of a pending transaction decides for a rollback first. So what is staged under a lease that has ended
still counts, as long as nobody has decided: a commit never finds half of its keys gone.
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
    """A key that takes part, and the token of the lease under which it does; 0: whichever lease names the
    transaction."""

    namespace: str
    key: str
    token: int = 0


@dataclass(frozen=True, slots=True)
class Transaction:
    """The record. `until`: when the first of its leases was to end at the latest, as far as they were seen; before that
    nobody need look at them. `confirmed`: it was seen, after this record was made, that no decision record of that id
    stands there, so that the id is not one that is over already."""

    id: str
    state: Decision
    participants: tuple[Participant, ...]
    until: datetime
    confirmed: bool = False
    created_at: datetime = EPOCH
    updated_at: datetime = EPOCH

    @property
    def decided(self) -> bool:
        """Whether nothing can change it any more."""
        return self.state is not Decision.PENDING


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision record: what is left of a transaction that was carried out everywhere."""

    id: str
    state: Decision
    expires_at: datetime


def begun(id: str, state: Decision, participants: Sequence[Participant], until: datetime, at: datetime) -> Transaction:
    """A new record; pending, or decided in the same moment."""
    return Transaction(id, state, _merged((), participants), until, created_at=at, updated_at=at)


def enlisted(
    transaction: Transaction, participants: Sequence[Participant], until: datetime, at: datetime
) -> Transaction | None:
    """The record with these keys among those that take part; None if they are already."""
    assert not transaction.decided, "a key is enlisted only while nothing is decided"
    merged = _merged(transaction.participants, participants)
    if merged == transaction.participants:
        return None
    until = max(transaction.until, until)
    return replace(transaction, participants=merged, until=until, confirmed=True, updated_at=at)


def decided(
    transaction: Transaction, state: Decision, participants: Sequence[Participant], at: datetime
) -> Transaction | None:
    """The record with the decision, which also counts for these keys; None if it was decided before."""
    assert state is not Decision.PENDING, "a decision is one or the other"
    if transaction.decided:
        return None
    merged = _merged(transaction.participants, participants)
    return replace(transaction, state=state, participants=merged, confirmed=True, updated_at=at)


def enlisted_lease(record: KeyRecord | None, transaction: str, token: int) -> Lease | None:
    """The lease through which a key takes part in a transaction; None if it does not, or no longer."""
    lease = None if record is None else record.lease
    if lease is None or lease.transaction != transaction or (token and lease.token != token):
        return None
    return lease


def lasts_until(transaction: Transaction, leases: Sequence[Lease | None]) -> datetime:
    """When the last of its leases ends: before that it is not overdue. Renewing any lease makes it last."""
    return max((lease.expires_at for lease in leases if lease is not None), default=transaction.until)


def _merged(before: Sequence[Participant], more: Sequence[Participant]) -> tuple[Participant, ...]:
    """Each key once; a token that is known goes before one that is not."""
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
    """A transaction's record as it was last seen, and the version a change must name."""

    transaction: Transaction
    version: str


T = TypeVar("T", Transaction, Decided)

_TRANSACTION = msgspec.json.Decoder(Transaction)
_DECIDED = msgspec.json.Decoder(Decided)


def encode(value: Transaction | Decided) -> bytes:
    """The bytes of a record."""
    return msgspec.json.encode(value)


def decode_transaction(record: Record) -> KeptTransaction:
    """What a transaction's record says."""
    try:
        return KeptTransaction(_of(record, decoded_value(_TRANSACTION.decode, record.value)), record.version)
    except ValueError as error:
        raise _foreign("transaction", record) from error


def decode_decision(record: Record) -> Decided:
    """What a decision record says."""
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
        do="see who else writes there; once no lease names it, delete the record",
    )
