"""SIGTERM and SIGINT: the first asks, the second ends the process at once with exit code 1.

Whoever stops a process often tells it and its group in one breath (timeout, a shell that passes Ctrl-C on), so a signal
right after the first is its echo.

And what a process of ours sets for itself, which a library must not set for whoever uses it.
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
ECHO_S = 0.3  # nobody means two things in that time


@contextlib.contextmanager
def on_stop(ask: Callable[[str], None], *, heard: bool = True) -> Iterator[None]:
    """While this is open, the first signal calls `ask` with its name in the running loop. Outside of the main thread
    signals cannot be heard, and nothing is changed; nor is it unless they are to be `heard`."""
    if not heard or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, clock = asyncio.get_running_loop(), SystemClock()
    asked: list[float] = []

    def hear(number: int, frame: FrameType | None) -> None:
        if asked and clock.monotonic() - asked[0] < ECHO_S:
            return
        if asked:
            # Straight out: whatever holds up the first stop, a blocked loop for one, must not hold up the second.
            os._exit(1)
        asked.append(clock.monotonic())
        loop.call_soon_threadsafe(ask, signal.Signals(number).name)

    before = {number: signal.signal(number, hear) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


SWITCH_SECONDS = 0.00005


def hand_over_sooner() -> None:
    """Lets threads that wait for the interpreter have it after 50 microseconds. A worker's event loop computes while
    SQLite's thread needs the interpreter for a moment after every statement; Python's own 5 ms are longer than the
    statement took. Short jobs gain a quarter or more (`python3 dev.py bench jobs_sqlite`)."""
    sys.setswitchinterval(SWITCH_SECONDS)
