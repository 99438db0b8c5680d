"""The heartbeat process: `python -m wrasse.runtime.heartbeat_process`, started by a worker only.

It sends heartbeats for the claims in its worker's heartbeat table while that worker lives. It ends when its pipe closes
or its parent changes, and kills the commands that a killed worker left. While its parent has been stopped (as by
SIGSTOP) for longer than `heartbeat_timeout` it sends none, and continues when the parent does, to report which claims
are gone. It ignores signals meant to end the worker: handlers that finish within the worker's grace still need their
heartbeats.

It imports as little as possible: one runs beside every worker.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress

from wrasse.clock import Clock, SystemClock
from wrasse.errors import StoreUnavailable, WrasseError, first_error
from wrasse.jobs.worker.heartbeat_table import (
    HEARTBEATS_PER_TIMEOUT,
    ChildFailed,
    ClaimEnded,
    HeartbeatFailed,
    HeartbeatMessage,
    HeartbeatOrders,
    HeartbeatSent,
    HeartbeatTable,
    encode_message,
    send_heartbeats,
)
from wrasse.ports.jobs import JobQueue

_STOPPED_STATES = ("T", "t")
_EXIT_CHECKS, _EXIT_CHECK_SECONDS = 200, 0.05  # for at most ten seconds


class ParentProcess:
    """The worker that started this process: whether it exists, and whether it is stopped."""

    __slots__ = ("_clock", "_pid", "_stopped_since")

    def __init__(self, pid: int, clock: Clock) -> None:
        self._pid = pid
        self._clock = clock
        self._stopped_since: float | None = None

    def gone(self) -> bool:
        """Whether it has ended: its children get another parent at once."""
        return os.getppid() != self._pid

    def stopped_for(self) -> float:
        """For how many seconds every check has found it stopped."""
        if process_state(self._pid) not in _STOPPED_STATES:
            self._stopped_since = None
            return 0.0
        now = self._clock.monotonic()
        if self._stopped_since is None:
            self._stopped_since = now
        return now - self._stopped_since


def process_state(pid: int) -> str:
    """The state letter of a process: the first word after its name, which may have any character but the last
    bracket."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


def report(word: HeartbeatMessage) -> None:
    """Sends a message to the worker. If the pipe is full it is dropped: it is repeated, or no longer needed."""
    with suppress(BlockingIOError, BrokenPipeError):
        os.write(1, encode_message(word))


async def send_heartbeats_for(
    orders: HeartbeatOrders, jobs: JobQueue, table: HeartbeatTable, parent: ParentProcess, clock: Clock
) -> None:
    """Sends heartbeats until the parent is gone."""
    heartbeat_timeout = orders.heartbeat_timeout.total_seconds()
    while not parent.gone():
        pause = heartbeat_timeout / HEARTBEATS_PER_TIMEOUT
        if parent.stopped_for() < heartbeat_timeout:
            try:
                gone = await send_heartbeats(jobs, table, orders.worker, orders.heartbeat_timeout, clock.monotonic())
            except StoreUnavailable:
                report(HeartbeatFailed())
                pause /= HEARTBEATS_PER_TIMEOUT
            else:
                for entry in gone:
                    report(ClaimEnded(entry.place, entry.word))
                report(HeartbeatSent())
        else:
            pause /= HEARTBEATS_PER_TIMEOUT
        await asyncio.sleep(pause)


async def serve() -> None:
    """Reads the orders and sends heartbeats until the pipe closes."""
    clock = SystemClock()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    line = await reader.readline()
    if not line.endswith(b"\n"):
        return
    orders = HeartbeatOrders.of(line)
    table = HeartbeatTable.attach(orders.table)
    parent = ParentProcess(orders.worker.pid, clock)
    if jobs := await open_patiently(orders, parent):
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(send_heartbeats_for(orders, jobs, table, parent, clock))
            ending = group.create_task(reader.read())
            await asyncio.wait((sending, ending), return_when=asyncio.FIRST_COMPLETED)
            sending.cancel()
            ending.cancel()
    await end_commands(table, parent)


async def end_commands(table: HeartbeatTable, parent: ParentProcess) -> None:
    """Kills the commands of a killed worker, whose jobs will run elsewhere. A live worker ends its own."""
    groups = {entry.group for entry in table.read() if entry.group}
    for _ in range(_EXIT_CHECKS if groups else 0):
        if parent.gone():
            for group in groups:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
            return
        # The pipe of an ending process closes a moment before the process is gone.
        await asyncio.sleep(_EXIT_CHECK_SECONDS)


async def open_patiently(orders: HeartbeatOrders, parent: ParentProcess) -> JobQueue | None:
    """The backend, as soon as it can be opened; None if the parent is gone before that."""
    while not parent.gone():
        try:
            return await _open_jobs(orders.url)
        except StoreUnavailable:
            report(HeartbeatFailed())
            await asyncio.sleep(orders.heartbeat_timeout.total_seconds() / HEARTBEATS_PER_TIMEOUT**2)
    return None


async def _open_jobs(url: str) -> JobQueue:
    """The job queue of a URL, for the life of the process. Its modules are imported only now."""
    if url.startswith("tasks:"):
        from wrasse.runtime.stream_tasks import open_task_jobs

        return await open_task_jobs(url)
    from wrasse.runtime.backends import open_store, with_jobs

    return with_jobs(await open_store(url)).jobs


def main() -> None:
    """The process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.set_blocking(1, False)
    try:
        asyncio.run(serve())
    except* WrasseError as errors:
        error = first_error(errors)
        report(ChildFailed(error.message, error.do))
    # Without interpreter teardown: the worker waits for this process, and nothing is left to save.
    os._exit(0)


if __name__ == "__main__":
    main()
