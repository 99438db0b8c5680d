"""What is remembered by a job's id while the job exists: given ids, unique names, progress, groups. Finding out whether
a job exists needs a scan of everything that waits.

A job that is claimed and requeued during the scan may be missed in both places. So there are two scans, and the script
checks claims and finished jobs as well. If all of that missed it, its id could be enqueued again, or its group's
callback would run before it; no job would be lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence

from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.fsck.kinds import Kind
from wrasse.backends.redis.fsck.pages import Seen, claim_keys_of, entries, pairs, scores, workers_with
from wrasse.backends.redis.fsck.suspects import FsckSuspect
from wrasse.backends.redis.jobs.claim_codec import read_claim
from wrasse.backends.redis.jobs.job_json import decode, flaw, payload_of
from wrasse.backends.redis.jobs.ready_search import find_waiting
from wrasse.backends.redis.jobs.states import text_of
from wrasse.backends.redis.key_types import usable_queues
from wrasse.backends.redis.keys import QueueKeys, RedisKeys
from wrasse.bounded import clamped_ms

_LOOK = 500  # ids that are searched for at once
GROUPS_KEPT = 30 * 86_400_000  # ms, as in lua/putting.lua
SETTLED = 3_600_000  # ms after its opening: until then the members of a group may still be enqueued
TOKEN_MAX = 1 << 52  # no counter of ours gets that far; a job with a higher token is another program's


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
        await self._held()
        async for suspect in self._waiting():
            yield suspect
        await self._held()  # again: a job claimed meanwhile may have been missed in both places
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

    async def _held(self) -> None:
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
        for start in range(0, len(every), _LOOK):
            some = every[start : start + _LOOK]
            found = await find_waiting(self.client, self.keys, some)
            left += [id for id in some if id not in found]
        return left


def _number(text: bytes) -> int | None:
    """The number in a text, with the rules of `number_in` in lua/types.lua."""
    return int(text) if len(text) <= 15 and text.isdigit() else None


def _unnumbered(queue: QueueKeys, member: bytes) -> FsckSuspect:
    return FsckSuspect(Kind.SCHEDULED_WITHOUT_NUMBER, queue.name, (member,), queue=queue.name)


def _invalid(queue: QueueKeys, where: str, entry: bytes, raw: bytes) -> FsckSuspect:
    return FsckSuspect(Kind.INVALID_ENTRY, f"{queue.name}: {flaw(raw)}", (where, entry, raw), queue=queue.name)
