"""A heartbeat process that cannot do its work: the worker says so instead of waiting for ever."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from processes.kill_scene import alive
from wrasse.errors import Refused, StoreBroken
from wrasse.jobs.tally import Tally
from wrasse.jobs.worker.heartbeat import ChildHeartbeat
from wrasse.jobs.worker.heartbeat_table import HeartbeatTable
from wrasse.ports.jobs import WorkerInfo

HEARTBEAT_TIMEOUT = timedelta(milliseconds=300)
WORKER = WorkerInfo("worker", pid=os.getpid())


def command_line(pid: int | None) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


async def test_a_child_that_never_starts_is_given_up_and_no_heartbeat_is_sent() -> None:
    tally = Tally()
    beats = ChildHeartbeat("sqlite:x.db", tally, (sys.executable, "-S", "-c", ""))
    with pytest.raises(Refused, match="before its first heartbeat"):
        await beats.run(HeartbeatTable.make(1), WORKER, HEARTBEAT_TIMEOUT)
    assert tally.heartbeats_restarted == 20
    assert not beats.state.sending


async def test_a_child_that_finds_something_else_in_place_of_its_database_says_so(tmp_path: Path) -> None:
    (tmp_path / "not.db").write_text("something else entirely, and longer than a header" * 100)
    beats = ChildHeartbeat(f"sqlite://{tmp_path}/not.db", Tally())
    with pytest.raises(StoreBroken, match="the heartbeat process cannot work"):
        await beats.run(HeartbeatTable.make(1), WORKER, HEARTBEAT_TIMEOUT)
    assert beats.pid is None


async def test_a_child_ends_with_the_task_that_keeps_it(tmp_path: Path) -> None:
    beats = ChildHeartbeat(f"sqlite://{tmp_path}/jobs.db", Tally())
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        task = group.create_task(beats.run(HeartbeatTable.make(1), WORKER, HEARTBEAT_TIMEOUT))
        await beats.state.until_sending()
        pid = beats.pid
        task.cancel()
    assert pid is not None
    assert not alive(pid)


async def test_a_secret_in_the_url_is_not_on_the_command_line(tmp_path: Path) -> None:
    beats = ChildHeartbeat(f"sqlite://{tmp_path}/secret.db", Tally())
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        task = group.create_task(beats.run(HeartbeatTable.make(1), WORKER, HEARTBEAT_TIMEOUT))
        await beats.state.until_sending()
        line = command_line(beats.pid)
        task.cancel()
    assert b"wrasse.runtime.heartbeat_process" in line
    assert b"secret" not in line
