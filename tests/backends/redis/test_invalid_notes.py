"""Any bytes that another program wrote into what is noted beside records, streams and groups on Redis cost no more than
that note: the records, streams and groups are read, written, delivered, answered, trimmed and listed as before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.redis.scene import GARBAGE, HOUR, KINDS
from conformance.stores import Store
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.keys import StreamKeys
from wrasse.backends.redis.records import RecordWriter, RedisFlatRecords
from wrasse.clock import ManualClock
from wrasse.ports.groups import Ack, DeadLetter, Nak, StartAt
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection, IndexEntry, StatusRange
from wrasse.ports.streams import START, Draft

HEARTBEAT_TIMEOUT = timedelta(seconds=30)
THINGS = Collection.named("some/things")
FLAT = Collection("o:flat", "o:flat:due", "o:flat:buckets", timedelta(minutes=1), flat=True)
SPOT = IndexEntry("shelf", 1)
BODIES = {b"%d" % n for n in range(6)}
VALUE = msgspec.json.encode({"a": "b"})


@dataclass
class Scene:
    """Records of both forms, and a stream with a group that holds some entries."""

    redis: Redis
    clock: ManualClock

    @property
    def keys(self) -> StreamKeys:
        return StreamKeys(self.redis.client.options)

    def beside(self, collection: Collection) -> RecordWriter:
        return RecordWriter(self.redis.client, collection)

    @property
    def flat(self) -> RedisFlatRecords:
        found = self.redis.records(FLAT)
        assert isinstance(found, RedisFlatRecords)
        return found

    async def do(self, *command: str | bytes | int | float) -> Any:
        return await self.redis.client.ask(*command)

    async def fill(self) -> None:
        things, due = self.redis.records(THINGS), self.clock.now() - HEARTBEAT_TIMEOUT
        for name in ("a", "b"):
            await things.create(name, VALUE, due_at=due)
            await self.flat.create(name, VALUE, due_at=due, index_entry=SPOT)
        await self.redis.streams.append([Draft("a.b", body, key=f"key-{body!r}") for body in sorted(BODIES)])
        await self.redis.groups.join("a.b", "g", StartAt(first=True))
        groups = self.redis.groups
        held = await groups.deliver(["a.b"], "g", "c", 4, ack_timeout=HEARTBEAT_TIMEOUT)
        await groups.extend("c", held[:1], ack_timeout=HEARTBEAT_TIMEOUT)
        self.clock.advance(timedelta(seconds=5))

    async def works(self) -> set[bytes]:
        """Everything that is done with records, streams and groups; gives what was delivered."""
        await self._records()
        await self._streams()
        self.clock.advance(HOUR)
        return await self._groups()

    async def _records(self) -> None:
        things, flat = self.redis.records(THINGS), self.flat
        for each in (things, flat):
            assert [one.key for one in await each.page("", None, 10)] == ["a", "b"]
            await each.due(None, None, 10)
            for name in ("a", "b"):
                found = await each.get(name)
                assert found is not None
                assert (await each.put(name, VALUE, at=found.version, due_at=self.clock.now())).outcome is Outcome.DONE
            assert [one.key for one in await each.due(None, None, 10)] == ["a", "b"]
            assert (await each.create("new", VALUE)).outcome is Outcome.DONE
            new = await each.get("new")
            assert new is not None
            assert (await each.delete("new", at=new.version)).outcome is Outcome.DONE
        await flat.status_page("shelf", None, 10)
        await flat.status_counts([StatusRange("shelf", None)])
        await flat.scan(None, 100, dry=False)
        record = await flat.get("a")
        assert record is not None
        await flat.reindex([(record, IndexEntry("other", 2))])
        await flat.note("a", at=record.version, due_at=self.clock.now())
        await self.do("DEL", f"{self.redis.client.options.streams_prefix}o:flat:a")
        assert [one.key for one in await flat.page("", None, 10)] == ["b"]

    async def _streams(self) -> None:
        streams = self.redis.streams
        await streams.append(
            [Draft("a.b", b"more", key="key-b'0'"), Draft("a.b", b"most", key="key-9"), Draft("a.b", b"x")]
        )
        assert "a.b" in [*await streams.subjects(">", None, 10)]
        assert "a.b" in [each.subject for each in await self.redis.surveys.survey(">", None, 10)]
        assert await streams.info("a.b") is not None
        assert await streams.read("a.b", START, 10)

    async def _groups(self) -> set[bytes]:
        groups = self.redis.groups
        await groups.consumers("a.b", "g")
        got = [*await groups.deliver(["a.b"], "g", "d", 100, ack_timeout=HEARTBEAT_TIMEOUT)]
        assert any(await groups.extend("d", got[:2], ack_timeout=HEARTBEAT_TIMEOUT))
        dead = DeadLetter("a.b", "g", got[1].entry.id, Draft("dead.b", b"letter"))
        naks = [Nak("a.b", "g", got[0].entry.id, timedelta(0))]
        assert [*await groups.answer([*naks, dead])] == [Outcome.DONE] * 2
        (again,) = await groups.deliver(["a.b"], "g", "e", 1, ack_timeout=HEARTBEAT_TIMEOUT)
        assert again.entry.id == got[0].entry.id
        await self.do("XDEL", self.keys.of("a.b").log, str(got[0].entry.id), str(got[2].entry.id))
        await groups.answer([Nak("a.b", "g", got[2].entry.id, timedelta(0))])
        self.clock.advance(HOUR)
        await groups.deliver(["a.b"], "g", "e", 1, ack_timeout=HEARTBEAT_TIMEOUT)
        assert await groups.answer([Ack("a.b", "g", each.entry.id) for each in got[3:]])
        for state in await groups.consumers("a.b", "g"):
            await groups.retire("a.b", "g", state.consumer)
        await groups.mark("a.b", "g", got[-1].entry.id)
        await self.redis.streams.trim("a.b", age=timedelta(0), below=None, protect=["g"], limit=100)
        return {each.entry.body for each in got}


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    store = Store("redis", tmp_path)
    await store.open()
    assert isinstance(store.backend, Redis)
    assert isinstance(store.clock, ManualClock)
    made = Scene(store.backend, store.clock)
    await made.fill()
    yield made
    await store.close()


# What is overwritten: a hash and its field.
NOTES: dict[str, Callable[[Scene], tuple[str, str]]] = {
    "writes of a record": lambda scene: (scene.beside(THINGS).writes, "a"),
    "writes of a flat record": lambda scene: (scene.beside(FLAT).writes, "a"),
    "number of writes": lambda scene: (scene.beside(THINGS).meta, "number"),
    "number of writes of flat records": lambda scene: (scene.beside(FLAT).meta, "number"),
    "forgotten writes": lambda scene: (scene.beside(THINGS).meta, "forgotten"),
    "forgotten writes of flat records": lambda scene: (scene.beside(FLAT).meta, "forgotten"),
    "bytes of a stream": lambda scene: (scene.keys.of("a.b").facts, "bytes"),
    "entries of ours": lambda scene: (scene.keys.of("a.b").facts, "ours"),
    "entries lost": lambda scene: (scene.keys.of("a.b").facts, "lost g"),
    "idempotency key": lambda scene: (scene.keys.of("a.b").known, "key-b'0'"),
    "consumer": lambda scene: (scene.keys.group("a.b", "g").consumers, "c"),
    "look around": lambda scene: (scene.keys.group("a.b", "g").consumers, ""),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", NOTES)
async def test_any_bytes_in_a_note_cost_nothing_but_the_note(scene: Scene, what: str, kind: str) -> None:
    key, field = NOTES[what](scene)
    stored = await scene.do("HGET", key, field)
    await scene.do("HSET", key, field, GARBAGE[kind](stored or b"1 2 3"))
    assert await scene.works() >= BODIES, "also what the silent consumer held"


@pytest.mark.parametrize("kind", KINDS)
async def test_any_bytes_among_the_members_of_an_index_cost_nothing(scene: Scene, kind: str) -> None:
    text, group = GARBAGE[kind](b"1-1 2-2 c"), scene.keys.group("a.b", "g")
    for key in (group.held, group.due):
        await scene.do("ZADD", key, "-inf", text, 1, b"x" + text, "+inf", b"y" + text)
    await scene.do("ZADD", scene.keys.of("a.b").known_expiry, 0, text)
    await scene.do("ZADD", scene.keys.registry, 0, text, 0, b"a b" + text, 0, scene.keys.root)
    await scene.do("HSET", group.consumers, text, text)
    for collection in (THINGS, FLAT):
        of = scene.beside(collection)
        for key in (of.due, of.gone, of.status_index):
            await scene.do("ZADD", key, 0, text, 0, b"shelf " + text, 0, b"1" + b"9" * 18 + b"a", 0, b"0" * 19 + b"b")
    assert await scene.works() >= BODIES, "also what the silent consumer held"
