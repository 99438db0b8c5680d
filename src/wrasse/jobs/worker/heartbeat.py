"""Who sends heartbeats for a worker, and what the worker hears from it.

`ChildHeartbeat` is how a worker lives: a spawned process of its own beats, so that a handler which blocks the event
loop or never lets go of the interpreter keeps its job. A child that dies or hangs is replaced at once, and until the
new one has sent a heartbeat the worker claims nothing. `LoopHeartbeat` sends heartbeats from the worker's own loop, for
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
    ClaimEnded,
    Down,
    HeartbeatOrders,
    HeartbeatSent,
    HeartbeatTable,
    Unable,
    read_word,
    send_heartbeats,
)
from wrasse.ports.jobs import JobQueue, WorkerInfo

CHILD = (sys.executable, "-m", "wrasse.runtime.heartbeat_process")
_LEAVE_MAX = 2.0  # seconds a child has to end by itself
_FAILED_STARTS_MAX = 20
_SHORT_PAUSE = 1.0  # seconds between starts of a child for which files or memory ran out
_PATIENCE_MIN = 1.0

_log = logging.getLogger("wrasse.jobs")


class HeartbeatState:
    """Whether heartbeats are going out, and which postings are gone; one side tells, the other waits."""

    def __init__(self) -> None:
        self._on = asyncio.Event()
        self._off = asyncio.Event()
        self._off.set()
        self._gone: dict[ClaimEnded, None] = {}
        self._news = asyncio.Event()

    @property
    def sending(self) -> bool:
        """Did the last heartbeat go well?"""
        return self._on.is_set()

    def tell_sending(self, beating: bool) -> None:
        """Beats go out, or do not."""
        yes, no = (self._on, self._off) if beating else (self._off, self._on)
        no.clear()
        yes.set()

    def tell_gone(self, gone: ClaimEnded) -> None:
        """This posting is gone. Bounded by the board: the same news twice is one."""
        self._gone[gone] = None
        self._news.set()

    async def until_sending(self) -> None:
        """Waits until heartbeats go out."""
        await self._on.wait()

    async def until_not_sending(self) -> None:
        """Waits until they do not."""
        await self._off.wait()

    async def gone(self) -> Sequence[ClaimEnded]:
        """Waits for postings that are gone; each is told once."""
        await self._news.wait()
        self._news.clear()
        found = tuple(self._gone)
        self._gone.clear()
        return found


class Heartbeat(Protocol):
    """The protocol: something that sends heartbeats for a board for as long as `run` runs."""

    @property
    def state(self) -> HeartbeatState:
        """What the worker waits for."""
        ...

    async def run(self, board: HeartbeatTable, worker: WorkerInfo, heartbeat_timeout: timedelta) -> None:
        """Sends heartbeats until it is cancelled."""
        ...


class LoopHeartbeat:
    """Sends heartbeats from the worker's own event loop."""

    def __init__(self, jobs: JobQueue, clock: Clock) -> None:
        self._jobs = jobs
        self._clock = clock
        self.state = HeartbeatState()

    async def run(self, board: HeartbeatTable, worker: WorkerInfo, heartbeat_timeout: timedelta) -> None:
        """Sends a heartbeat every third of a heartbeat timeout."""
        try:
            while True:
                try:
                    gone = await send_heartbeats(self._jobs, board, worker, heartbeat_timeout, self._clock.monotonic())
                except StoreUnavailable:
                    self.state.tell_sending(False)
                else:
                    self.state.tell_sending(True)
                    for posted in gone:
                        self.state.tell_gone(ClaimEnded(posted.place, posted.word))
                await asyncio.sleep(heartbeat_timeout.total_seconds() / HEARTBEATS_PER_TIMEOUT)
        finally:
            self.state.tell_sending(False)


class ChildHeartbeat:
    """Sends heartbeats from a child process, which opens the backend for itself."""

    def __init__(self, url: str, tally: Tally, command: Sequence[str] = CHILD) -> None:
        self._url = url
        self._tally = tally
        self._command = tuple(command)
        self._process: Process | None = None
        self._heard = False
        self.state = HeartbeatState()

    @property
    def pid(self) -> int | None:
        """The child's process id while there is one."""
        return None if self._process is None else self._process.pid

    async def run(self, board: HeartbeatTable, worker: WorkerInfo, heartbeat_timeout: timedelta) -> None:
        """Keeps a child beating until it is cancelled."""
        beat = heartbeat_timeout.total_seconds() / HEARTBEATS_PER_TIMEOUT
        failed = 0
        while True:
            self._heard = False
            if not await self._one_child(board, worker, heartbeat_timeout):
                await asyncio.sleep(min(beat, _SHORT_PAUSE))  # files or memory ran out: not a fault of the child
                continue
            self._tally.heartbeats_restarted += 1
            failed = 0 if self._heard else failed + 1
            if failed >= _FAILED_STARTS_MAX:
                raise Refused(
                    f"the heartbeat process of worker {worker.id} ended {failed} times before its first heartbeat",
                    do=f"run `{' '.join(self._command)}` by hand, or look at its messages above",
                )
            _log.warning("the heartbeat process ended and is started again", extra={"worker_id": worker.id})
            # The first restart is at once; one that keeps failing is not tried in a tight loop.
            await asyncio.sleep(min(beat, 0.05 * failed))

    async def _one_child(self, board: HeartbeatTable, worker: WorkerInfo, heartbeat_timeout: timedelta) -> bool:
        """One child until it ends; False if this machine had no room for it."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, pass_fds=(board.fd,)
            )
        except OSError as error:
            _log.warning("the heartbeat process did not start", extra={"worker_id": worker.id, "error": error.strerror})
            return not exhausted(error) and error.errno != errno.EAGAIN
        self._process = process
        try:
            assert process.stdin is not None, "started with a pipe"
            with suppress(BrokenPipeError, ConnectionResetError):
                process.stdin.write(HeartbeatOrders(self._url, worker, heartbeat_timeout, board.fd).line())
                await process.stdin.drain()
                await self._listen(process, heartbeat_timeout)
        finally:
            self.state.tell_sending(False)
            self._process = None
            await _leave(process)
        return True

    async def _listen(self, process: Process, heartbeat_timeout: timedelta) -> None:
        """Hears the child until it ends, or says nothing for too long."""
        assert process.stdout is not None, "started with a pipe"
        patience = max(heartbeat_timeout.total_seconds() / HEARTBEATS_PER_TIMEOUT, _PATIENCE_MIN)
        missed = 0
        while missed < 2:
            try:
                async with asyncio.timeout(patience if self._heard else 10 * patience):
                    line = await process.stdout.readline()
            except TimeoutError:
                # Once may be our own fault: a handler blocked this loop, and the child's words wait in the pipe.
                missed += 1
                continue
            if not line.endswith(b"\n"):
                return
            missed = 0
            self._hear(line)

    def _hear(self, line: bytes) -> None:
        match read_word(line):
            case HeartbeatSent():
                self._heard = True
                self.state.tell_sending(True)
            case Down():
                self._heard = True
                self.state.tell_sending(False)
            case ClaimEnded() as gone:
                self.state.tell_gone(gone)
            case Unable(message, do):
                raise StoreBroken(f"the heartbeat process cannot work: {message}", do=do)


async def _leave(process: Process) -> None:
    """Closes the child's pipe, which tells it to stop, and kills it if it does not."""
    assert process.stdin is not None, "started with a pipe"
    process.stdin.close()
    try:
        async with asyncio.timeout(_LEAVE_MAX):
            await process.wait()
    except (TimeoutError, asyncio.CancelledError):
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
