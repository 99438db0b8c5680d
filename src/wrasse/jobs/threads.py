"""Plain functions run in threads: one thread per slot, made when it is first needed.

The threads are daemons: a handler that never returns must not keep a stopped process alive. Its job was given back
when the worker stopped, so nothing is lost by leaving it behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from threading import Thread

from wrasse.errors import OutOfResources

_Work = tuple[Callable[[], object], "asyncio.Future[object]"]


class SlotThread:
    """Runs one function at a time, for one slot of a worker."""

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
        # SystemExit ends neither thread nor process here: the job failed, and its slot goes on.
        except BaseException as raised:
            error = raised
        try:
            future.get_loop().call_soon_threadsafe(_answer, future, result, error)
        except RuntimeError:
            return  # the loop is closed: the worker has stopped, and nobody waits for this
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
