"""A story of archivers that die or stand still, on any transport and store, and the law over it: no message is lost,
none is archived twice, none is trimmed before it is archived.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import secrets
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest
import redis

from archives.archiver_actor import StreamAndStore, archiver
from conformance.object_stores import make_bucket
from servers.nats import SHARED_NATS
from servers.seaweed import S3
from servers.valkey import Valkey
from wrasse.archives.archiver import Archiver
from wrasse.archives.codec import entry_of
from wrasse.archives.drain import GROUP
from wrasse.archives.reader import lines_at
from wrasse.archives.verify import verify
from wrasse.clock import SystemClock
from wrasse.errors import StoreUnavailable
from wrasse.ports.backend import Backend
from wrasse.ports.objects import Objects
from wrasse.runtime.backends import Stores
from wrasse.streams.envelope import decode
from wrasse.streams.publisher import Publication, Publisher

TESTS = Path(__file__).parents[1]
SUBJECTS = ("gbe.events.audit.change", "gbe.events.audit.login")
LAG_THRESHOLD = 10_000  # of the guard in the design document
MEANWHILE = 4  # how often something is published and trimmed while archivers live
ATTEMPTS = 1_000  # to take the last stream from whoever died with its lease


class Pairs:
    """Makes places of their own on servers that tests share."""

    def __init__(self, place: Path, request: pytest.FixtureRequest) -> None:
        self.place = place
        self._request = request
        self.prefix = f"t{secrets.token_hex(6)}"

    @property
    def redis(self) -> Valkey:
        server = self._request.getfixturevalue("redis_server")
        assert isinstance(server, Valkey)
        return server

    async def make(self, transport: str, store: str) -> StreamAndStore:
        """A pair on these backends."""
        return StreamAndStore(self._transport(transport), await self._store(store))

    def _transport(self, name: str) -> str:
        if name == "redis":
            return f"{self.redis.url}?root={self.prefix}&streams_prefix={self.prefix}:"
        if name == "nats":
            return f"{SHARED_NATS.get().url}?root={self.prefix}&streams_prefix={self.prefix}.s."
        return f"sqlite://{self.place / 'wrasse.db'}"

    async def _store(self, name: str) -> str:
        if name == "directory":
            return f"file://{self.place / 'data'}"
        server = self._request.getfixturevalue("s3")
        assert isinstance(server, S3)
        bucket = (await make_bucket(server)).bucket
        return (
            f"s3://{bucket}/{self.prefix}?endpoint={server.endpoint}&access_key={server.key}&secret_key={server.secret}"
        )


class Shelf:
    """The messages in any object, whatever its name, as far as it was looked at: every object is read once."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._read: set[str] = set()
        self._newest: dict[str, str] = {}
        self._ids: set[str] = set()

    async def lacks(self, subject: str, ids: Sequence[str]) -> set[str]:
        """Those of these messages that are in no object."""
        if subject in self._newest and not self._ids.issuperset(ids):
            newest = self._newest[subject]
            await self._read_on(subject, newest.partition("-after-")[0], newest)
        if not self._ids.issuperset(ids):
            await self._read_on(subject, "", None)
        return set(ids) - self._ids

    async def _read_on(self, subject: str, prefix: str, after: str | None) -> None:
        async for key in keys_of(self._objects, prefix, after):
            if key not in self._read:
                self._read.add(key)
                self._ids |= {message async for message in messages_at(self._objects, key)}
            if f"/{subject}-after-" in key:
                self._newest[subject] = key


async def keys_of(objects: Objects, prefix: str = "", after: str | None = None) -> AsyncIterator[str]:
    while True:
        page = await objects.page(prefix, after, 1_000)
        for info in page.items:
            yield info.key
        after = page.cursor
        if after is None:
            return


async def messages_at(objects: Objects, key: str) -> AsyncIterator[str]:
    async for line in lines_at(objects, key):
        yield decode(entry_of(line, "any").body).message_id


async def archived_ids(objects: Objects) -> Counter[str]:
    """The id of every message in any object, whatever its name."""
    return Counter([message async for key in keys_of(objects) async for message in messages_at(objects, key)])


class Story:
    """Archivers that die or stand still while messages are published and trimmed."""

    def __init__(self, pair: StreamAndStore, backend: Backend, objects: Objects, seed: int) -> None:
        self.pair = pair
        self.backend = backend
        self.draw = random.Random(seed)
        self.deaths = random.Random(seed)  # of its own: how often we publish depends on how busy the machine is
        self.published: dict[str, list[str]] = {subject: [] for subject in SUBJECTS}
        self.gone = dict.fromkeys(SUBJECTS, 0)
        self.unarchived = 0  # messages that were trimmed and in no archive right then
        self.kills = 0
        self.trim_by_pending: redis.Redis | None = None  # a planted bug: the guard of the design document
        self._shelf = Shelf(objects)

    @contextlib.asynccontextmanager
    async def nursery(self) -> AsyncIterator[Callable[[str], Awaitable[int]]]:
        """What archivers are forked from: a function that says a line to it and gives the answer."""
        path = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
        actor = await asyncio.create_subprocess_exec(
            sys.executable, str(TESTS / "archives" / "archiver_actor.py"), self.pair.transport, self.pair.objects,
            stdin=PIPE, stdout=PIPE, env=environ,
        )  # fmt: skip
        stdin, stdout = actor.stdin, actor.stdout
        assert stdin is not None
        assert stdout is not None

        async def say(line: str) -> int:
            stdin.write(f"{line}\n".encode())
            async with asyncio.timeout(120):
                return int(await stdout.readline())

        try:
            yield say
        finally:
            stdin.close()
            await actor.wait()

    async def rounds(self, count: int, at_once: int, store: str) -> None:
        """So many rounds of so many that die."""
        async with self.nursery() as say:
            for _ in range(count):
                await self.publish()
                ending = asyncio.ensure_future(say(f"{at_once} {self.deaths.randrange(1 << 30)} {store}"))
                # Not for as long as it takes: on a busy machine that would be ever more to archive.
                for _ in range(MEANWHILE):
                    await self.publish()
                    await self.trim()
                    await asyncio.wait([ending], timeout=0.01)
                self.kills += await ending

    async def publish(self, count: int | None = None) -> None:
        """Publishes so many, or some."""
        publisher = Publisher(self.backend.streams, SystemClock())
        count = self.draw.randrange(1, 9) if count is None else count
        drafts = [Publication(self.draw.choice(SUBJECTS), b"x" * 20) for _ in range(count)]
        for draft, message in zip(drafts, await publisher.publish_many(drafts), strict=True):
            self.published[draft.subject].append(message)

    async def trim(self) -> None:
        for subject in SUBJECTS:
            if self.trim_by_pending is None:
                await self.backend.streams.trim(subject, age=timedelta(0), below=None, protect=[GROUP], limit=1_000)
            else:
                self.trim_as_the_design_document_does(self.trim_by_pending, subject)
            state = await self.backend.streams.info(subject)
            before, self.gone[subject] = self.gone[subject], 0 if state is None else state.appended - state.length
            self.unarchived += len(
                await self._shelf.lacks(subject, self.published[subject][before : self.gone[subject]])
            )

    def trim_as_the_design_document_does(self, client: redis.Redis, subject: str) -> None:
        (key,) = client.keys(f"*:{subject.replace('.', ':')}") or [b""]
        known = key and b"archiver" in [group["name"] for group in client.xinfo_groups(key)]
        if known and client.xpending(key, "archiver")["pending"] <= LAG_THRESHOLD:
            client.xtrim(key, maxlen=0, approximate=False)


@dataclass(frozen=True, slots=True)
class Told:
    """What a story came to."""

    kills: int
    messages: int
    trimmed: int
    lost: int
    twice: int
    trimmed_unarchived: int
    problems: tuple[str, ...] = ()

    @property
    def broken(self) -> str:
        """How the law was broken; empty if it was not."""
        counts = {"lost": self.lost, "twice": self.twice, "trimmed unarchived": self.trimmed_unarchived}
        return "; ".join([*(f"{what} {count}" for what, count in counts.items() if count), *self.problems])


@contextlib.asynccontextmanager
async def story_at(
    pair: StreamAndStore, seed: int, planted: redis.Redis | None = None
) -> AsyncIterator[tuple[Story, Callable[[str], Awaitable[Told]]]]:
    """A story that begins, and what ends it: a last archiver with this store, and the law over all of it."""
    stores = Stores(SystemClock())
    try:
        backend, objects = await stores.open_streams(pair.transport), await stores.open_objects(pair.objects)
        story = Story(pair, backend, objects, seed)
        story.trim_by_pending = planted

        async def end(store: str) -> Told:
            last = await archiver(stores, pair, store, "last")
            at_rest = await rest(last, backend, ATTEMPTS if planted is None else 1)
            await story.trim()
            return await told(story, objects, () if at_rest else ("it does not come to rest",))

        yield story, end
    finally:
        await stores.close()


async def rest(last: Archiver, backend: Backend, attempts: int) -> bool:
    """Archives until all is archived; whether that is so."""
    for _ in range(attempts):
        with contextlib.suppress(StoreUnavailable):
            await last.drain()
        if await _caught_up(backend):
            return True
    return False


async def told(story: Story, objects: Objects, problems: tuple[str, ...]) -> Told:
    """The law over all of it."""
    wanted = Counter(itertools.chain.from_iterable(story.published.values()))
    found = await archived_ids(objects)
    chains = [e async for e in verify(objects, "archive", ">", group=GROUP, streams=story.backend.streams)]
    problems += tuple(problem.what for chain in chains for problem in chain.problems)
    lost, twice = sum((wanted - found).values()), sum((found - wanted).values())
    return Told(story.kills, wanted.total(), sum(story.gone.values()), lost, twice, story.unarchived, problems)


async def killed(
    pair: StreamAndStore,
    *,
    rounds: int,
    at_once: int = 1,
    store: str = "true",
    seed: int = 1,
    planted: redis.Redis | None = None,
) -> Told:
    """A whole story of kills."""
    async with story_at(pair, seed, planted) as (story, end):
        await story.rounds(rounds, at_once, store)
        return await end(store)


async def stood_still(pair: StreamAndStore, store: str = "true", planted: redis.Redis | None = None) -> Told:
    """An archiver stands still between what it has read and its put. Meanwhile more is published, another archives all
    of it, and all of that is trimmed. Then it goes on."""
    async with story_at(pair, 1, planted) as (story, end), story.nursery() as say:
        await story.publish(6)
        assert await say(f"stand {store}")
        await story.publish(6)
        await story.trim()
        before = await end(store)
        assert await say("go") == 0
        after = await end(store)
        return replace(after, problems=before.problems + after.problems)


async def _caught_up(backend: Backend) -> bool:
    await asyncio.sleep(0.02)
    states = [await backend.streams.info(subject) for subject in SUBJECTS]
    return all(
        state is None or [each.floor for each in state.groups if each.name == GROUP] == [state.last] for state in states
    )
