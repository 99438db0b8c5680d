"""Answers remembered for a while, so that asking again after a lost reply gives the first one and changes nothing.

Time is monotonic here: a step of the wall clock must not make us forget an answer.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from wrasse.clock import Clock
from wrasse.ports.jobs import REQUESTS_KEPT

A = TypeVar("A")


class Requests(Generic[A]):
    """The answers of one method, by request id."""

    __slots__ = ("_answers", "_clock", "_order")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answers: dict[str, A] = {}
        self._order: deque[tuple[float, str]] = deque()

    def recall(self, request: str) -> A | None:
        """The first answer to this request, if it is not too long ago."""
        self._forget()
        return self._answers.get(request)

    def remember(self, request: str, answer: A) -> None:
        """Keeps the first answer to a request that `recall` did not know."""
        assert request not in self._answers, "a request is answered once"
        self._answers[request] = answer
        self._order.append((self._clock.monotonic(), request))

    def _forget(self) -> None:
        horizon = self._clock.monotonic() - REQUESTS_KEPT.total_seconds()
        while self._order and self._order[0][0] < horizon:
            del self._answers[self._order.popleft()[1]]
