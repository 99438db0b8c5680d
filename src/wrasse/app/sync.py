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
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from wrasse.app.app_jobs import Duration, JobHandle as AsyncJobHandle, NewJob
from wrasse.app.application import App as AsyncApp, AppWorker, connect as connect_async
from wrasse.app.config import Config
from wrasse.app.sync_hold import Changing, Held, StandIn
from wrasse.errors import UsageError
from wrasse.jobs.handlers import Function, Middleware
from wrasse.jobs.registry import Registry
from wrasse.jobs.retry import Retry
from wrasse.ports.jobs import NOTHING, Counts, JobRecord, JobState

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


class JobHandle:
    """A job that was put, waiting for every answer. True when it is new."""

    def __init__(self, handle: AsyncJobHandle, loop: _Loop) -> None:
        self._handle = handle
        self._loop = loop

    @property
    def id(self) -> str:
        """The job's id, or that of the job that was there already."""
        return self._handle.id

    @property
    def new(self) -> bool:
        """Whether the put made a new job."""
        return self._handle.new

    def __bool__(self) -> bool:
        return self.new

    def result(self, *, timeout: Duration = "1m") -> Any:  # a result has whatever shape its handler gave
        """Waits until the job is done and gives its result."""
        return self._loop.call(self._handle.result(timeout=timeout))

    def state(self) -> JobState | None:
        """Where the job is now; None if it is gone, or still to come."""
        return self._loop.call(self._handle.state())

    def cancel(self, why: str = "") -> bool:
        """Stops the job if it waits or runs."""
        return self._loop.call(self._handle.cancel(why))


class Jobs:
    """`app.jobs`, waiting for every answer."""

    def __init__(self, app: AsyncApp, loop: _Loop) -> None:
        self._jobs = app.jobs
        self._loop = loop

    def put(
        self,
        kind: str = "",
        data: object = b"",
        *,
        priority: str | None = None,
        queue: str | None = None,
        delay: Duration = timedelta(0),
        not_before: datetime | None = None,
        id: str | None = None,
        timeout: Duration | None = None,
        headers: Mapping[str, str] = NOTHING,
        unique: str = "",
        window: Duration = timedelta(0),
        keep: Duration | None = None,
        rate: int = 0,
    ) -> JobHandle:
        """Puts one job; stored when this returns."""
        new = NewJob(kind, data, priority, queue, delay, not_before, id, timeout, headers, unique, window, keep)
        return self.put_many([new], rate=rate)[0]

    def put_many(self, jobs: Iterable[NewJob], *, rate: int = 0) -> Sequence[JobHandle]:
        """Puts many, at most `rate` new ones a second if one is given; gives an answer for each, in their order."""
        return [JobHandle(handle, self._loop) for handle in self._loop.call(self._jobs.put_many(jobs, rate=rate))]

    def group(self, jobs: Iterable[NewJob], then: NewJob, *, id: str | None = None) -> JobHandle:
        """Puts jobs, and `then` when all of them are finished; gives the handle of `then`."""
        return JobHandle(self._loop.call(self._jobs.group(jobs, then, id=id)), self._loop)

    def get(self, id: str) -> JobRecord | None:
        """One job, whole."""
        return self._loop.call(self._jobs.get(id))

    def wait(self, id: str, *, timeout: Duration = "1m") -> Any:  # a result has whatever shape its handler gave
        """Waits until the job is done and gives its result."""
        return self._loop.call(self._jobs.wait(id, timeout=timeout))

    def cancel(self, id: str, why: str = "") -> bool:
        """Stops a job that waits or runs."""
        return self._loop.call(self._jobs.cancel(id, why))

    def requeue(self, id: str, *, delay: Duration = timedelta(0)) -> bool:
        """Makes a dead job ready again."""
        return self._loop.call(self._jobs.requeue(id, delay=delay))

    def counts(self) -> Counts:
        """How many jobs are where, and who works."""
        return self._loop.call(self._jobs.counts())


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


class App:
    """The parts of wrasse that a program without an event loop uses. Any thread may use it."""

    def __init__(self, app: AsyncApp) -> None:
        self._app = app
        self._loop = _Loop()
        self.jobs = Jobs(app, self._loop)
        self._workers: set[Worker] = set()  # those that were started and not stopped
        _apps.add(self)

    @property
    def config(self) -> Config:
        """The settings."""
        return self._app.config

    def configure(self, config: Config) -> None:
        """Uses these settings, where nothing is open yet."""
        self._app.configure(config)

    @property
    def registry(self) -> Registry:
        """What was registered; `wrasse run --handler=module:app` works for this app too."""
        return self._app.registry

    def handler(self, kind: str = "", *, retry: Retry | None = None) -> Callable[[_HANDLER], _HANDLER]:
        """Registers a function as the handler of a kind, and how a failed job of this kind is tried again."""
        return self._app.handler(kind, retry=retry)

    def middleware(self, function: _MIDDLEWARE) -> _MIDDLEWARE:
        """Registers `async def m(job, call_next)`, which is called around every handler."""
        return self._app.middleware(function)

    def every(
        self,
        interval: Duration,
        *,
        name: str = "",
        data: object = None,
        priority: str | None = None,
        missed: str = "once",
    ) -> Callable[[_HANDLER], _HANDLER]:
        """Runs the function as a job at every multiple of an interval."""
        return self._app.every(interval, name=name, data=data, priority=priority, missed=missed)

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        name: str = "",
        data: object = None,
        priority: str | None = None,
        missed: str = "once",
    ) -> Callable[[_HANDLER], _HANDLER]:
        """Runs the function as a job at every slot of a cron expression."""
        return self._app.cron(expression, tz=tz, name=name, data=data, priority=priority, missed=missed)

    @contextlib.contextmanager
    def hold(
        self,
        key: str,
        *,
        ttl: Duration = "30s",
        wait: Duration | None = None,
        owner: str | None = None,
        namespace: str = "",
    ) -> Iterator[Held]:
        """Holds the lease of a key; it is renewed meanwhile. Ask `lease.alive` before what needs it. What the body
        saves is committed when it ends well."""
        held = StandIn(self._app.hold(key, ttl=ttl, wait=wait, owner=owner, namespace=namespace))
        lease = self._loop.call(held.enter())
        try:
            yield Held(lease, self._loop.call)
        except BaseException:
            self._loop.call(held.leave(well=False))
            raise
        self._loop.call(held.leave(well=True))

    @contextlib.contextmanager
    def transaction(
        self,
        *,
        ttl: Duration = "30s",
        wait: Duration | None = "30s",
        owner: str | None = None,
        namespace: str = "",
    ) -> Iterator[Changing]:
        """Several keys that change together or not at all; what the body saves is committed when it ends well."""
        block = StandIn(self._app.transaction(ttl=ttl, wait=wait, owner=owner, namespace=namespace))
        change = self._loop.call(block.enter())
        try:
            yield Changing(change, self._loop.call)
        except BaseException:
            self._loop.call(block.leave(well=False))
            raise
        self._loop.call(block.leave(well=True))

    def worker(self, concurrency: int | None = None) -> Worker:
        """A worker with this app's handlers and those of the settings, in the background."""
        return Worker(self._app, self._loop, self._workers, concurrency)

    def run_pending(self) -> int:
        """Runs every job that is ready now; gives how many attempts that took."""
        return self._loop.call(self._app.run_pending())

    def close(self) -> None:
        """Closes what was opened and ends the thread."""
        atexit.unregister(self.close)
        if not self._loop.running:
            return
        try:
            for worker in tuple(self._workers):
                worker.stop()
        finally:
            self._loop.call(self._app.close())
            self._loop.stop()

    def forget(self) -> object:
        """Said in a child right after a fork. Gives what belongs to the parent and must not be touched."""
        workers = [(worker, worker.forget()) for worker in tuple(self._workers)]
        return workers, self._loop.forget(), self._app.forget()

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
