"""What a program registers for its jobs: a handler per kind, its retry rule, and middleware.

Nothing here runs anything. A worker is built from it, by this program or by `wrasse run --handler=module:app`.
"""

from __future__ import annotations

import inspect
from typing import TypeVar

from wrasse.errors import UsageError
from wrasse.jobs.handlers import Function, Middleware, as_handler
from wrasse.jobs.periodic import Periodic
from wrasse.jobs.retry import Retry

_MIDDLEWARE = TypeVar("_MIDDLEWARE", bound=Middleware)


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
