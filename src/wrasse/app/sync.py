"""wrasse without async, for Django, Flask and scripts: the same App in an event loop of its own thread.

    app = wrasse.sync.connect()
    app.jobs.put("resize", {"path": "a.png"})
    with app.hold("orders/42") as lease: ...
    with app.worker(): ...                                    # handlers run meanwhile

There is no second implementation: every call is handed to that loop and waited for. A body under `hold` cannot be
cancelled from outside here; it asks `lease.alive` before every step that needs the lease.

A server that connects and then forks its workers is fine: each child starts a loop and connections of its own with its
first call, and leaves those of its parent alone.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from wrasse.app.app_jobs import JobHandle as AsyncJobHandle, Jobs as AsyncJobs
from wrasse.app.application import App as AsyncApp, AppWorker, Registering, connect as connect_async
from wrasse.app.config import Config
from wrasse.app.new_job import Duration
from wrasse.app.sync_hold import Changing, Held, Waiting, waiting, waiting_for, waiting_for_each, waiting_within
from wrasse.errors import UsageError
from wrasse.jobs.handlers import Function, Middleware

__all__ = ["App", "Held", "JobHandle", "Jobs", "Worker", "connect"]

T = TypeVar("T")
_HANDLER = TypeVar("_HANDLER", bound=Function)
_MIDDLEWARE = TypeVar("_MIDDLEWARE", bound=Middleware)


_apps: weakref.WeakSet[App] = weakref.WeakSet()
_inherited: list[object] = []  # of the parent: finalizing it here would end what the parent still uses


def _after_fork() -> None:
    _inherited.extend([app.forget() for app in _apps])


os.register_at_fork(after_in_child=_after_fork)


class _Loop:
    """An event loop in a thread, started with the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs the work in the loop and waits for it; an interrupt here cancels it there."""
        asked = self.begin(work)
        try:
            return asked.result()
        except BaseException:
            asked.cancel()
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Starts the work in the loop; whoever began it waits for its end."""
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
        """Has there been a call?"""
        return self._loop is not None

    def forget(self) -> object:
        """After a fork: there is no thread here, and the lock may be held for ever. Gives what must stay alive."""
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
    """A job that was put, waiting for every answer. True when it is new."""

    @property
    def id(self) -> str:
        """The job's id, or that of the job that was there already."""
        return self._asked.id

    @property
    def new(self) -> bool:
        """Whether the put made a new job."""
        return self._asked.new

    def __bool__(self) -> bool:
        return self.new

    result = waiting(AsyncJobHandle.result)
    state = waiting(AsyncJobHandle.state)
    cancel = waiting(AsyncJobHandle.cancel)


class Jobs(Waiting[AsyncJobs]):
    """`app.jobs`, waiting for every answer."""

    put = waiting_for(AsyncJobs.put, JobHandle)
    put_many = waiting_for_each(AsyncJobs.put_many, JobHandle)
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
        """Whether it works; not any more when something failed, which `stop` then raises."""
        return self._run is not None and not self._run.done()

    def start(self) -> None:
        """Starts working, in the background."""
        if self._run is not None:
            raise UsageError("this worker has been started", do="stop it before, or make another with app.worker()")
        self._worker = self._app.worker(self._concurrency, signals=False)
        self._run = self._loop.begin(self._worker.run())
        self._started.add(self)

    def stop(self, grace: Duration | None = None) -> None:
        """Takes nothing new, lets handlers finish within `grace` (`worker.grace`), and returns when they have. Raises
        what made the worker fail."""
        worker, run, self._worker, self._run = self._worker, self._run, None, None
        if worker is None or run is None:
            return
        self._started.discard(self)
        self._loop.call(_stop(worker, self._app.config.settings.worker.grace if grace is None else grace))
        run.result()

    def forget(self) -> object:
        """After a fork: it works in the parent, and not here."""
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
        """Uses these settings, where nothing is open yet."""
        self._asked.configure(config)
        self.config = self._asked.config

    hold = waiting_within(
        AsyncApp.hold,
        Held,
        """Holds the lease of a key; it is renewed meanwhile. The body gets a `Held`: ask its `alive` before what needs
        the lease. What the body saves is committed when it ends well.""",
    )
    transaction = waiting_within(
        AsyncApp.transaction,
        Changing,
        """Several keys that change together or not at all: `change.hold(key)` takes one in as a `Held`. What the
        body saves is committed when it ends well, on all keys or on none.""",
    )
    run_pending = waiting(AsyncApp.run_pending)

    def worker(self, concurrency: int | None = None) -> Worker:
        """A worker with this app's handlers and those of the settings, in the background."""
        return Worker(self._asked, self._loop, self._workers, concurrency)

    def close(self) -> None:
        """Closes what was opened and ends the thread."""
        atexit.unregister(self.close)
        if not self._loop.running:
            return
        try:
            for worker in tuple(self._workers):
                worker.stop()
        finally:
            self._loop.call(self._asked.close())
            self._loop.stop()

    def forget(self) -> object:
        """Said in a child right after a fork. Gives what belongs to the parent and must not be touched."""
        workers = [(worker, worker.forget()) for worker in tuple(self._workers)]
        return workers, self._loop.forget(), self._asked.forget()

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
