"""SIGTERM and SIGINT: the first stops the process gracefully, the second ends it at once with exit code 1.

A stop is often sent to a process and to its group at the same time (timeout, a shell that forwards Ctrl-C), so a signal
right after the first is ignored as its echo. Also process-wide settings, which a library must not change for its user.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from wrasse.clock import SystemClock

SIGNALS = (signal.SIGTERM, signal.SIGINT)
ECHO_S = 0.3  # a second signal within this time is an echo
SWITCH_SECONDS = 0.00005


@contextlib.contextmanager
def on_stop(ask: Callable[[str], None], *, heard: bool = True) -> Iterator[None]:
    """While this is open, the first signal calls `ask` with its name in the running loop. Outside of the main thread,
    or unless `heard`, nothing is changed: signals can be handled in the main thread only."""
    if not heard or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, clock = asyncio.get_running_loop(), SystemClock()
    first_at: list[float] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if first_at and clock.monotonic() - first_at[0] < ECHO_S:
            return
        if first_at:
            # At once: what delays the first stop, such as a blocked loop, must not delay the second.
            os._exit(1)
        first_at.append(clock.monotonic())
        loop.call_soon_threadsafe(ask, signal.Signals(number).name)

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def set_switch_interval() -> None:
    """Sets the thread switch interval to 50 microseconds. SQLite's thread needs the interpreter for a moment after
    every statement while a worker's event loop computes; Python's 5 ms are longer than the statement took. The
    throughput of short jobs grows by a quarter or more (`python3 dev.py bench jobs_sqlite`)."""
    sys.setswitchinterval(SWITCH_SECONDS)
