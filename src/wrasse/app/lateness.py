"""A person who waits for a server is told which one: silence looks like a program that hangs.

Only commands tell; a process that runs on has its log, and a library stays silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LATE_S = 2.0
TELL: ContextVar[Callable[[str], None] | None] = ContextVar("TELL", default=None)


@contextmanager
def told_if_late(where: str) -> Iterator[None]:
    """Tells whoever set TELL that `where` has not answered, once, if what is inside takes long."""
    tell = TELL.get()
    if tell is None:
        yield
        return
    timer = asyncio.get_running_loop().call_later(LATE_S, tell, where)
    try:
        yield
    finally:
        timer.cancel()
