"""Leases and state in any namespace, as used by the HTTP API, the command line and `app.lease`.

Waiters of this process are served in order, and a wait is cancelled with its caller. Every operation counts as traffic,
which pauses the idle sweeps.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec.structs import replace

from wrasse.clock import Clock
from wrasse.duration import format_duration
from wrasse.errors import Gone, StoreBroken, TooLarge, UsageError
from wrasse.leases.attachments import Attachments
from wrasse.leases.cleanup import BackgroundTasks
from wrasse.leases.core import EXACT, leases_in
from wrasse.leases.key_state import KeyStates, NamespaceParts
from wrasse.leases.lease import AcquireRequest, KeyRecord, KeyRefused, Lease, Over, Refusal, Staged, StateObject, Terms
from wrasse.leases.names import Xids, checked_key, checked_namespace, checked_transaction
from wrasse.leases.store import LeaseTally
from wrasse.leases.transactions.enlistment import FirstKeyFinder, InTransaction
from wrasse.leases.transactions.log import TransactionLog
from wrasse.leases.transactions.manager import TransactionReplay, Transactions
from wrasse.leases.transactions.states import Decision
from wrasse.leases.wait_queue import NO_WAIT, Acquiring
from wrasse.ports.objects import Objects
from wrasse.ports.page import Page
from wrasse.ports.records import Collection, Namespaces, Records
from wrasse.ports.rules.request_counts import Counting, counted

TTL_DEFAULT = timedelta(seconds=30)
TTL_MAX = timedelta(minutes=30)
STATE_BYTES_MAX = 100 << 20
"""Maximum bytes of the state of a key, decompressed, for writes and reads."""
LASTS = "X-Lease-Lasts"  # a header: for how many seconds, from the request on, the holder may rely on the lease
READS_MAX = 8  # how often a reader follows a record that changes under it
NO_REPLAY = timedelta(0)
NAMESPACES_MAX = 1_000  # cached; any number may exist


@dataclass(frozen=True, slots=True)
class KeyStateRead:
    """State that was read: its bytes, version and etag."""

    data: bytes
    version: int
    etag: str
    token: int


class TooShort(UsageError):
    """A lease shorter than the clock margin: it would end for its holder before it could be used."""


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """`ttl_max`: the longest lease that is granted. `replay`: how often transactions that crashed processes left are
    finished while there is traffic; 0: never."""

    terms: Terms = EXACT
    ttl_max: timedelta = TTL_MAX
    replay: timedelta = NO_REPLAY


DEFAULT_POLICY = LeasePolicy()


class Leases(Counting):
    """All namespaces of one store."""

    def __init__(
        self,
        records: Callable[[Collection], Records],
        objects: Objects,
        clock: Clock,
        policy: LeasePolicy = DEFAULT_POLICY,
        *,
        traffic: Callable[[], None] = lambda: None,
        namespaces: Namespaces | None = None,
    ) -> None:
        super().__init__()
        self.records, self.objects, self.clock, self.terms = records, objects, clock, policy.terms
        self._ttl_max, self._on_traffic = policy.ttl_max, traffic
        self._keys: dict[str, KeyStates] = {}
        self._background = BackgroundTasks()
        self._xids = Xids(clock)
        self.tally = LeaseTally()
        self._acquiring = Acquiring(clock, self.tally, self._background)
        self.listeners = self._acquiring.listeners  # told of each key that may have become free
        self._transaction_log = TransactionLog(records, clock, self.tally)
        self._shared = NamespaceParts(
            records=records,
            objects=objects,
            clock=clock,
            terms=policy.terms,
            tally=self.tally,
            background=self._background,
            transaction_log=self._transaction_log,
        )
        self._first_keys = FirstKeyFinder(
            lambda namespace: self.keys(namespace).enlisted_keys, records, clock, namespaces
        )
        wake = self._acquiring.wake
        self.transactions = Transactions(
            transaction_log=self._transaction_log,
            keys=self.keys,
            first_keys=self._first_keys,
            terms=policy.terms,
            background=self._background,
            wake=wake,
        )
        self._replay = TransactionReplay(self.transactions, clock, policy.replay)
        self.attachments = Attachments(self.keys, clock, self.note_traffic)

    @property
    def waiting(self) -> int:
        """How many callers wait for a key."""
        return self._acquiring.lines.waiting()

    def keys(self, namespace: str) -> KeyStates:
        """The keys of a namespace, whose name must have been checked."""
        keys = self._keys.get(namespace)
        if keys is None:
            if len(self._keys) >= NAMESPACES_MAX:
                self._keys.pop(next(iter(self._keys)))
            keys = self._keys[namespace] = KeyStates(namespace, self._shared)
        return keys

    @counted("acquire")
    async def acquire(
        self,
        key: str,
        owner: str,
        *,
        namespace: str = "",
        ttl: timedelta = TTL_DEFAULT,
        wait: timedelta | None = NO_WAIT,
        if_not_exists: bool = False,
        id: str = "",
        transaction: str = "",
    ) -> KeyRecord:
        """The key with the new lease. While another holder has the key it waits up to `wait` (None: for ever), then
        refuses. A retry with the same `id` gets the same lease. With a `transaction` the key is committed together with
        its other keys."""
        self.note_traffic()
        if not owner:
            raise UsageError(f"an acquire of {key!r} names no owner", do="name an owner")
        namespace = checked_namespace(namespace)
        key = checked_key(key, namespace)
        ttl = self._granted_ttl(ttl)
        explicit = bool(transaction)
        if explicit:
            await self.transactions.join(checked_transaction(transaction), namespace)
        else:
            transaction = self._xids.marked()
            self._first_keys.made(transaction, namespace, key)
        request = AcquireRequest(owner, ttl, id or self._xids.new(), transaction, explicit, if_not_exists)
        record = await self._acquiring.acquired(self.keys(namespace), key, request, wait, named=bool(id))
        self.tally.acquired += 1
        return replace(record, lease=replace(record.granted, key=key, namespace=namespace))

    @counted("keepalive")
    async def renew(self, lease: Lease, ttl: timedelta) -> Lease:
        """Extends the lease to `ttl` from now."""
        self.note_traffic()
        ttl = self._granted_ttl(ttl)
        record = await self.keys(lease.namespace).renew(lease, ttl)
        self.tally.renewed += 1
        return replace(record.granted, key=lease.key, namespace=lease.namespace)

    @counted("get")
    async def read(self, lease: Lease) -> KeyStateRead | None:
        """The state as its holder sees it, including staged changes; None if there is none."""
        self.note_traffic()
        keys = self.keys(lease.namespace)
        for _ in range(READS_MAX):
            record = await keys.read_as_holder(lease)
            staged = record.staged
            state = record.state if staged is None or staged.same else staged.state
            if state is None:
                return None
            version = record.version if staged is None else staged.version
            with suppress(Gone):  # replaced since the record was read: read the record again
                return KeyStateRead(await keys.versions.read(state), version, state.etag, lease.token)
        raise _missing_object(lease.key)

    @counted("public_get")
    async def read_public(self, namespace: str, key: str) -> KeyStateRead | None:
        """The committed state; None if there is none. Staged changes are never visible."""
        self.note_traffic()
        keys = self.keys(namespace)
        before: KeyRecord | None = None
        for _ in range(READS_MAX):
            record = await keys.read(key)
            if record is None or record.state is None:
                return None
            if before is not None and before.stored == record.stored and before.state == record.state:
                raise _missing_object(key)
            try:
                data = await keys.versions.read(record.state)
            except Gone:
                before = record  # replaced and deleted since the record was read: read it again
                continue
            return KeyStateRead(data, record.version, record.etag, record.token)
        raise _missing_object(key)

    @counted("update")
    async def update(
        self, lease: Lease, data: bytes, *, if_version: int | None = None, if_etag: str | None = None
    ) -> tuple[int, StateObject]:
        """Stages a new state; returns the version after a commit, and its object."""
        check_state(data)
        self.note_traffic()
        keys = self.keys(lease.namespace)
        try:
            staged = (await keys.stage(lease, data, if_version, if_etag)).staged
        except KeyRefused as refused:
            staged = await _staged_by_first_try(keys, lease, refused, if_version, if_etag)
            if staged is None or not await _is_staged(keys, staged, data):
                raise
        assert staged is not None, "an update stages"
        assert staged.state is not None, "an update has a state"
        return staged.version, staged.state

    async def check(self, lease: Lease) -> None:
        """Refuses a caller that does not hold the lease, before its request body is read."""
        self.note_traffic()
        await self.keys(lease.namespace).checked(lease, None, None)

    @counted("remove")
    async def remove(self, lease: Lease, *, if_version: int | None = None, if_etag: str | None = None) -> int | None:
        """Stages the removal of the state; returns the version, or None if there was no state."""
        self.note_traffic()
        keys = self.keys(lease.namespace)
        try:
            changed = await keys.stage_removal(lease, if_version, if_etag)
        except KeyRefused as refused:
            done = await _staged_by_first_try(keys, lease, refused, if_version, if_etag)
            if done is None or done.same or done.state is not None:
                raise
            return done.version
        staged = changed.after.staged
        return None if changed.after is changed.before or staged is None else staged.version

    @counted("metadata")
    async def hide(self, lease: Lease, hidden: bool, *, if_version: int | None = None) -> int:
        """Stages whether queries omit the key; returns the version."""
        self.note_traffic()
        keys = self.keys(lease.namespace)
        try:
            staged = (await keys.stage_hidden(lease, hidden, if_version)).staged
        except KeyRefused as refused:
            staged = await _staged_by_first_try(keys, lease, refused, if_version, None)
            if staged is None or staged.hidden is not hidden:
                raise
        assert staged is not None, "a change of attributes stages"
        return staged.version

    @counted("release")
    async def release(self, lease: Lease, *, commit: bool = True) -> KeyRecord | None:
        """Releases the key with a commit or a rollback; see `KeyStates.release`. In a transaction that decides for all
        of its keys, unless nothing is staged under this one."""
        self.note_traffic()
        try:
            record = await self.keys(lease.namespace).release(lease, commit=commit)
        except InTransaction:
            record = await self.transactions.end(lease, commit=commit)
        finally:
            self._acquiring.wake(lease.namespace, lease.key)
        self.tally.released += 1
        if record is not None and commit:
            self.tally.committed += 1
        return record

    @counted("decide")
    async def decide(self, transaction: str, *, commit: bool) -> Decision:
        """Commits or rolls back every key of a transaction; returns the decision that counts, which may be an earlier
        one."""
        self.note_traffic()
        state = Decision.COMMIT if commit else Decision.ROLLBACK
        return await self.transactions.decide(checked_transaction(transaction), state)

    @counted("describe")
    async def describe(self, namespace: str, key: str) -> KeyRecord | None:
        """Everything about a key, as stored now; its lease may have expired."""
        self.note_traffic()
        return await self.keys(namespace).read(key)

    async def now(self, namespace: str) -> datetime:
        """The store's time, rather a little late than early."""
        return await self.keys(namespace).now()

    @counted("keys")
    async def page(self, namespace: str, prefix: str, after: str | None, limit: int) -> Page[str]:
        """Keys that begin with `prefix`, in the order of their stored names."""
        self.note_traffic()
        page = await self.records(leases_in(namespace)).page(prefix, after, limit)
        return Page(tuple(record.key for record in page), page.cursors, page.at, page.more)

    def term(self, lease: Lease) -> float:
        """The local monotonic time until which the holder may rely on a lease that was just granted or renewed."""
        return self.keys(lease.namespace).term(lease)

    async def close(self) -> None:
        """Waits until all background tasks are done."""
        await self._replay.finished()
        await self._background.finished()

    def _granted_ttl(self, ttl: timedelta) -> timedelta:
        """The duration to grant for a requested one."""
        ttl = min(ttl, self._ttl_max) if ttl > timedelta(0) else TTL_DEFAULT
        if ttl <= self.terms.margin:
            raise TooShort(
                f"a lease of {format_duration(ttl)} where clocks may be off by {format_duration(self.terms.margin)}",
                do="request a longer one: the holder stops that much earlier",
            )
        return ttl

    def note_traffic(self) -> None:
        """An operation is running: idle sweeps pause, and a replay may be due."""
        self._on_traffic()
        self._replay.nudge()


def _missing_object(key: str) -> StoreBroken:
    return StoreBroken(
        f"the record of {key!r} names a state object that is not there",
        do="run `wrasse leases fsck`; restore the object from a backup, or remove the state",
    )


def check_state(data: bytes) -> None:
    """Refuses a state too large to be read, before anything is written."""
    if len(data) > STATE_BYTES_MAX:
        raise TooLarge(
            f"a state of {len(data)} bytes, and at most {STATE_BYTES_MAX} are allowed",
            do="keep the data as an attachment of the key",
        )


async def _staged_by_first_try(
    keys: KeyStates, lease: Lease, refused: KeyRefused, if_version: int | None, if_etag: str | None
) -> Staged | None:
    """Retry detection: what this lease staged on top of the version that a refused caller expects; None if the refusal
    stands. A caller whose reply was lost retries with the version it saw before. It is the same change if it was staged
    on top of that version, committed or staged by the same lease, and has the same content."""
    if refused.code not in (Refusal.VERSION_CONFLICT, Refusal.ETAG_MISMATCH):
        return None
    record = await keys.read_as_holder(lease)
    return record.staged if _is_based_on(record, if_version, if_etag) else None


async def _is_staged(keys: KeyStates, staged: Staged, data: bytes) -> bool:
    """Whether this state is the one staged."""
    state = staged.state
    if state is None or staged.same or state.size != len(data):
        return False
    try:
        return await keys.versions.read(state) == data
    except Gone:
        return False


def _is_based_on(record: KeyRecord, if_version: int | None, if_etag: str | None) -> bool:
    befores = [Over(record.version, record.etag)]
    if record.staged is not None and isinstance(record.staged.over, Over):
        befores.append(record.staged.over)
    return any(
        if_version in (None, over.version) and (if_etag is None or if_etag.strip('"') == over.etag) for over in befores
    )
