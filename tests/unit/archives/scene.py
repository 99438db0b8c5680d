"""Streams, a store of archives and archivers between them, with faults and planted bugs; and the law over all of it."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta

from faults import FaultyRecords, Network, Script
from stream_faults import FaultyGroups, FaultyStreams
from wrasse.archives.archiver import ArchivePorts, Archiver, ArchiverOptions
from wrasse.archives.batch import BatchLimits
from wrasse.archives.codec import entry_of
from wrasse.archives.cursor import CURSORS
from wrasse.archives.drain import GROUP
from wrasse.archives.naming import Form
from wrasse.archives.reader import lines_at
from wrasse.archives.rule import Rule
from wrasse.archives.verify import Verified, verify
from wrasse.backends.memory.connect import Memory
from wrasse.clock import Clock
from wrasse.leases.core import leases_in
from wrasse.leases.manager import LeaseManager
from wrasse.ports.objects import NO_METADATA, Data, ObjectDelete, ObjectHead, ObjectInfo, Objects, WriteResult
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.streams import START, Draft, Entry
from wrasse.streams.envelope import Envelope, decode, encode
from wrasse.streams.publisher import Publisher

PATTERN = "gbe.events.audit.*"
CHANGE, LOGIN = "gbe.events.audit.change", "gbe.events.audit.login"
ARCHIVE_EVENTS, ALARMS = "gbe.events.system.archive", "gbe.events.system.error"
TTL = timedelta(seconds=30)
DEFAULT_FORM = Form()
LEASES = leases_in(".wrasse")


class FaultyObjects:
    """Objects behind a network."""

    def __init__(self, objects: Objects, network: Network) -> None:
        self._objects = objects
        self._network = network

    async def create(self, key: str, data: Data, *, metadata: Mapping[str, str] = NO_METADATA) -> WriteResult:
        return await self._network.call("store", lambda: self._objects.create(key, data, metadata=metadata))

    async def replace(self, key: str, data: Data, *, at: str, metadata: Mapping[str, str] = NO_METADATA) -> WriteResult:
        return await self._network.call("replace", lambda: self._objects.replace(key, data, at=at, metadata=metadata))

    async def head(self, key: str) -> ObjectHead | None:
        return await self._network.call("head", lambda: self._objects.head(key))

    async def read(self, key: str, *, at: str | None = None) -> AsyncIterator[bytes]:
        await self._network.call("head", lambda: self._objects.head(key))
        async for chunk in self._objects.read(key, at=at):
            yield chunk

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[ObjectInfo]:
        return await self._network.call("list", lambda: self._objects.page(prefix, after, limit))

    async def delete(self, deletes: Sequence[ObjectDelete]) -> Sequence[Outcome]:
        return await self._network.call("remove", lambda: self._objects.delete(deletes))


class RandomNames(FaultyObjects):
    """A planted bug: every put gets a name of its own."""

    async def create(self, key: str, data: Data, *, metadata: Mapping[str, str] = NO_METADATA) -> WriteResult:
        return await super().create(key.replace(".jsonl", f".{secrets.token_hex(4)}.jsonl"), data, metadata=metadata)


class Overwrites(FaultyObjects):
    """A planted bug: a put takes the place of what is there."""

    async def create(self, key: str, data: Data, *, metadata: Mapping[str, str] = NO_METADATA) -> WriteResult:
        async def put() -> WriteResult:
            there = await self._objects.head(key)
            if there is None:
                return await self._objects.create(key, data, metadata=metadata)
            return await self._objects.replace(key, data, at=there.info.version, metadata=metadata)

        return await self._network.call("store", put)


class World:
    """One memory backend, and everything that was ever published into it."""

    def __init__(self, clock: Clock, *, store: type[FaultyObjects] = FaultyObjects, size: int = 3) -> None:
        self.clock = clock
        self.memory = Memory(clock)
        self.published: list[Entry] = []
        self._store = store
        self._limits = BatchLimits(size=size, timeout=timedelta(seconds=60))

    def archiver(
        self, network: Network | None = None, owner: str = "one", pattern: str = PATTERN, form: Form = DEFAULT_FORM
    ) -> Archiver:
        """An archiver behind its own network."""
        network = network or Network(Script({}))
        records = FaultyRecords(self.memory.records(CURSORS), network)
        leases = FaultyRecords(self.memory.records(LEASES), network)
        ports = ArchivePorts(
            FaultyStreams(self.memory.streams, network),
            FaultyGroups(self.memory.groups, network),
            records,
            LeaseManager(leases, self.clock),
        )
        objects = self._store(self.memory.objects, network)
        rule = Rule(pattern, objects, "memory:", limits=self._limits, form=form)
        return Archiver(ports, [rule], self.clock, owner, ArchiverOptions(lease_ttl=TTL))

    async def publish(self, subject: str, count: int) -> None:
        """Publishes so many messages."""
        publisher = Publisher(self.memory.streams, self.clock)
        for number in range(count):
            await publisher.publish(subject, b"%d" % (len(self.published) + number))
        await self.note(subject, count)

    async def append(self, subject: str, body: bytes, fields: Mapping[str, bytes] | None = None) -> None:
        """Appends bytes as they are."""
        await self.memory.streams.append([Draft(subject, body, fields=fields)])
        await self.note(subject, 1)

    async def note(self, subject: str, count: int) -> None:
        """Notes the last entries of a stream as published."""
        state = await self.memory.streams.info(subject)
        assert state is not None
        page = await self.memory.streams.read(subject, START, state.length)
        self.published += page.items[-count:]

    async def trim(self) -> None:
        """Trims all that may be trimmed."""
        for subject in (CHANGE, LOGIN):
            await self.memory.streams.trim(subject, age=timedelta(0), below=None, protect=[GROUP], limit=1_000)

    async def archived(self) -> list[Entry]:
        """Every message of every object, whatever its key: nothing that was written stays out of sight."""
        found = []
        for info in (await self.memory.objects.page("", None, 10_000)).items:
            subject = CHANGE if CHANGE in info.key else LOGIN if LOGIN in info.key else ""
            found += [entry_of(line, subject) async for line in lines_at(self.memory.objects, info.key)]
        return found

    async def events(self, subject: str = ARCHIVE_EVENTS) -> list[Envelope]:
        """What was announced."""
        return [decode(entry.body) for entry in (await self.memory.streams.read(subject, START, 1_000)).items]

    async def verified(self) -> list[Verified]:
        """What `verify` says."""
        return [
            each async for each in verify(self.memory.objects, "archive", ">", group=GROUP, streams=self.memory.streams)
        ]

    async def broken(self) -> str:
        """The law: every message is in the archives once, as it was, and the group says so; empty if it holds."""
        wanted, found = Counter(map(_fact, self.published)), Counter(map(_fact, await self.archived()))
        lost, twice = wanted - found, found - wanted
        if lost or twice:
            return f"lost {sum(lost.values())}, twice or foreign {sum(twice.values())}"
        for subject in sorted({entry.subject for entry in self.published}):
            state = await self.memory.streams.info(subject)
            if state is None or [each.floor for each in state.groups if each.name == GROUP] != [state.last]:
                return f"the group of {subject} is not where the archives are: trimming would wait for ever"
        return "; ".join(problem.what for each in await self.verified() for problem in each.problems)


def _fact(entry: Entry) -> tuple[str, str, bytes]:
    return str(entry.id), entry.body.hex(), repr(dict(entry.fields or {})).encode()


def envelope(subject: str = CHANGE, payload: bytes = b"x") -> bytes:
    """The bytes of some envelope."""
    return encode(Envelope("0" * 26, subject, 5, payload))
