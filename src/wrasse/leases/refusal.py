"""Refusals of key operations: a closed set of codes, the same in Python, in the CLI and over HTTP."""

from __future__ import annotations

from enum import StrEnum

from wrasse.errors import WrasseError


class Refusal(StrEnum):
    """Why an operation was refused. Nothing was changed."""

    WAITING = "waiting"  # another holder has the key
    ALREADY_EXISTS = "already_exists"  # the key exists, and the caller required a new one
    LEASE_REQUIRED = "lease_required"  # the caller does not hold the key
    LEASE_EXPIRED = "lease_expired"  # the caller held the lease, but it has ended
    FENCING_MISMATCH = "fencing_mismatch"  # the token is not that of the lease
    MISSING_TRANSACTION = "missing_txn"
    TRANSACTION_MISMATCH = "txn_mismatch"  # the lease belongs to another transaction
    TRANSACTION_ROLLED_BACK = "txn_rolled_back"  # decided otherwise before this commit
    TRANSACTION_COMMITTED = "txn_conflict"  # decided for a commit before this rollback, or this further change
    TRANSACTION_PENDING = "txn_pending"  # nothing is decided yet
    TRANSACTION_UNKNOWN = "txn_not_found"  # it does not exist, or its decision has expired
    VERSION_CONFLICT = "version_conflict"
    ETAG_MISMATCH = "etag_mismatch"
    ATTACHMENT_NOT_FOUND = "attachment_not_found"
    SHA256_MISMATCH = "expected_sha256_mismatch"  # the bytes do not match the expected checksum
    BYTES_MISMATCH = "expected_bytes_mismatch"


_DO = {
    Refusal.WAITING: "wait for it, or see who has it with `wrasse leases show`",
    Refusal.ALREADY_EXISTS: "acquire it without if_not_exists",
    Refusal.LEASE_REQUIRED: "acquire the key first",
    Refusal.LEASE_EXPIRED: "acquire the key again and read its state anew; what was staged is gone",
    Refusal.FENCING_MISMATCH: "send the token that the acquire gave",
    Refusal.MISSING_TRANSACTION: "send the transaction that the acquire gave",
    Refusal.TRANSACTION_MISMATCH: "send the transaction that the acquire gave",
    Refusal.TRANSACTION_ROLLED_BACK: "acquire the keys again and repeat the whole transaction",
    Refusal.TRANSACTION_COMMITTED: "what was staged is committed; begin another transaction for anything further",
    Refusal.TRANSACTION_PENDING: "decide it, or wait until its leases end",
    Refusal.TRANSACTION_UNKNOWN: "check the id; decisions are remembered for 24 hours",
    Refusal.VERSION_CONFLICT: "read the state anew and decide again",
    Refusal.ETAG_MISMATCH: "read the state anew and decide again",
    Refusal.ATTACHMENT_NOT_FOUND: "see which there are with `wrasse leases attachments`",
    Refusal.SHA256_MISMATCH: "send the bytes again; nothing was staged",
    Refusal.BYTES_MISMATCH: "send the bytes again; nothing was staged",
}


class KeyRefused(WrasseError):
    """A refused operation on a key. `version` and `etag` are the key's current ones, where relevant; `wait` is the
    number of seconds after which a retry is useful."""

    def __init__(self, code: Refusal, message: str, *, version: int = 0, etag: str = "", wait: float = 0.0) -> None:
        super().__init__(message, do=_DO[code])
        self.code, self.version, self.etag, self.wait = code, version, etag, wait

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.code, self.message, self.version, self.etag, self.wait))


def _rebuild(code: Refusal, message: str, version: int, etag: str, wait: float) -> KeyRefused:
    return KeyRefused(code, message, version=version, etag=etag, wait=wait)
