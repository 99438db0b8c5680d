"""Handlers that are plain functions, run in threads.

The threads are daemons: a handler that never returns must not keep a stopped process alive. What it was about comes
back to whoever works next, so nothing is lost by leaving it behind.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from threading import Thread

from wrasse.errors import OutOfResources, UsageError

_Work = tuple[Callable[[], object], "asyncio.Future[object]"]


class HandlerThread:
    """Runs one function at a time."""

    __slots__ = ("_inbox", "_name", "_started")

    def __init__(self, name: str) -> None:
        self._name = name
        self._inbox: SimpleQueue[_Work | None] = SimpleQueue()
        self._started = False

    def start(self, function: Callable[[], object]) -> asyncio.Future[object]:
        """Starts the function in the thread, in a copy of this context; the future belongs to the running loop."""
        if not self._started:
            try:
                Thread(target=_serve, args=(self._inbox,), name=self._name, daemon=True).start()
            except RuntimeError as error:
                raise OutOfResources(str(error), do="raise the limits of threads and memory") from None
            self._started = True
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        context = copy_context()
        self._inbox.put((lambda: context.run(function), future))
        return future

    def close(self) -> None:
        """Lets the thread end once it is idle."""
        if self._started:
            self._inbox.put(None)
            self._started = False


def _serve(inbox: SimpleQueue[_Work | None]) -> None:
    while (work := inbox.get()) is not None:
        function, future = work
        error: BaseException | None = None
        result: object = None
        try:
            result = function()
        # SystemExit ends neither thread nor process here: the handler failed.
        except BaseException as raised:
            error = raised
        try:
            future.get_loop().call_soon_threadsafe(_answer, future, result, error)
        except RuntimeError:
            return  # the loop is closed: nobody waits for this any more
        del work, function, future, result, error


def _answer(future: asyncio.Future[object], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, Exception) and not isinstance(error, StopIteration):
        future.set_exception(error)
    else:
        # A future cannot carry these: StopIteration is refused, and the others would end the event loop.
        future.set_exception(RuntimeError(f"the handler raised {type(error).__name__}: {error}"))


def refuse_awaitable(result: object, who: str) -> object:
    """The result of a plain function. One that gives something to await has done nothing yet: it is refused."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise UsageError(f"{who} returned something to await", do="make it `async def`")
    return result


def cancelled() -> bool:
    """Whether this task is to end; else a handler waited for something that was cancelled, and has failed."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
