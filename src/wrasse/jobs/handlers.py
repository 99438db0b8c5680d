"""The handlers of jobs, by kind: those that a program registers, and those that a worker calls.

A kind has one handler. Jobs without a kind go to the one registered for "". A handler registered for "*" gets every
kind that has no handler of its own; without it such a job fails with the reason `no_handler`, so that another worker,
or the next release, can run it. Handlers are async functions, which run in the event loop; plain functions, which run
in a thread; commands; or URLs.

A `Registry` has what a program registers: a handler per kind, its retry rule, middleware and periodic jobs. A worker's
`Handlers` are built from it, by this program or by `wrasse run --handler=module:app`. Nothing here runs anything.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from wrasse.errors import UsageError
from wrasse.jobs.handler_name import load_named
from wrasse.jobs.periodic import Periodic
from wrasse.jobs.retry import Retry
from wrasse.jobs.worker.running_job import RunningJob
from wrasse.threads import refuse_awaitable

ANY = "*"

AsyncFunction = Callable[[RunningJob], Coroutine[Any, Any, object]]
PlainFunction = Callable[[RunningJob], object]
Function = Callable[[RunningJob], Awaitable[object]] | PlainFunction
CallNext = Callable[[RunningJob], Awaitable[object]]
Middleware = Callable[[RunningJob, CallNext], Coroutine[Any, Any, object]]
_MIDDLEWARE = TypeVar("_MIDDLEWARE", bound=Middleware)


@dataclass(frozen=True, slots=True)
class InLoop:
    """A handler that runs in the event loop."""

    call: AsyncFunction
    retry: Retry | None = None


@dataclass(frozen=True, slots=True)
class InThread:
    """A handler that runs in a thread."""

    call: PlainFunction
    retry: Retry | None = None


Handler = InLoop | InThread


class Handlers:
    """The handlers of one worker, by kind."""

    __slots__ = ("_by_kind", "_closing", "middleware")

    def __init__(self, middleware: Sequence[Middleware] = ()) -> None:
        self._by_kind: dict[str, Handler] = {}
        self._closing: list[Callable[[], Awaitable[None]]] = []
        self.middleware = tuple(middleware)  # the first is the outermost

    def add(self, kind: str, function: Function, retry: Retry | None = None) -> None:
        """Registers the handler of a kind and how it is tried again; a kind has only one."""
        if kind in self._by_kind:
            raise UsageError(f"the kind {kind!r} has two handlers", do="register one handler for each kind")
        self._by_kind[kind] = replace(as_handler(function), retry=retry)
        if inspect.iscoroutinefunction(close := getattr(function, "close", None)):
            self._closing.append(close)

    def find(self, kind: str) -> Handler | None:
        """The handler of this kind."""
        return self._by_kind.get(kind) or self._by_kind.get(ANY)

    def serving(self, kind: str) -> Handlers:
        """The same handlers, with this kind's, if any, also for jobs without a kind."""
        same = Handlers(self.middleware)
        same._by_kind = {**self._by_kind, **({"": self._by_kind[kind]} if kind in self._by_kind else {})}
        same._closing = self._closing
        return same

    async def close(self) -> None:
        """Closes handlers that are objects with an async `close`. They may be called again, and reopen what they
        need."""
        for close in self._closing:
            await close()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._by_kind))

    def __len__(self) -> int:
        return len(self._by_kind)


def as_handler(function: Function) -> Handler:
    """Decides once, not per job, where a handler runs."""
    if not callable(function):
        raise UsageError(
            f"a handler of type {type(function).__name__}", do="give a function that is called with the job"
        )
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        return InLoop(cast(AsyncFunction, function))
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise UsageError(f"the handler {_name(function)} is a generator", do="return a value instead of yielding")
    return InThread(_refusing_awaitables(function))


def _refusing_awaitables(function: PlainFunction) -> PlainFunction:
    who = f"the handler {_name(function)}"
    return lambda job: refuse_awaitable(function(job), who)


def _name(function: object) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def load(text: str) -> Function:
    """The function that `module:name` names, with the working directory importable."""
    found = load_named(text, "handler", example="shop.work:resize")
    if not callable(found):
        raise UsageError(
            f"the handler {text!r} is of type {type(found).__name__}", do="name a function that is called with the job"
        )
    return found


class Registry:
    """Handlers, retries, middleware and periodic jobs, in the order in which they were registered."""

    __slots__ = ("functions", "middleware", "periodic", "retries")

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}
        self.retries: dict[str, Retry] = {}
        self.middleware: list[Middleware] = []
        self.periodic: dict[str, Periodic] = {}

    def add(self, kind: str, function: Function, retry: Retry | None = None) -> None:
        """Registers the handler of a kind; a kind has only one."""
        if kind in self.functions:
            raise UsageError(f"the kind {kind!r} has two handlers", do="register one handler for each kind")
        as_handler(function)
        self.functions[kind] = function
        if retry is not None:
            self.retries[kind] = retry

    def wrap(self, middleware: _MIDDLEWARE) -> _MIDDLEWARE:
        """Registers what is called around every handler; the first registered is the outermost."""
        if not inspect.iscoroutinefunction(middleware) and not inspect.iscoroutinefunction(type(middleware).__call__):
            raise UsageError("a middleware that is not async", do="write `async def m(job, call_next): ...`")
        self.middleware.append(middleware)
        return middleware

    def repeat(self, periodic: Periodic) -> None:
        """Registers a periodic job; names are unique."""
        if periodic.name in self.periodic:
            raise UsageError(f"two periodic jobs are called {periodic.name!r}", do="give each a name of its own")
        self.periodic[periodic.name] = periodic

    def include(self, other: Registry) -> None:
        """Registers everything that another registry has."""
        for kind, function in other.functions.items():
            self.add(kind, function, other.retries.get(kind))
        self.middleware += other.middleware
        for periodic in other.periodic.values():
            self.repeat(periodic)
