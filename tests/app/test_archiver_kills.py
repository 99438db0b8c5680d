"""SIGKILL at any moment, on every transport and store, with a store that fails at random and trimming that never waits:
no message is lost, none is archived twice, none is trimmed unarchived.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
import redis

from app.archiver_actor import Yard, archiver
from conformance.object_stores import make_bucket
from servers.nats import SHARED_NATS
from servers.seaweed import S3
from servers.valkey import Valkey
from wrasse.app.wiring import Store, Stores
from wrasse.archives.drain import GROUP
from wrasse.archives.lines import entry_of
from wrasse.archives.reader import lines_at
from wrasse.archives.verify import verify
from wrasse.clock import SystemClock
from wrasse.errors import StoreUnavailable
from wrasse.ports.objects import Objects
from wrasse.streams.envelope import decode
from wrasse.streams.publisher import Message, Publisher

TESTS = Path(__file__).parents[1]
SUBJECTS = ("gbe.events.audit.change", "gbe.events.audit.login")
LAG_THRESHOLD = 10_000  # of the guard in the design document
MEANWHILE = 4  # how often something is published and trimmed while archivers live
ATTEMPTS = 1_000  # to take the last stream from whoever died with its lease


class Yards:
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

    async def make(self, transport: str, store: str) -> Yard:
        """A yard on these backends."""
        return Yard(self._transport(transport), await self._store(store))

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
            f"s3://{bucket}/{self.prefix}?endpoint={server.endpoint}"
            f"&access_key={server.key}&secret_key={server.secret}"
        )


@pytest.fixture
def yards(tmp_path: Path, request: pytest.FixtureRequest) -> Yards:
    return Yards(tmp_path, request)


class Story:
    """Rounds of archivers that die while messages are published and trimmed."""

    def __init__(self, yard: Yard, backend: Store, seed: int) -> None:
        self.yard = yard
        self.backend = backend
        self.draw = random.Random(seed)
        self.deaths = random.Random(seed)  # of its own: how often we publish depends on how busy the machine is
        self.published: list[str] = []
        self.kills = 0
        self.trim_by_pending: redis.Redis | None = None  # a planted bug: the guard of the design document

    async def rounds(self, count: int, at_once: int, store: str) -> None:
        """So many rounds."""
        path = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
        actor = await asyncio.create_subprocess_exec(
            sys.executable, str(TESTS / "app" / "archiver_actor.py"), self.yard.transport, self.yard.objects,
            stdin=PIPE, stdout=PIPE, env=environ,
        )  # fmt: skip
        assert actor.stdin is not None
        assert actor.stdout is not None
        try:
            for _ in range(count):
                await self.publish()
                actor.stdin.write(f"{at_once} {self.deaths.randrange(1 << 30)} {store}\n".encode())
                await actor.stdin.drain()
                async with asyncio.timeout(120):
                    ending = asyncio.ensure_future(actor.stdout.readline())
                    # Not for as long as it takes: on a busy machine that would be ever more to archive.
                    for _ in range(MEANWHILE):
                        await self.publish()
                        await self.trim()
                        await asyncio.wait([ending], timeout=0.01)
                    self.kills += int(await ending)
        finally:
            actor.stdin.close()
            await actor.wait()

    async def publish(self) -> None:
        publisher = Publisher(self.backend.streams, SystemClock())
        drafts = [Message(self.draw.choice(SUBJECTS), b"x" * 20) for _ in range(self.draw.randrange(1, 9))]
        self.published += await publisher.publish_many(drafts)

    async def trim(self) -> None:
        for subject in SUBJECTS:
            if self.trim_by_pending is None:
                await self.backend.streams.trim(subject, age=timedelta(0), below=None, protect=[GROUP], limit=1_000)
            else:
                self.trim_as_the_design_document_does(self.trim_by_pending, subject)

    def trim_as_the_design_document_does(self, client: redis.Redis, subject: str) -> None:
        (key,) = client.keys(f"*:{subject.replace('.', ':')}") or [b""]
        known = key and b"archiver" in [group["name"] for group in client.xinfo_groups(key)]
        if known and client.xpending(key, "archiver")["pending"] <= LAG_THRESHOLD:
            client.xtrim(key, maxlen=0, approximate=False)


async def archived_ids(objects: Objects) -> Counter[str]:
    """The id of every message in any object, whatever its name."""
    found: Counter[str] = Counter()
    after: str | None = None
    while True:
        page = await objects.page("", after, 1_000)
        for info in page.items:
            async for line in lines_at(objects, info.key):
                found[decode(entry_of(line, "any").body).message_id] += 1
        after = page.cursor
        if after is None:
            return found


async def told(
    yard: Yard, *, rounds: int, at_once: int = 1, store: str = "true", seed: int = 1, planted: redis.Redis | None = None
) -> tuple[int, str]:
    """The whole story: how many died, and how the law was broken."""
    stores, problems = Stores(SystemClock()), list[str]()
    try:
        backend, objects = await stores.open_streams(yard.transport), await stores.open_objects(yard.objects)
        story = Story(yard, backend, seed)
        story.trim_by_pending = planted
        await story.rounds(rounds, at_once, store)
        last = await archiver(stores, yard, store, "last")
        for _ in range(ATTEMPTS if planted is None else 1):
            with contextlib.suppress(StoreUnavailable):
                await last.drain()
            if await _caught_up(backend):
                break
        else:
            problems.append("it does not come to rest")
        wanted, found = Counter(story.published), await archived_ids(objects)
        lost, twice = sum((wanted - found).values()), sum((found - wanted).values())
        chains = [e async for e in verify(objects, "archive", ">", group=GROUP, streams=backend.streams)]
        problems += [problem.what for chain in chains for problem in chain.problems] if store == "true" else []
        return story.kills, "; ".join(([f"lost {lost}, twice {twice}"] if lost or twice else []) + problems)
    finally:
        await stores.close()


async def _caught_up(backend: Store) -> bool:
    await asyncio.sleep(0.02)
    states = [await backend.streams.info(subject) for subject in SUBJECTS]
    return all(
        state is None or [each.floor for each in state.groups if each.name == GROUP] == [state.last]
        for state in states
    )


@pytest.mark.parametrize(
    ("transport", "store", "rounds", "at_once"),
    [
        ("sqlite", "directory", 40, 1),
        ("redis", "directory", 25, 1),
        ("nats", "directory", 14, 1),
        ("sqlite", "s3", 2, 3),
        ("redis", "s3", 3, 3),
        ("nats", "s3", 2, 3),
    ],
)
async def test_a_hundred_kills_lose_nothing_and_double_nothing(
    yards: Yards, transport: str, store: str, rounds: int, at_once: int
) -> None:
    assert await told(await yards.make(transport, store), rounds=rounds, at_once=at_once) == (rounds * at_once, "")


async def test_a_random_name_does_not_survive_the_kills(yards: Yards) -> None:
    _, broken = await told(await yards.make("sqlite", "directory"), rounds=10, store="random", seed=3)
    assert "twice" in broken


async def test_the_guard_that_counts_pending_entries_does_not_survive_them(yards: Yards) -> None:
    yard = await yards.make("redis", "directory")
    with redis.Redis.from_url(yards.redis.url) as client:
        _, broken = await told(yard, rounds=4, planted=_only(client, yards.prefix))
    assert "lost" in broken


def _only(client: redis.Redis, prefix: str) -> redis.Redis:
    """The client, seeing only the keys of one test."""
    every = client.keys
    client.keys = lambda pattern="*": every(f"{prefix}{pattern}")  # type: ignore[method-assign]
    return client


@pytest.mark.full
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("store", ["directory", "s3"])
@pytest.mark.parametrize("transport", ["sqlite", "redis", "nats"])
@pytest.mark.parametrize(("seed", "rounds", "at_once"), [(2, 400, 1), (3, 200, 3)])
async def test_a_thousand_kills_of_each_kind_lose_nothing_and_double_nothing(
    yards: Yards, transport: str, store: str, seed: int, rounds: int, at_once: int
) -> None:
    yard = await yards.make(transport, store)
    assert await told(yard, rounds=rounds, at_once=at_once, seed=seed) == (rounds * at_once, "")
