"""Two at one name in a directory: who comes in the middle of a change waits, and sees it whole.

A file layer stops one change at a chosen step and lets the other begin there. The other must not come to an end before
the first goes on; the pause is only as long as it takes to see that it does not.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from conformance.object_stores import listed, whole
from wrasse.backends.directory.connect import Directory
from wrasse.backends.directory.files import Files, FileState
from wrasse.clock import ManualClock
from wrasse.ports.objects import ObjectDelete, Objects
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection

PAUSE = 0.3
THINGS = Collection.named("things")
Other = Callable[[], Coroutine[Any, Any, Any]]


class StoppedFiles(Files):
    """Before one call of this method with this path, another is let in."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.exchanges = True
        self.pause = PAUSE
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: tuple[str, bytes] | None = None
        self._other: Other | None = None
        self.others: list[concurrent.futures.Future[Any]] = []

    def stop_at(self, call: str, path: bytes, other: Other) -> None:
        """The next such call waits until the other has ended, or is seen to wait."""
        self._loop, self._stop, self._other = asyncio.get_running_loop(), (call, path), other

    def _reached(self, call: str, path: bytes) -> None:
        if (call, path) != self._stop or self._other is None:
            return
        assert self._loop is not None
        other, self._other = self._other, None
        future = asyncio.run_coroutine_threadsafe(other(), self._loop)
        self.others.append(future)
        concurrent.futures.wait([future], self.pause)

    def rename(self, source: bytes, target: bytes) -> None:
        self._reached("rename", target)
        super().rename(source, target)

    def unlink(self, path: bytes) -> None:
        self._reached("unlink", path)
        super().unlink(path)

    def link(self, source: bytes, target: bytes) -> None:
        self._reached("link", target)
        super().link(source, target)

    def state(self, path: bytes) -> FileState | None:
        self._reached("state", path)
        return super().state(path)

    def exchange(self, one: bytes, other: bytes) -> bool:
        if not self.exchanges:
            return False
        self._reached("exchange", one)
        return super().exchange(one, other)


class InTurnsFiles(StoppedFiles):
    """The same where names cannot be exchanged."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.exchanges = False


class Two:
    """Two who have one directory open, and the file layer of each."""

    def __init__(self, first: Directory, second: Directory, files: StoppedFiles, others: StoppedFiles) -> None:
        self.first, self.second, self.files, self.others = first, second, files, others

    async def other(self) -> Any:
        """What the one who was let in got."""
        (future,) = self.files.others
        return await asyncio.wait_for(asyncio.wrap_future(future), 30)


async def open_two(place: Path, kind: type[StoppedFiles]) -> Two:
    opened: list[StoppedFiles] = []

    def files(root: str) -> Files:
        opened.append(kind(root))
        return opened[-1]

    clock = ManualClock()
    first = await Directory.open(place, clock, files=files)
    return Two(first, await Directory.open(place, clock, files=files), *opened)


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    two = await open_two(tmp_path / "data", StoppedFiles)
    yield two
    await two.first.close()
    await two.second.close()


@pytest.fixture
async def in_turns(tmp_path: Path) -> AsyncIterator[Two]:
    two = await open_two(tmp_path / "data", InTurnsFiles)
    yield two
    await two.first.close()
    await two.second.close()


async def made(objects: Objects, key: str, data: bytes = b"old") -> str:
    stored = await objects.create(key, data)
    assert stored.version is not None
    return stored.version


async def test_a_replace_in_the_middle_of_a_replace_is_a_conflict(two: Two) -> None:
    at = await made(two.first.objects, "a")
    two.files.stop_at("rename", b"a", lambda: two.second.objects.replace("a", b"second", at=at))
    first = await two.first.objects.replace("a", b"first", at=at)
    second = await two.other()
    assert (bool(first), second.outcome, await whole(two.second.objects, "a")) == (True, Outcome.CONFLICT, b"first")


async def test_a_delete_in_the_middle_of_a_replace_is_a_conflict(two: Two) -> None:
    at = await made(two.first.objects, "a")
    two.files.stop_at("rename", b"a", lambda: two.second.objects.delete([ObjectDelete("a", at)]))
    first = await two.first.objects.replace("a", b"first", at=at)
    assert (bool(first), list(await two.other())) == (True, [Outcome.CONFLICT])
    assert await whole(two.second.objects, "a") == b"first"


async def test_a_replace_in_the_middle_of_a_delete_is_a_conflict(two: Two) -> None:
    at = await made(two.first.objects, "a")
    two.files.stop_at("unlink", b"a", lambda: two.second.objects.replace("a", b"second", at=at))
    first = await two.first.objects.delete([ObjectDelete("a", at)])
    second = await two.other()
    assert (list(first), second.outcome, await listed(two.second.objects)) == ([Outcome.DONE], Outcome.CONFLICT, [])


async def test_a_replace_while_something_is_put_below_is_not_undone(two: Two) -> None:
    at = await made(two.first.objects, "a")
    two.files.stop_at("exchange", b"a", lambda: two.second.objects.replace("a", b"second", at=at))
    first = await two.first.objects.create("a/b", b"below")
    assert (bool(first), bool(await two.other())) == (True, True)
    assert await whole(two.first.objects, "a") == b"second"


@pytest.mark.parametrize("what", ["head", "page", "read", "create"])
async def test_no_reader_misses_an_object_while_it_becomes_a_directory(in_turns: Two, what: str) -> None:
    at = await made(in_turns.first.objects, "a")
    others: dict[str, Other] = {
        "head": lambda: in_turns.second.objects.head("a"),
        "page": lambda: in_turns.second.objects.page("", None, 10),
        "read": lambda: whole(in_turns.second.objects, "a"),
        "create": lambda: in_turns.second.objects.create("a", b"second"),
    }
    # The file is gone here, and its directory is still empty.
    in_turns.files.stop_at("link", b"a/%o", others[what])
    assert await in_turns.first.objects.create("a/b", b"below")
    seen = await in_turns.other()
    assert {
        "head": lambda: seen is not None and seen.info.version == at,
        "page": lambda: "a" in [info.key for info in seen],
        "read": lambda: seen == b"old",
        "create": lambda: seen.outcome is Outcome.CONFLICT,
    }[what]()


async def test_an_object_does_not_become_a_directory_under_a_reader_of_it(in_turns: Two) -> None:
    at = await made(in_turns.first.objects, "a")
    looked = asyncio.Event()
    # One is about to look; the other would have taken the file away by then, and not yet filled the directory.
    in_turns.files.pause = 30
    in_turns.files.stop_at("link", b"a/%o", looked.wait)
    in_turns.others.stop_at("state", b"a", lambda: in_turns.first.objects.create("a/b", b"below"))
    seen = await in_turns.second.objects.head("a")
    looked.set()
    assert await asyncio.wait_for(asyncio.wrap_future(in_turns.others.others[0]), 30)
    assert seen is not None
    assert seen.info.version == at


async def test_a_put_in_the_middle_of_a_put_is_a_conflict(two: Two) -> None:
    records, others = two.first.records(THINGS), two.second.records(THINGS)
    at = (await records.create("k", b"0")).version or ""
    two.files.stop_at("rename", b"things/r/k.json", lambda: others.put("k", b"second", at=at))
    first, second = await records.put("k", b"first", at=at), await two.other()
    record = await others.get("k")
    assert (bool(first), second.outcome, record and record.value) == (True, Outcome.CONFLICT, b"first")


async def test_an_entry_made_while_its_bucket_is_retired_is_not_lost(two: Two) -> None:
    clock = ManualClock()
    records, others = two.first.records(THINGS), two.second.records(THINGS)
    at = (await records.create("old", b"", due_at=clock.now())).version or ""
    await records.delete("old", at=at)
    # Between the removal of the empty directory and the list without it.
    two.files.stop_at("rename", b"things/due/buckets.json", lambda: others.create("new", b"", due_at=clock.now()))
    later = clock.now().replace(year=2027)
    await records.due(later, None, 10)
    assert await two.other()
    assert [record.key for record in await records.due(later, None, 10)] == ["new"]


async def test_a_stale_entry_is_not_removed_under_the_writer_that_needs_it(two: Two) -> None:
    clock = ManualClock()
    records, others = two.first.records(THINGS), two.second.records(THINGS)
    at = (await records.create("k", b"")).version or ""
    later = clock.now().replace(year=2027)
    # The entry is there, and its record does not say so yet.
    two.files.stop_at("rename", b"things/r/k.json", lambda: others.due(later, None, 10))
    assert await records.put("k", b"", at=at, due_at=clock.now())
    await two.other()
    assert [record.key for record in await records.due(later, None, 10)] == ["k"]
