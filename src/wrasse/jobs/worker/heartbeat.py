"""Sends heartbeats for a worker, and reports which claims are gone.

`ChildHeartbeat` is the default: a spawned process sends the heartbeats, so that a handler which blocks the event loop
or keeps the interpreter lock does not lose its job. A child that dies or hangs is replaced at once, and until the new
one has sent a heartbeat the worker claims nothing. `LoopHeartbeat` sends heartbeats from the worker's own loop, for
backends that live in its memory.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Protocol

from wrasse.clock import Clock
from wrasse.errors import Refused, StoreBroken, StoreUnavailable, exhausted
from wrasse.jobs.tally import Tally
from wrasse.jobs.worker.heartbeat_table import (
    HEARTBEATS_PER_TIMEOUT,
    ChildFailed,
    ClaimEnded,
    HeartbeatFailed,
    HeartbeatOrders,
    HeartbeatSent,
    HeartbeatTable,
    parse_message,
    send_heartbeats,
)
from wrasse.ports.jobs import JobQueue, WorkerInfo

CHILD = (sys.executable, "-m", "wrasse.runtime.heartbeat_process")
_STOP_MAX = 2.0  # seconds a child has to end by itself
_FAILED_STARTS_MAX = 20
_SHORT_PAUSE = 1.0  # seconds between starts of a child for which files or memory ran out
_PATIENCE_MIN = 1.0

_log = logging.getLogger("wrasse.jobs")


class HeartbeatState:
    """Whether heartbeats are going out, and which table entries are gone; the sender sets it, the worker waits for
    it."""

    def __init__(self) -> None:
        self._on = asyncio.Event()
        self._off = asyncio.Event()
        self._off.set()
        self._gone: dict[ClaimEnded, None] = {}
        self._gone_changed = asyncio.Event()

    @property
    def sending(self) -> bool:
        """Whether the last heartbeat succeeded."""
        return self._on.is_set()

    def set_sending(self, sending_now: bool) -> None:
        """Sets whether heartbeats go out."""
        yes, no = (self._on, self._off) if sending_now else (self._off, self._on)
        no.clear()
        yes.set()

    def add_gone(self, gone: ClaimEnded) -> None:
        """Adds a table entry whose claim is gone. Bounded by the table: duplicates are dropped."""
        self._gone[gone] = None
        self._gone_changed.set()

    async def until_sending(self) -> None:
        """Waits until heartbeats go out."""
        await self._on.wait()

    async def until_not_sending(self) -> None:
        """Waits until heartbeats do not go out."""
        await self._off.wait()

    async def gone(self) -> Sequence[ClaimEnded]:
        """Waits for entries whose claim is gone; each is returned once."""
        await self._gone_changed.wait()
        self._gone_changed.clear()
        found = tuple(self._gone)
        self._gone.clear()
        return found


class Heartbeat(Protocol):
    """The protocol: sends heartbeats for a table while `run` runs."""

    @property
    def state(self) -> HeartbeatState:
        """What the worker waits for."""
        ...

    async def run(self, table: HeartbeatTable, worker: WorkerInfo, heartbeat_timeout: timedelta) -> None:
        """Sends heartbeats until it is cancelled."""
        ...


class LoopHeartbeat:
    """Sends heartbeats from the worker's own event loop."""

    def __init__(self, jobs: JobQueue, clock: Clock) -> None:
        self._jobs = jobs
        self._clock = clock
        self.state = HeartbeatState()

    async def run(self, table: HeartbeatTable, worker: WorkerInfo, heartbeat_timeout: timedelta) -> None:
        """Sends a heartbeat every third of a heartbeat timeout."""
        try:
            while True:
                try:
                    gone = await send_heartbeats(self._jobs, table, worker, heartbeat_timeout, self._clock.monotonic())
                except StoreUnavailable:
                    self.state.set_sending(False)
                else:
                    self.state.set_sending(True)
                    for entry in gone:
                        self.state.add_gone(ClaimEnded(entry.place, entry.word))
                await asyncio.sleep(heartbeat_timeout.total_seconds() / HEARTBEATS_PER_TIMEOUT)
        finally:
            self.state.set_sending(False)


class ChildHeartbeat:
    """Sends heartbeats from a child process, which opens the backend for itself."""

    def __init__(self, url: str, tally: Tally, command: Sequence[str] = CHILD) -> None:
        self._url = url
        self._tally = tally
        self._command = tuple(command)
        self._process: Process | None = None
        self._child_ready = False
        self.state = HeartbeatState()

    @property
    def pid(self) -> int | None:
        """The child's process id while there is one."""
        return None if self._process is None else self._process.pid

    async def run(self, table: HeartbeatTable, worker: WorkerInfo, heartbeat_timeout: timedelta) -> None:
        """Keeps a child sending heartbeats until it is cancelled."""
        interval = heartbeat_timeout.total_seconds() / HEARTBEATS_PER_TIMEOUT
        failed = 0
        while True:
            self._child_ready = False
            if not await self._run_child(table, worker, heartbeat_timeout):
                await asyncio.sleep(min(interval, _SHORT_PAUSE))  # files or memory ran out: not a fault of the child
                continue
            self._tally.heartbeats_restarted += 1
            failed = 0 if self._child_ready else failed + 1
            if failed >= _FAILED_STARTS_MAX:
                raise Refused(
                    f"the heartbeat process of worker {worker.id} ended {failed} times before its first heartbeat",
                    do=f"run `{' '.join(self._command)}` by hand, or read its messages above",
                )
            _log.warning("the heartbeat process ended and is started again", extra={"worker_id": worker.id})
            # The first restart is immediate; repeated failures wait, to avoid a tight loop.
            await asyncio.sleep(min(interval, 0.05 * failed))

    async def _run_child(self, table: HeartbeatTable, worker: WorkerInfo, heartbeat_timeout: timedelta) -> bool:
        """Runs one child until it ends; False if this machine had no files, memory or processes left for it."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, pass_fds=(table.fd,)
            )
        except OSError as error:
            _log.warning("the heartbeat process did not start", extra={"worker_id": worker.id, "error": error.strerror})
            return not exhausted(error) and error.errno != errno.EAGAIN
        self._process = process
        try:
            assert process.stdin is not None, "started with a pipe"
            with suppress(BrokenPipeError, ConnectionResetError):
                process.stdin.write(HeartbeatOrders(self._url, worker, heartbeat_timeout, table.fd).line())
                await process.stdin.drain()
                await self._read_messages(process, heartbeat_timeout)
        finally:
            self.state.set_sending(False)
            self._process = None
            await _stop_child(process)
        return True

    async def _read_messages(self, process: Process, heartbeat_timeout: timedelta) -> None:
        """Reads the child's messages until it ends, or sends none for too long."""
        assert process.stdout is not None, "started with a pipe"
        patience = max(heartbeat_timeout.total_seconds() / HEARTBEATS_PER_TIMEOUT, _PATIENCE_MIN)
        missed = 0
        while missed < 2:
            try:
                async with asyncio.timeout(patience if self._child_ready else 10 * patience):
                    line = await process.stdout.readline()
            except TimeoutError:
                # One timeout may be ours: a handler blocked this loop, and the child's messages wait in the pipe.
                missed += 1
                continue
            if not line.endswith(b"\n"):
                return
            missed = 0
            self._handle(line)

    def _handle(self, line: bytes) -> None:
        match parse_message(line):
            case HeartbeatSent():
                self._child_ready = True
                self.state.set_sending(True)
            case HeartbeatFailed():
                self._child_ready = True
                self.state.set_sending(False)
            case ClaimEnded() as gone:
                self.state.add_gone(gone)
            case ChildFailed(message, do):
                raise StoreBroken(f"the heartbeat process cannot work: {message}", do=do)


async def _stop_child(process: Process) -> None:
    """Closes the child's pipe, which tells it to stop, and kills it if it does not."""
    assert process.stdin is not None, "started with a pipe"
    process.stdin.close()
    try:
        async with asyncio.timeout(_STOP_MAX):
            await process.wait()
    except (TimeoutError, asyncio.CancelledError):
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
