"""Answers remembered for a while, so that a retry after a lost reply gets the first one and changes nothing.

Time is monotonic here: a step of the wall clock must not drop an answer.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from wrasse.clock import Clock
from wrasse.ports.jobs import REQUESTS_KEPT

T = TypeVar("T")


class Remembered(Generic[T]):
    """The answers of one method by request id, for as long as a request is remembered; beyond a number, if there is
    one, the oldest go first."""

    __slots__ = ("_answers", "_clock", "_most", "_order")

    def __init__(self, clock: Clock, most: int | None = None) -> None:
        self._clock, self._most = clock, most
        self._answers: dict[str, T] = {}
        self._order: deque[tuple[float, str]] = deque()

    def get(self, request: str) -> T | None:
        """The first answer, if it is younger than REQUESTS_KEPT."""
        horizon = self._clock.monotonic() - REQUESTS_KEPT.total_seconds()
        most = len(self._order) if self._most is None else self._most
        while self._order and (self._order[0][0] < horizon or len(self._order) > most):
            self._answers.pop(self._order.popleft()[1], None)
        return self._answers.get(request)

    def keep(self, request: str, answer: T) -> None:
        """Remembers an answer."""
        self._answers[request] = answer
        self._order.append((self._clock.monotonic(), request))

    def forget(self, request: str) -> None:
        """Drops the answer of a request that got nothing: a retry is a new request."""
        self._answers.pop(request, None)
