"""SIGKILL at any moment, on SQLite and a directory: no message is lost, none is archived twice."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from app.archiver_actor import archiver
from wrasse.archives.drain import GROUP
from wrasse.archives.lines import entry_of
from wrasse.archives.reader import lines_at
from wrasse.archives.verify import verify
from wrasse.backends.directory.connect import Directory
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.clock import SystemClock
from wrasse.ports.objects import Objects
from wrasse.streams.envelope import decode
from wrasse.streams.publisher import Message, Publisher

TESTS = Path(__file__).parents[1]
SUBJECTS = ("gbe.events.audit.change", "gbe.events.audit.login")


class Story:
    """Rounds of archivers that die while messages are published and trimmed."""

    def __init__(self, folder: Path, sqlite: Sqlite, seed: int) -> None:
        self.folder = folder
        self.sqlite = sqlite
        self.draw = random.Random(seed)
        self.deaths = random.Random(seed)  # of its own: how often we publish depends on how busy the machine is
        self.published: list[str] = []
        self.kills = 0

    async def rounds(self, count: int, at_once: int, store: str) -> None:
        """So many rounds."""
        path = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
        actor = await asyncio.create_subprocess_exec(
            sys.executable, str(TESTS / "app" / "archiver_actor.py"), str(self.folder), stdin=PIPE, stdout=PIPE,
            env=environ,
        )  # fmt: skip
        assert actor.stdin is not None
        assert actor.stdout is not None
        try:
            for _ in range(count):
                await self.publish()
                actor.stdin.write(f"{at_once} {self.deaths.randrange(1 << 30)} {store}\n".encode())
                await actor.stdin.drain()
                async with asyncio.timeout(60):
                    ending = asyncio.ensure_future(actor.stdout.readline())
                    while not ending.done():
                        await self.publish()
                        await self.trim()
                        await asyncio.wait([ending], timeout=0.01)
                    self.kills += int(await ending)
        finally:
            actor.stdin.close()
            await actor.wait()

    async def publish(self) -> None:
        publisher = Publisher(self.sqlite.streams, SystemClock())
        drafts = [Message(self.draw.choice(SUBJECTS), b"x" * 20) for _ in range(self.draw.randrange(1, 9))]
        self.published += await publisher.publish_many(drafts)

    async def trim(self) -> None:
        for subject in SUBJECTS:
            await self.sqlite.streams.trim(subject, age=timedelta(0), below=None, protect=[GROUP], limit=1_000)


async def archived_ids(objects: Objects) -> Counter[str]:
    """The id of every message in any object, whatever its name."""
    found: Counter[str] = Counter()
    for info in (await objects.page("", None, 100_000)).items:
        async for line in lines_at(objects, info.key):
            found[decode(entry_of(line, "any").body).message_id] += 1
    return found


async def told(folder: Path, *, rounds: int, at_once: int = 1, store: str = "true", seed: int = 1) -> tuple[int, str]:
    """The whole story: how many died, and how the law was broken."""
    sqlite, directory = await Sqlite.open(folder / "wrasse.db"), await Directory.open(folder / "data")
    try:
        story = Story(folder, sqlite, seed)
        await story.rounds(rounds, at_once, store)
        while not await _caught_up(sqlite):
            await archiver(sqlite, directory, store, "last").drain()
        wanted, found = Counter(story.published), await archived_ids(directory.objects)
        lost, twice = sum((wanted - found).values()), sum((found - wanted).values())
        chains = [e async for e in verify(directory.objects, "archive", ">", group=GROUP, streams=sqlite.streams)]
        problems = [problem.what for chain in chains for problem in chain.problems] if store == "true" else []
        return story.kills, "; ".join(([f"lost {lost}, twice {twice}"] if lost or twice else []) + problems)
    finally:
        await sqlite.close()
        await directory.close()


async def _caught_up(sqlite: Sqlite) -> bool:
    await asyncio.sleep(0.02)
    states = [await sqlite.streams.info(subject) for subject in SUBJECTS]
    return all(state is not None and state.groups and state.groups[0].floor == state.last for state in states)


async def test_thirty_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    assert await told(tmp_path, rounds=30) == (30, "")


async def test_a_random_name_does_not_survive_the_kills(tmp_path: Path) -> None:
    _, broken = await told(tmp_path, rounds=15, store="random")
    assert "twice" in broken


async def test_archivers_killed_side_by_side_double_nothing(tmp_path: Path) -> None:
    assert await told(tmp_path, rounds=4, at_once=3) == (12, "")


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("seed", "at_once"), [(2, 1), (3, 3)])
async def test_hundreds_of_kills_lose_nothing_and_double_nothing(tmp_path: Path, seed: int, at_once: int) -> None:
    assert await told(tmp_path, rounds=100, at_once=at_once, seed=seed) == (100 * at_once, "")


