"""Several processes on one file: they share it fairly, wake each other, and none can spoil it by dying."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections import Counter
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from backends.sqlite import child as sqlite_child
from backends.sqlite.law import broken_laws, stored_ids
from wrasse.backends.sqlite.connect import Sqlite
from wrasse.errors import StoreUnavailable
from wrasse.ports.jobs import Enqueued, Job

HEARTBEAT_TIMEOUT = timedelta(seconds=60)


def ready(child: subprocess.Popen[str]) -> subprocess.Popen[str]:
    assert child.stdout is not None
    assert child.stdout.readline() == "waiting\n"
    return child


def go(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


async def test_processes_that_race_for_jobs_each_win_different_ones(tmp_path: Path) -> None:
    path = tmp_path / "wrasse.db"
    store = await Sqlite.open(path)
    ids = [f"job-{n}" for n in range(500)]
    await store.jobs.enqueue([Job(id) for id in ids], request="r")
    children = [ready(sqlite_child.start("takes_all", path)) for _ in range(3)]
    for child in children:
        go(child)
    taken = [await asyncio.to_thread(sqlite_child.finish, child) for child in children]
    counts = await store.jobs.counts()
    await store.close()
    assert Counter(id for one in taken for id in one) == Counter(ids)
    assert counts.queues[0].done == 500
    assert broken_laws(path) == []


async def test_an_enqueue_by_another_process_wakes_a_waiting_worker(tmp_path: Path) -> None:
    path = tmp_path / "wrasse.db"
    store = await Sqlite.open(path)
    child = ready(sqlite_child.start("puts_one", path))
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        wait = timedelta(hours=1)
        take = group.create_task(
            store.jobs.claim(["low"], 1, worker="w", heartbeat_timeout=HEARTBEAT_TIMEOUT, request="t", wait=wait)
        )
        while not store._wakeups._wakeups:  # noqa: ASYNC110
            await asyncio.sleep(0)
        go(child)
    await asyncio.to_thread(sqlite_child.finish, child)
    await store.close()
    assert [job.job.id for job in take.result().jobs] == ["from-outside"]


@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.full)])
def test_a_killed_process_leaves_every_answered_enqueue_and_a_sound_file(tmp_path: Path, kills: int) -> None:
    path = tmp_path / "wrasse.db"
    answered: set[str] = set()
    for kill in range(kills):
        # Two at a time, so that one dies while the other writes.
        children = [sqlite_child.start("churns", path) for _ in range(2)]
        for child in children:
            assert child.stdout is not None
            answered.update(child.stdout.readline().strip() for _ in range(60 * (kill + 1)))
            os.kill(child.pid, signal.SIGKILL)
            # The last line may be torn by the kill; its job was answered, but this cannot be read from it.
            rest = child.stdout.read().splitlines(keepends=True)
            answered.update(line.strip() for line in rest if line.endswith("\n"))
            child.communicate()
        assert broken_laws(path) == []
    forgotten = {id for (id,) in apsw.Connection(str(path)).execute("SELECT id FROM ids")}
    assert answered
    assert answered <= stored_ids(path) | forgotten


async def test_a_program_that_keeps_the_file_locked_delays_writes_and_no_reads(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db", patience=timedelta(milliseconds=200))
    await store.jobs.enqueue([Job("before")], request="before")
    other = apsw.Connection(str(tmp_path / "wrasse.db"))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="stayed locked by another process"):
        await store.jobs.enqueue([Job("meanwhile")], request="meanwhile")
    assert await store.jobs.get("before") is not None
    other.execute("ROLLBACK")
    assert await store.jobs.enqueue([Job("meanwhile")], request="meanwhile") == (Enqueued("meanwhile", new=True),)
    await store.close()


async def test_a_store_that_came_through_a_fork_is_refused(tmp_path: Path) -> None:
    store = await Sqlite.open(tmp_path / "wrasse.db")
    store._writer._thread._pid -= 1  # as the child of a fork sees it
    with pytest.raises(Exception, match="was opened before a fork"):
        await store.jobs.enqueue([Job("a")], request="r")
    store._writer._thread._pid += 1
    await store.close()
