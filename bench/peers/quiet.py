"""The same conditions for every measurement on a machine that others use too.

One measurement at a time: a lock. On a virtual machine a core that halts takes some 50 us to wake, so that a round trip
costs twice as much on a quiet machine as on a busy one: spinners of the lowest class keep the cores awake and yield to
anything else. What is measured runs in the real-time class where that is allowed, so that the work of others neither
helps nor hurts much; and how much of the machine others used is noted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_LOCK = Path(tempfile.gettempdir()) / "wrasse-bench.lock"
_TICK = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def conditions() -> Iterator[tuple[int, ...]]:
    """Holds the lock and keeps the cores awake; gives the spinners' ids."""
    with _LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        spinners = tuple(_spinner(core) for core in sorted(os.sched_getaffinity(0)))
        try:
            yield spinners
        finally:
            for spinner in spinners:
                os.kill(spinner, signal.SIGKILL)
                os.waitpid(spinner, 0)


def _spinner(core: int) -> int:
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        os.sched_setaffinity(0, {core})
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        while os.getppid() == parent:
            for _ in range(2_000_000):
                pass
    finally:
        os._exit(0)


def hurry(process: int, priority: int = 1) -> None:
    """Puts a process, and what it starts from now on, into the real-time class, if we may."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(process, os.SCHED_RR, os.sched_param(priority))


@contextlib.contextmanager
def hurried() -> Iterator[None]:
    """The same for this process, for a while."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    hurry(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


def session(leader: int) -> dict[int, float]:
    """The live processes of a session, and the processor seconds each has used."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                state, of, used = _look(int(name))
                if of == leader and state != "Z":
                    found[int(name)] = used
    return found


def _look(process: int) -> tuple[str, int, float]:
    """Its state, its session, and the processor seconds it has used."""
    text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    words = text[text.rindex(")") + 2 :].split()
    return words[0], int(words[3]), (int(words[11]) + int(words[12])) / _TICK


def used(process: int) -> float:
    """The processor seconds a process has used; 0 once it is gone."""
    with contextlib.suppress(OSError):
        return _look(process)[2]
    return 0.0


@dataclass
class Others:
    """How many cores were busy with what is no part of the measurement."""

    own: tuple[int, ...]  # processes of ours: the server, the spinners, the producer
    leader: int = 0  # of the worker's session
    _began: float = field(default_factory=time.monotonic)
    _busy: float = field(init=False)
    _ours: float = field(init=False)

    def __post_init__(self) -> None:
        self._busy, self._ours = _all_used(), self._used()

    def share(self) -> float:
        """Cores, since this was made."""
        passed = max(time.monotonic() - self._began, 1e-6)
        return max(0.0, (_all_used() - self._busy) - (self._used() - self._ours)) / passed

    def _used(self) -> float:
        worker = sum(session(self.leader).values()) if self.leader else 0.0
        return time.process_time() + sum(map(used, self.own)) + worker


def _all_used() -> float:
    words = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:]
    return sum(int(words[place]) for place in (0, 1, 2, 5, 6, 7)) / _TICK
