"""Request counts: how many requests of a backend each operation costs.

A backend whose calls are requests over a network calls `note_request` for each. It is counted for the operation under
which it is sent, tasks that this began included; a request outside of any operation is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Answer = Coroutine[Any, Any, T]


class Counting:
    """Base of a class that counts the requests of its operations."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()  # by operation; none where a backend does not count them


C = TypeVar("C", bound=Counting)
_FOR: ContextVar[tuple[Counter[str], str] | None] = ContextVar("wrasse_requests_for", default=None)


def note_request() -> None:
    """One request is sent."""
    counting = _FOR.get()
    if counting is not None:
        counting[0][counting[1]] += 1


class counted:  # a decorator
    """Counts the requests of a method under this name."""

    def __init__(self, operation: str) -> None:
        self._operation = operation

    def __call__(self, method: Callable[Concatenate[C, P], Answer[T]]) -> Callable[Concatenate[C, P], Answer[T]]:
        """The method, with its requests counted."""
        operation = self._operation

        async def run(self: C, /, *args: P.args, **named: P.kwargs) -> T:
            token = _FOR.set((self.requests, operation))
            try:
                return await method(self, *args, **named)
            finally:
                _FOR.reset(token)

        return update_wrapper(run, method)
