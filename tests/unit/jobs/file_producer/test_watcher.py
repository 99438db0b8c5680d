"""Watching a directory: each file is enqueued once, when it is no longer written to, with and without inotify."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from unit.jobs.file_producer.scene import names_of, producer_of
from unit.jobs.worker.scene import eventually
from wrasse.backends.memory.connect import Memory
from wrasse.clock import SystemClock
from wrasse.jobs.file_producer.producer import FileProducer
from wrasse.jobs.file_producer.watcher import RESCAN, WATCHES_MAX, DirectoryWatcher, Notices


@pytest.fixture(params=["told", "polling"])
def told(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "told")


@asynccontextmanager
async def watching(
    root: Path, memory: Memory, told: bool, watches_max: int = WATCHES_MAX
) -> AsyncIterator[FileProducer]:
    """Files of this directory are enqueued for as long as the block lasts, and every change within it is noticed: where
    the system tells, by what it tells, since the walks of the beginning are over and the next one is minutes away."""
    producer = producer_of(root, memory)
    watch = DirectoryWatcher(producer, SystemClock(), use_inotify=told, watches_max=watches_max)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(watch.run())
        await watch.watched.wait()
        if told and watches_max > 1:
            await eventually(lambda: watch._due.get("", 0) > SystemClock().monotonic() + RESCAN.total_seconds() / 2)
        try:
            yield producer
        finally:
            watch.stop()


async def until_enqueued(memory: Memory, *names: str) -> None:
    """Waits until there is a job for each of these files."""

    async def so() -> bool:
        return await names_of(memory) == sorted(names)

    await eventually(so)


async def test_what_is_there_and_what_comes_is_put_once(tmp_path: Path, told: bool) -> None:
    memory = Memory()
    (tmp_path / "before").write_text("x")
    async with watching(tmp_path, memory, told):
        await until_enqueued(memory, "before")
        (tmp_path / "after").write_text("x")
        (tmp_path / "left.tmp").write_text("x")
        await until_enqueued(memory, "after", "before")
    assert await names_of(memory) == ["after", "before"]


async def test_a_file_moved_in_is_put(tmp_path: Path, told: bool) -> None:
    memory, root = Memory(), tmp_path / "in"
    root.mkdir()
    (tmp_path / "file").write_text("x")
    async with watching(root, memory, told):
        (tmp_path / "file").rename(root / "file")
        await until_enqueued(memory, "file")
    assert await names_of(memory) == ["file"]


async def test_a_directory_moved_in_is_put_and_watched(tmp_path: Path, told: bool) -> None:
    memory, root = Memory(), tmp_path / "in"
    root.mkdir()
    (tmp_path / "tree/deep").mkdir(parents=True)
    (tmp_path / "tree/deep/old").write_text("x")
    os.utime(tmp_path / "tree/deep/old", (1, 1))
    async with watching(root, memory, told):
        (tmp_path / "tree").rename(root / "tree")
        await until_enqueued(memory, "old")
        (root / "tree/deep/new").write_text("x")
        await until_enqueued(memory, "new", "old")
    assert await names_of(memory) == ["new", "old"]


async def test_a_new_directory_is_watched(tmp_path: Path, told: bool) -> None:
    memory = Memory()
    async with watching(tmp_path, memory, told):
        (tmp_path / "a/b/c").mkdir(parents=True)
        (tmp_path / "a/b/c/file").write_text("x")
        await until_enqueued(memory, "file")
    assert await names_of(memory) == ["file"]


async def test_a_file_that_changed_is_put_again(tmp_path: Path, told: bool) -> None:
    memory = Memory()
    async with watching(tmp_path, memory, told):
        (tmp_path / "file").write_text("x")
        await until_enqueued(memory, "file")
        (tmp_path / "file").write_text("longer")
        await until_enqueued(memory, "file", "file")
    assert await names_of(memory) == ["file", "file"]


async def test_a_file_that_is_still_written_to_is_put_when_it_is_closed(tmp_path: Path) -> None:
    memory = Memory()
    async with watching(tmp_path, memory, told=True):
        with (tmp_path / "slow").open("w") as slow:
            slow.write("half")
            slow.flush()
            (tmp_path / "other").write_text("x")
            await until_enqueued(memory, "other")
            slow.write(" and half")
        await until_enqueued(memory, "other", "slow")
    assert await names_of(memory) == ["other", "slow"]


async def test_a_link_out_of_the_directory_is_not_put(tmp_path: Path, told: bool) -> None:
    memory, root = Memory(), tmp_path / "in"
    root.mkdir()
    (tmp_path / "secret").write_text("x")
    async with watching(root, memory, told) as producer:
        (root / "link").symlink_to(tmp_path / "secret")
        await eventually(lambda: producer.done.skipped > 0)
        (root / "file").write_text("x")
        await until_enqueued(memory, "file")
    assert await names_of(memory) == ["file"]


async def test_more_directories_than_may_be_watched_are_walked_instead(tmp_path: Path) -> None:
    memory = Memory()
    (tmp_path / "sub").mkdir()
    async with watching(tmp_path, memory, told=True, watches_max=1):
        (tmp_path / "sub/file").write_text("x")
        await until_enqueued(memory, "file")
    assert await names_of(memory) == ["file"]


async def test_what_the_system_forgot_to_tell_is_found_by_looking_everywhere(tmp_path: Path) -> None:
    """A queue of notices that ran over is said by one notice of the root."""
    (tmp_path / "a").mkdir()
    notices = Notices.open(str(tmp_path))
    assert notices is not None
    try:
        (notice,) = notices._parsed(b"\xff\xff\xff\xff\x00\x40\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
    finally:
        notices.close()
    assert (notice.path, notice.directory) == ("", True)
