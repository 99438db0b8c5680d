"""Suspects: what a pass found inconsistent, and the one script that decides whether it is.

Reading all structures takes many round trips, in which jobs move. So whatever seems wrong is only a suspect; the script
checks it again, completely, and repairs it atomically. `Kind` has every kind of inconsistency, in the order of repair:
later kinds are judged by earlier ones.

`NamesFound` checks what is remembered by a job's id while the job exists: given ids, unique names, progress, groups.
Finding out whether a job exists needs a scan of everything that waits. A job that is claimed and requeued during the
scan may be missed in both places. So there are two scans, and the script checks claims and finished jobs as well. If
all of that missed it, its id could be enqueued again, or its group's callback would run before it; no job would be
lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.jobs.enqueue import CallKeys, in_ms
from wrasse.backends.redis.jobs.job_json import decode, flaw, payload_of
from wrasse.backends.redis.jobs.lists import DeadListEntry, Unclaimed, adopt, adopt_dead
from wrasse.backends.redis.jobs.pages import Seen, claim_keys_of, entries, find_waiting, pairs, scores, workers_with
from wrasse.backends.redis.jobs.states import read_claim, text_of
from wrasse.backends.redis.keys import QueueKeys, RedisKeys
from wrasse.backends.redis.replies import usable_queues
from wrasse.backends.redis.scripts import load
from wrasse.bounded import clamped_ms
from wrasse.ports.inconsistency import NAMES_MAX, Inconsistency
from wrasse.ports.jobs import IDS_KEPT

_BATCH, _BATCH_BYTES = 200, 4 << 20
GROUP_MAX = 1_000  # claims of equal bytes that are checked together
_SEARCHED_MAX = 500  # ids that are searched for at once
GROUPS_KEPT = 30 * 86_400_000  # ms, as in lua/new_jobs.lua
SETTLED = 3_600_000  # ms after its opening: until then the members of a group may still be enqueued
TOKEN_MAX = 1 << 52  # no counter of ours gets that far; a job with a higher token is another program's


@dataclass(frozen=True, slots=True)
class About:
    """The texts of the report; `letter` is the kind's name in lua/fsck.lua."""

    letter: str
    about: str
    repair: str


class Kind(Enum):
    """The name in lower case is shown to users."""

    WRONG_TYPE = About(
        "", "a key of ours with a value of another type; what depends on it is not checked",
        "not repaired: move it away with RENAME, or DEL it, and check again",
    )  # fmt: skip
    TOKEN_BEHIND = About("K", "the counter of tokens is behind an issued token", "it continues after that token")
    REQUESTS_WITHOUT_END = About("Y", "remembered answers without an expiry", "they expire in ten minutes")
    WORKER_LEFT_OVER = About("L", "a worker's description without its row among the workers", "it is deleted")
    HEARTBEAT_WITHOUT_END = About(
        "B",
        "a heartbeat that never expires: its worker's jobs would never be rescued",
        "it expires in one heartbeat timeout",
    )
    UNREADABLE = About(
        "S", "a stored claim, unique name or group's count cannot be read: another program wrote it",
        "it is dropped; a running job's entry gets a new claim",
    )  # fmt: skip
    QUEUE_NOT_LISTED = About("Q", "a queue with jobs that is not among the known ones", "it is listed again")
    SCHEDULED_WITHOUT_NUMBER = About(
        "Z", "a scheduled entry without its number, which would be cut", "it gets a number"
    )
    INVALID_ENTRY = About("X", "a waiting entry that cannot be decoded as a job", "it is dead-lettered")
    INDEX_WITHOUT_CLAIM = About(
        "I",
        "the index of running jobs names a claim that does not exist",
        "it is dropped; the entry is found again",
    )
    CLAIM_WITHOUT_INDEX = About(
        "T", "a claim without an index entry: it would never be rescued", "it is overdue one heartbeat timeout later"
    )
    ENTRY_LOST = About(
        "P", "a claim whose entry is missing, and its job is nowhere else", "the entry is put back from the claim"
    )
    CLAIM_LEFT_OVER = About("H", "a claim whose entry is missing; the job is elsewhere", "the claim is dropped")
    ENTRY_WITHOUT_CLAIM = About(
        "E",
        "an entry of a worker without a heartbeat, or of one of ours, that no claim names",
        "it gets a claim, and is rescued",
    )
    FINISHED_WITHOUT_INDEX = About("F", "a finished job that no index names: it would stay for ever", "it is indexed")
    INDEX_WITHOUT_FINISHED = About("N", "the index of finished jobs names one that does not exist", "it is dropped")
    DEAD_WITHOUT_ENTRY = About("D", "a dead job that is not in the dead letter list any more", "it is deleted")
    DEAD_ENTRY_WITHOUT_INDEX = About("A", "a dead letter that the index does not name", "it is indexed")
    WHERE_LEFT_OVER = About("W", "an id that leads to a claim that does not exist", "the entry is dropped")
    WHERE_MISSING = About("M", "a running or finished job that cannot be found by its id", "it is indexed again")
    ID_LEFT_OVER = About(
        "J", "the id of a job that does not exist: it could not be enqueued again", "it is dropped, or expires in time"
    )
    PROGRESS_LEFT_OVER = About("O", "the progress of a job that does not exist", "it is dropped")
    UNIQUE_LEFT_OVER = About("U", "a unique name of a job that neither waits nor runs", "the name is free again")
    REMEMBERED_FOR_EVER = About("R", "an id, a unique name or a group without its expiry", "it gets its expiry")
    GROUP_WITHOUT_CALLBACK = About("C", "a group without callback or size: it cannot fire", "it is closed")
    GROUP_CANNOT_FIRE = About(
        "G", "a group some of whose members do not exist: it would wait for ever", "those count as dead"
    )
    WRONG_COUNT = About("", "a count of jobs that differs from their number", "it is counted again")

    @property
    def shown(self) -> str:
        """The name that users see."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class FsckSuspect:
    """`words` are the script's arguments; `name` is what a person would search for."""

    kind: Kind
    name: str
    words: tuple[Word, ...] = ()
    worker: str = ""
    queue: str = ""
    raw: bytes = b""  # the entry, where the repair needs it
    place: int = 0  # of a dead letter in its list, counted from the old end

    @property
    def size(self) -> int:
        """Bytes to send, nearly."""
        return sum(len(word) for word in self.words if isinstance(word, str | bytes))

    def item(self, call_keys: CallKeys) -> tuple[Word, ...]:
        """The arguments of the script."""
        first = call_keys.worker(self.worker) if self.worker else call_keys.queue(self.queue) if self.queue else 0
        return self.kind.value.letter, 1 + len(self.words), first, *self.words


class FsckTally:
    """The findings of one kind."""

    def __init__(self) -> None:
        self.count = self.repaired = 0
        self.names: list[str] = []

    def add(self, name: str, count: int, *, repaired: int) -> None:
        """Adds findings, with an example name."""
        self.count += count
        self.repaired += repaired
        if len(self.names) < NAMES_MAX:
            self.names.append(name)


class Judge:
    """Keeps the tallies of one check."""

    def __init__(self, client: RedisClient, keys: RedisKeys, *, repair: bool, heartbeat_timeout: timedelta) -> None:
        self.repair = repair
        self._client, self._keys, self._heartbeat_timeout = client, keys, heartbeat_timeout
        self._tallies: dict[Kind, FsckTally] = {}
        self._repairs: dict[Kind, Callable[[Sequence[FsckSuspect]], Awaitable[None]]] = {
            Kind.ENTRY_WITHOUT_CLAIM: self._adopt,
            Kind.DEAD_ENTRY_WITHOUT_INDEX: self._index,
        }

    def tally(self, kind: Kind) -> FsckTally:
        """The findings of this kind so far."""
        return self._tallies.setdefault(kind, FsckTally())

    def found(self, *kinds: Kind) -> bool:
        """Whether there are findings of these kinds, or of any."""
        return any(self.tally(kind).count for kind in kinds or Kind)

    def report(self) -> tuple[Inconsistency, ...]:
        """The findings, in the order of the kinds."""
        return tuple(
            Inconsistency(kind.shown, kind.value.about, kind.value.repair, each.count, each.repaired, tuple(each.names))
            for kind in Kind
            if (each := self.tally(kind)).count
        )

    async def judge_all(self, suspects: AsyncIterator[FsckSuspect]) -> None:
        """Judges all suspects, in batches."""
        async for some in _batches(suspects):
            counts = await self._run(some, repair=self.repair)
            for suspect, count in zip(some, counts, strict=True):
                if count:
                    self.tally(suspect.kind).add(suspect.name, count, repaired=count if self.repair else 0)
            for kind, mend in self._repairs.items() if self.repair else ():
                confirmed = [each for each, count in zip(some, counts, strict=True) if count and each.kind is kind]
                if confirmed:
                    await mend(confirmed)

    async def confirmed(self, suspects: Iterable[FsckSuspect]) -> list[FsckSuspect]:
        """Those that are inconsistent at this moment. Changes nothing."""
        every, confirmed = list(suspects), []
        for start in range(0, len(every), _BATCH):
            some = every[start : start + _BATCH]
            counts = await self._run(some, repair=False)
            confirmed += [each for each, count in zip(some, counts, strict=True) if count]
        return confirmed

    async def _run(self, suspects: Sequence[FsckSuspect], *, repair: bool) -> list[int]:
        call_keys = CallKeys(self._keys, (*self._keys.shared, self._keys.workers, self._keys.workers_info))
        items = [word for each in suspects for word in each.item(call_keys)]
        args = [int(repair), in_ms(self._heartbeat_timeout), in_ms(IDS_KEPT), len(suspects), *items]
        counts: list[int] = await self._client.run(load("fsck"), call_keys.keys, args)
        return counts

    async def _adopt(self, confirmed: Sequence[FsckSuspect]) -> None:
        # A worker without a heartbeat may turn out to live: the rescue of its jobs checks the heartbeat again.
        heartbeats = await self._client.ask_many([("EXISTS", self._keys.heartbeat(each.worker)) for each in confirmed])
        unclaimed = [
            Unclaimed(each.worker, each.raw, ours=alive == 1) for each, alive in zip(confirmed, heartbeats, strict=True)
        ]
        await adopt(self._client, self._keys, unclaimed, self._heartbeat_timeout)

    async def _index(self, confirmed: Sequence[FsckSuspect]) -> None:
        await adopt_dead(self._client, self._keys, [DeadListEntry(each.place, each.raw) for each in confirmed])


async def _batches(suspects: AsyncIterator[FsckSuspect]) -> AsyncIterator[list[FsckSuspect]]:
    some: list[FsckSuspect] = []
    size = 0
    async for each in suspects:
        some.append(each)
        size += each.size
        if len(some) == _BATCH or size > _BATCH_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


class _Group:
    def __init__(self) -> None:
        self.size = self.done = self.dead = self.opened = 0
        self.callback = False
        self.members: set[str] = set()  # that wait or run

    @property
    def gone(self) -> int:
        return self.size - self.done - self.dead - len(self.members)


class NamesFound:
    """The findings of one pass over names."""

    def __init__(self, client: RedisClient, keys: RedisKeys, seen: Seen) -> None:
        self.client, self.keys, self.seen = client, keys, seen
        self.token = 0  # the highest that a waiting job has
        self._ids: set[str] = set()  # given, and of a job that neither runs nor is finished
        self._told: set[str] = set()  # ids with progress
        self._uniques: dict[str, str] = {}  # from the id that has a unique name to that name
        self._groups: dict[str, _Group] = {}

    async def suspects(self) -> AsyncIterator[FsckSuspect]:
        """All of them."""
        async for page in pairs(self.client, self.keys.ids, self.seen):
            timed = {text_of(id): (_number(known) or 0) >= 2 for id, known in page}
            await self._unfound(self._ids, [id for id, ends in timed.items() if not ends])
            async for suspect in self._endless("ids", [id for id, ends in timed.items() if ends]):
                yield suspect
        async for page in pairs(self.client, self.keys.progress, self.seen):
            await self._unfound(self._told, [text_of(id) for id, _ in page])
        async for page in pairs(self.client, self.keys.uniques, self.seen):
            async for suspect in self._unique(page):
                yield suspect
        async for suspect in self._open_groups():
            yield suspect
        await self._running()
        async for suspect in self._waiting():
            yield suspect
        await self._running()  # again: a job claimed meanwhile may have been missed in both places
        async for suspect in self._left():
            yield suspect

    async def _unfound(self, into: set[str], ids: Sequence[str]) -> None:
        claim_keys = await claim_keys_of(self.client, self.keys, ids)
        into.update(id for id, claim_key in zip(ids, claim_keys, strict=True) if claim_key is None)

    async def _endless(self, which: str, names: Sequence[str]) -> AsyncIterator[FsckSuspect]:
        expiry = {"ids": self.keys.ids_expiry, "uniques": self.keys.uniques_expiry, "groups": self.keys.groups_expiry}
        if names:
            (ends,) = await scores(self.client, [expiry[which]], names)
            for name, end in zip(names, ends, strict=True):
                if end is None:
                    yield FsckSuspect(Kind.REMEMBERED_FOR_EVER, name, (which, name))

    async def _unique(self, page: Iterable[tuple[bytes, bytes]]) -> AsyncIterator[FsckSuspect]:
        owned = []
        for raw, value in page:
            until, space, owner = value.partition(b" ")
            if space and _number(until) is not None:
                owned.append((text_of(raw), _number(until), text_of(owner)))
            else:
                yield self._unreadable("the unique name", self.keys.uniques, raw, value)
        async for suspect in self._endless("uniques", [name for name, moment, _ in owned if moment]):
            yield suspect
        owners = {id: name for name, moment, id in owned if not moment}
        claim_keys = await claim_keys_of(self.client, self.keys, list(owners))
        known = {claim_key: id for id, claim_key in zip(owners, claim_keys, strict=True) if claim_key is not None}
        if known:
            (held,) = await scores(self.client, [self.keys.held], list(known))
            for id, score in zip(known.values(), held, strict=True):
                if score is not None:
                    del owners[id]
        self._uniques.update(owners)

    async def _open_groups(self) -> AsyncIterator[FsckSuspect]:
        told: set[str] = set()
        async for page in pairs(self.client, self.keys.groups, self.seen):
            for raw, value in page:
                letter, _, id = text_of(raw).partition(":")
                told.add(id)
                if letter in "dx" and _number(value) is None:
                    yield self._unreadable("of the group", self.keys.groups, raw, value)
                elif letter != "f":
                    self._note(self._groups.setdefault(id, _Group()), letter, value)
        self._groups = {id: group for id, group in self._groups.items() if group.size}
        async for suspect in self._endless("groups", sorted(told)):
            yield suspect
        for id in self._groups:  # the script checks whether its callback can be read
            yield FsckSuspect(Kind.GROUP_WITHOUT_CALLBACK, id, (id,))
        if self._groups:
            (ends,) = await scores(self.client, [self.keys.groups_expiry], list(self._groups))
            for group, end in zip(self._groups.values(), ends, strict=True):
                group.opened = 0 if end is None else clamped_ms(end) - GROUPS_KEPT

    @staticmethod
    def _note(group: _Group, letter: str, value: bytes) -> None:
        match letter:
            case "s":
                group.size = _number(value) or -1
            case "d":
                group.done = _number(value) or 0
            case "x":
                group.dead = _number(value) or 0
            case "c":
                group.callback = True

    def _unreadable(self, what: str, key: str, name: bytes, value: bytes) -> FsckSuspect:
        where = self.keys.shared.index(key) + 1
        return FsckSuspect(Kind.UNREADABLE, f"{what} {text_of(name)}", (where, name, value))

    def _job(self, raw: bytes) -> bool:
        """A job that exists; False if the bytes are not a job."""
        wire = decode(raw)
        if wire is None:
            return False
        self._ids.discard(wire.id)
        self._told.discard(wire.id)
        self._uniques.pop(wire.id, None)
        if wire.group in self._groups and not wire.counted:
            self._groups[wire.group].members.add(wire.id)
        if wire.token < TOKEN_MAX:
            self.token = max(self.token, wire.token)
        return payload_of(wire) is not None

    async def _running(self) -> None:
        """Jobs in processing lists, including those of other programs, which keep no claims."""
        for worker in await workers_with(self.client, self.client.options.processing_list_pattern, "list"):
            async for raw in entries(self.client, self.keys.processing(worker), self.seen):
                self._job(raw)
        async for page in pairs(self.client, self.keys.holds, self.seen, large=True):
            for _, text in page:
                self._job(read_claim(text).bytes)

    async def _waiting(self) -> AsyncIterator[FsckSuspect]:
        """Delayed sets first: a job that becomes due meanwhile moves from there to a list."""
        queues = [self.keys.queue(name) for name in await usable_queues(self.client, self.keys)]
        for queue in queues:
            async for page in pairs(self.client, queue.delayed, self.seen, large=True):
                for member, _ in page:
                    number, _, raw = member.partition(b":")
                    if len(number) != 16 or not number.isdigit():
                        yield _unnumbered(queue, member)
                    elif not self._job(raw):
                        yield _invalid(queue, "set", member, raw)
        for queue in queues:
            async for raw in entries(self.client, queue.list, self.seen):
                if not self._job(raw):
                    yield _invalid(queue, "list", raw, raw)

    async def _left(self) -> AsyncIterator[FsckSuspect]:
        for id in await self._nowhere(self._ids):
            yield FsckSuspect(Kind.ID_LEFT_OVER, id, (id,))
        for id in await self._nowhere(self._told):
            yield FsckSuspect(Kind.PROGRESS_LEFT_OVER, id, (id,))
        for id in await self._nowhere(self._uniques):
            yield FsckSuspect(Kind.UNIQUE_LEFT_OVER, self._uniques[id], (self._uniques[id], id))
        now = self.client.time_in(await self.client.ask("TIME")) // 1_000
        for id, group in self._groups.items():
            if group.callback and group.gone > 0 and 0 < group.opened < now - SETTLED:
                words = (id, group.size, group.done, group.dead, group.gone)
                yield FsckSuspect(Kind.GROUP_CANNOT_FIRE, id, words)

    async def _nowhere(self, ids: Iterable[str]) -> list[str]:
        """Those that a second scan does not find either."""
        every, left = sorted(ids), []
        for start in range(0, len(every), _SEARCHED_MAX):
            some = every[start : start + _SEARCHED_MAX]
            found = await find_waiting(self.client, self.keys, some)
            left += [id for id in some if id not in found]
        return left


def _number(text: bytes) -> int | None:
    """The number in a text, with the rules of `number_in` in lua/queue_keys.lua."""
    return int(text) if len(text) <= 15 and text.isdigit() else None


def _unnumbered(queue: QueueKeys, member: bytes) -> FsckSuspect:
    return FsckSuspect(Kind.SCHEDULED_WITHOUT_NUMBER, queue.name, (member,), queue=queue.name)


def _invalid(queue: QueueKeys, where: str, entry: bytes, raw: bytes) -> FsckSuspect:
    return FsckSuspect(Kind.INVALID_ENTRY, f"{queue.name}: {flaw(raw)}", (where, entry, raw), queue=queue.name)
