"""Awaits a coroutine inside a context of its own, without a task of its own.

Making a task per job would cost more than a small handler does. A context of its own keeps what a handler sets in
context variables from reaching the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from types import coroutine
from typing import Any


@coroutine
def drive(body: Coroutine[Any, Any, object], context: Context) -> Generator[Any, Any, object]:
    """Runs every step of `body` inside `context`, in the task that awaits this."""
    step: Callable[[Any], Any] = body.send
    sent: Any = None
    while True:
        try:
            awaited = context.run(step, sent)
        except StopIteration as stop:
            return stop.value
        try:
            sent, step = (yield awaited), body.send
        except BaseException as raised:
            sent, step = raised, body.throw
