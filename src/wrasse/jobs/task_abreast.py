"""Several calls at once, begun in their order, a few at a time; all of them end before the answer is given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
ABREAST_MAX = 32


async def abreast(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """What each call gave. If one fails, those that were begun with it still end; then its error is raised."""
    answers: list[T] = []
    for start in range(0, len(calls), ABREAST_MAX):
        batch = await asyncio.gather(*(call() for call in calls[start : start + ABREAST_MAX]), return_exceptions=True)
        for answer in batch:
            if isinstance(answer, BaseException):
                raise answer
            answers.append(answer)
    return answers
