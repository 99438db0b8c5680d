"""Calling a handler: async functions in the event loop, plain ones in a thread of their own that nobody waits for.

The threads are daemons: a handler that never returns must not keep a stopped process alive. Its message comes back
when its deadline passes, so nothing is lost by leaving it behind.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import cast

from wrasse.errors import UsageError
from wrasse.ports.groups import Delivery
from wrasse.streams.envelope import Envelope
from wrasse.streams.received import PlainReceived, Received

AsyncHandler = Callable[[Received], Awaitable[object]]
PlainHandler = Callable[[PlainReceived], object]
Handler = AsyncHandler | PlainHandler


class Caller:
    """Knows how a handler is called; decided once, not per message."""

    def __init__(self, handler: Handler) -> None:
        if not callable(handler):
            raise UsageError(f"a handler of type {type(handler).__name__}", do="give a function that takes the message")
        if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
            raise UsageError("a handler that is a generator", do="return instead of yielding")
        self._handler = handler
        call = type(handler).__call__
        self.plain = not (inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call))

    async def call(self, delivery: Delivery, envelope: Envelope, received: Received) -> None:
        """Runs the handler; returns or raises as it does."""
        if self.plain:
            await _in_thread(cast(PlainHandler, self._handler), PlainReceived(delivery, envelope, received))
        else:
            await cast(AsyncHandler, self._handler)(received)


async def _in_thread(handler: PlainHandler, message: PlainReceived) -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    context = copy_context()

    def run() -> None:
        error: BaseException | None = None
        try:
            _refuse_awaitable(context.run(handler, message))
        # SystemExit ends neither thread nor process here: the message was not handled.
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            loop.call_soon_threadsafe(_tell, done, error)

    Thread(target=run, name="wrasse-handler", daemon=True).start()
    await done


def _refuse_awaitable(result: object) -> None:
    """A plain function that gives something to await has done nothing yet, and its message must not count as done."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise UsageError("a plain handler returned something to await", do="make it `async def`")


def _tell(done: asyncio.Future[None], error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    elif isinstance(error, Exception) and not isinstance(error, StopIteration):
        done.set_exception(error)
    else:
        # A future cannot carry these: StopIteration is refused, and the others would end the event loop.
        done.set_exception(RuntimeError(f"the handler raised {type(error).__name__}: {error}"))
