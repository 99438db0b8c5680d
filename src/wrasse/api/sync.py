"""wrasse without async, for Django, Flask and scripts: the same App in an event loop of its own thread.

    app = wrasse.sync.connect()
    app.jobs.enqueue("resize", {"path": "a.png"})
    with app.lease("orders/42") as lease: ...
    with app.worker(): ...                                    # handlers run meanwhile

There is no second implementation: every call runs in that loop, and the thread waits for it. A body under `lease`
cannot be cancelled here; it checks `lease.alive` before every step that needs the lease.

A server may connect and then fork its workers: each child starts a loop and connections of its own with its first call,
and does not use those of its parent.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import datetime
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from wrasse.api.app import App as AsyncApp, AppWorker, Registering, connect as connect_async
from wrasse.api.jobs import JobHandle as AsyncJobHandle, Jobs as AsyncJobs
from wrasse.config.load import Config
from wrasse.errors import UsageError
from wrasse.jobs.handlers import Function, Middleware
from wrasse.jobs.new_job import Duration
from wrasse.leases.attachments import write_file
from wrasse.leases.lease_scope import LeasedKey, transact

S = TypeVar("S")
R = TypeVar("R")
W = TypeVar("W")
T = TypeVar("T", covariant=True)
P = ParamSpec("P")
Call = Callable[[Coroutine[Any, Any, Any]], Any]


class Block(Protocol[T]):
    """An async context manager."""

    async def __aenter__(self) -> T:
        """Enters it."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leaves it."""
        ...


class _BodyFailed(Exception):
    """Raised inside a block whose body raised in another thread."""


class StandIn(Generic[T]):
    """A block whose body is in another thread: a task of the loop holds it open until `leave`."""

    def __init__(self, hold: Block[T]) -> None:
        self._hold = hold
        self._left = asyncio.Event()
        self._well = True
        self._task: asyncio.Task[None] | None = None

    async def enter(self) -> T:
        """Waits for the lease."""
        granted: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(self._stand_in(granted))
        either: set[asyncio.Future[Any]] = {self._task, granted}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not granted.done():
            await self._task
        return granted.result()

    async def _stand_in(self, granted: asyncio.Future[T]) -> None:
        with contextlib.suppress(_BodyFailed):
            async with self._hold as held:
                granted.set_result(held)
                await self._left.wait()
                if not self._well:
                    raise _BodyFailed

    async def leave(self, *, well: bool) -> None:
        """Commits if the body succeeded, else rolls back."""
        assert self._task is not None, "left before it was entered"
        self._well = well
        self._left.set()
        await self._task


class Waiting(Generic[S]):
    """An object of the event loop, with blocking methods for other threads."""

    def __init__(self, wrapped: S, call: Call) -> None:
        self._wrapped, self._call = wrapped, call


def waiting(method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Waiting[S], P], R]:
    """The blocking form of a method: it runs in the event loop, and the thread waits."""

    @wraps(method)
    def ask(self: Waiting[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        answer: R = self._call(method(self._wrapped, *args, **kwargs))
        return answer

    return ask


def waiting_for(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]], shown: Callable[[R, Call], W]
) -> Callable[Concatenate[Waiting[S], P], W]:
    """Like `waiting`, for a method that returns an object of the event loop, which `shown` wraps."""

    @wraps(method)
    def ask(self: Waiting[S], /, *args: P.args, **kwargs: P.kwargs) -> W:
        return shown(self._call(method(self._wrapped, *args, **kwargs)), self._call)

    return ask


def waiting_for_each(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, Sequence[R]]], shown: Callable[[R, Call], W]
) -> Callable[Concatenate[Waiting[S], P], list[W]]:
    """Like `waiting_for`, for a method that returns several of them."""
    return waiting_for(method, lambda answers, call: [shown(answer, call) for answer in answers])


def waiting_within(
    method: Callable[Concatenate[S, P], Block[R]], shown: Callable[[R, Call], W], doc: str
) -> Callable[Concatenate[Waiting[S], P], contextlib.AbstractContextManager[W]]:
    """The blocking form of a block: its body runs in the thread, and is committed if it succeeds."""

    @contextlib.contextmanager
    @wraps(method)
    def hold(self: Waiting[S], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[W]:
        block = StandIn(method(self._wrapped, *args, **kwargs))
        held = self._call(block.enter())
        try:
            yield shown(held, self._call)
        except BaseException:
            self._call(block.leave(well=False))
            raise
        self._call(block.leave(well=True))

    hold.__doc__ = doc
    return hold


class Held(Waiting[LeasedKey]):
    """A leased key: `LeasedKey` for programs without an event loop."""

    @property
    def key(self) -> str:
        """The key."""
        return self._wrapped.key

    @property
    def owner(self) -> str:
        """The owner of the lease."""
        return self._wrapped.owner

    @property
    def token(self) -> int:
        """The fencing token: it does not change during the lease, and that of the next lease is higher."""
        return self._wrapped.token

    @property
    def expires_at(self) -> datetime:
        """When the lease ends unless it is renewed, by the store's clock."""
        return self._wrapped.expires_at

    @property
    def alive(self) -> bool:
        """Whether the lease is still ours, by monotonic time, without a request."""
        return self._wrapped.alive

    @property
    def state(self) -> Any:
        """The state as committed last, or saved since; None if there is none."""
        return self._wrapped.state

    save = waiting(LeasedKey.save)
    remove = waiting(LeasedKey.remove)
    attach = waiting(LeasedKey.attach)
    attachments = waiting(LeasedKey.attachments)
    detach = waiting(LeasedKey.detach)

    def fetch(self, name: str, path: Path) -> int:
        """Writes an attachment to a file, whole or not at all; returns the number of bytes."""
        size: int = self._call(write_file(path, self._wrapped.fetch(name)))
        return size


class Changing(Waiting[transact]):
    """The keys of a transaction: `transact` for programs without an event loop."""

    @property
    def id(self) -> str:
        """The id of the transaction, by which its outcome can be queried."""
        return self._wrapped.id

    lease = waiting_for(transact.lease, Held)
    lease_all = waiting_for_each(transact.lease_all, Held)


__all__ = ["App", "Held", "JobHandle", "Jobs", "Worker", "connect"]

_HANDLER = TypeVar("_HANDLER", bound=Function)
_MIDDLEWARE = TypeVar("_MIDDLEWARE", bound=Middleware)


_apps: weakref.WeakSet[App] = weakref.WeakSet()
_inherited: list[object] = []  # of the parent: finalizing it here would close what the parent still uses


def _after_fork() -> None:
    _inherited.extend([app.forget() for app in _apps])


os.register_at_fork(after_in_child=_after_fork)


class _Loop:
    """An event loop in a thread, started with the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def call(self, work: Coroutine[Any, Any, R]) -> R:
        """Runs the work in the loop and waits for it; an interrupt here cancels it there."""
        future = self.begin(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def begin(self, work: Coroutine[Any, Any, R]) -> concurrent.futures.Future[R]:
        """Starts the work in the loop; the caller waits for its end."""
        return asyncio.run_coroutine_threadsafe(work, self._running())

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="wrasse", daemon=True)
                self._thread.start()
            return self._loop

    @property
    def running(self) -> bool:
        """Whether there has been a call."""
        return self._loop is not None

    def forget(self) -> object:
        """After a fork: there is no thread here, and the lock may stay locked. Returns the objects that must stay
        alive."""
        left = (self._loop, self._thread)
        self._lock, self._loop, self._thread = threading.Lock(), None, None
        return left

    def stop(self) -> None:
        """Ends the thread; the next call starts another."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


class JobHandle(Waiting[AsyncJobHandle]):
    """A job that was enqueued, with blocking methods. True when it is new."""

    @property
    def id(self) -> str:
        """The job's id, or that of the existing job."""
        return self._wrapped.id

    @property
    def new(self) -> bool:
        """Whether the enqueue made a new job."""
        return self._wrapped.new

    def __bool__(self) -> bool:
        return self.new

    result = waiting(AsyncJobHandle.result)
    info = waiting(AsyncJobHandle.info)
    cancel = waiting(AsyncJobHandle.cancel)


class Jobs(Waiting[AsyncJobs]):
    """`app.jobs`, with blocking methods."""

    enqueue = waiting_for(AsyncJobs.enqueue, JobHandle)
    enqueue_many = waiting_for_each(AsyncJobs.enqueue_many, JobHandle)
    group = waiting_for(AsyncJobs.group, JobHandle)
    get = waiting(AsyncJobs.get)
    wait = waiting(AsyncJobs.wait)
    cancel = waiting(AsyncJobs.cancel)
    requeue = waiting(AsyncJobs.requeue)
    counts = waiting(AsyncJobs.counts)


class Worker:
    """Runs handlers in the background, from `start` to `stop` or for the length of a `with`. It leaves signals alone:
    the program stops it, at the latest when it closes its app."""

    def __init__(self, app: AsyncApp, loop: _Loop, started: set[Worker], concurrency: int | None) -> None:
        self._app = app
        self._loop = loop
        self._started = started
        self._concurrency = concurrency
        self._worker: AppWorker | None = None
        self._run: concurrent.futures.Future[None] | None = None

    @property
    def running(self) -> bool:
        """Whether it works; False after a failure, which `stop` then raises."""
        return self._run is not None and not self._run.done()

    def start(self) -> None:
        """Starts working, in the background."""
        if self._run is not None:
            raise UsageError("this worker has been started", do="stop it before, or make another with app.worker()")
        self._worker = self._app.worker(self._concurrency, signals=False)
        self._run = self._loop.begin(self._worker.run())
        self._started.add(self)

    def stop(self, grace: Duration | None = None) -> None:
        """Claims nothing new, lets handlers finish within `grace` (`worker.grace`), and returns when they have. Raises
        what made the worker fail."""
        worker, run, self._worker, self._run = self._worker, self._run, None, None
        if worker is None or run is None:
            return
        self._started.discard(self)
        self._loop.call(_stop(worker, self._app.config.settings.worker.grace if grace is None else grace))
        run.result()

    def forget(self) -> object:
        """After a fork: the worker runs in the parent, not here."""
        left, self._worker, self._run = (self._worker, self._run), None, None
        self._started.discard(self)
        return left

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


async def _stop(worker: AppWorker, grace: Duration) -> None:
    worker.stop(grace)


class App(Registering, Waiting[AsyncApp]):
    """The parts of wrasse that a program without an event loop uses. Any thread may use it."""

    def __init__(self, app: AsyncApp) -> None:
        self._loop = _Loop()
        Registering.__init__(self, app.config, app.registry)
        Waiting.__init__(self, app, self._loop.call)
        self.jobs = Jobs(app.jobs, self._loop.call)
        self._workers: set[Worker] = set()  # those that were started and not stopped
        _apps.add(self)

    def configure(self, config: Config) -> None:
        self._wrapped.configure(config)
        self.config = self._wrapped.config

    lease = waiting_within(
        AsyncApp.lease,
        Held,
        """Holds the lease of a key; it is renewed meanwhile. The body gets a `Held`: ask its `alive` before what needs
        the lease. What the body saves is committed when it ends well.""",
    )
    transaction = waiting_within(
        AsyncApp.transaction,
        Changing,
        """Several keys that change together or not at all: `change.lease(key)` takes one in as a `Held`. What the
        body saves is committed when it ends well, on all keys or on none.""",
    )
    run_pending = waiting(AsyncApp.run_pending)

    def worker(self, concurrency: int | None = None) -> Worker:
        """A worker with this app's handlers and those of the settings, in the background."""
        return Worker(self._wrapped, self._loop, self._workers, concurrency)

    def close(self) -> None:
        """Closes what was opened and ends the thread."""
        atexit.unregister(self.close)
        if not self._loop.running:
            return
        try:
            for worker in tuple(self._workers):
                worker.stop()
        finally:
            self._loop.call(self._wrapped.close())
            self._loop.stop()

    def forget(self) -> object:
        """Called in a child right after a fork. Returns the parent's objects, which must stay alive and unused."""
        workers = [(worker, worker.forget()) for worker in tuple(self._workers)]
        return workers, self._loop.forget(), self._wrapped.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def connect(where: str | Path | None = None) -> App:
    """`wrasse.connect` for programs without an event loop. It is closed with the program."""
    app = App(connect_async(where))
    atexit.register(app.close)
    return app
