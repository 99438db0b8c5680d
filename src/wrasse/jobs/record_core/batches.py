"""Several calls at once, begun in their order, a few at a time; all of them end before the answer is given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

T = TypeVar("T")
ABREAST_MAX = 32


async def abreast(calls: Sequence[Callable[[], Awaitable[T]]], most: int = ABREAST_MAX) -> list[T]:
    """What each call gave. If one fails, those that were begun with it still end; then its error is raised."""
    answers: list[T] = []
    for start in range(0, len(calls), most):
        batch = await asyncio.gather(*(call() for call in calls[start : start + most]), return_exceptions=True)
        for answer in batch:
            if isinstance(answer, BaseException):
                raise answer
            answers.append(answer)
    return answers


async def by_id(
    ids: Sequence[str], calls: Sequence[Callable[[], Awaitable[T]]], most: int = ABREAST_MAX
) -> list[T]:
    """Makes changes of different jobs at once, and those of one job one after another."""
    rows: dict[str, list[int]] = {}
    for n, id in enumerate(ids):
        rows.setdefault(id, []).append(n)

    async def row(numbers: list[int]) -> list[tuple[int, T]]:
        return [(n, await calls[n]()) for n in numbers]

    answers = await abreast([partial(row, numbers) for numbers in rows.values()], most)
    return [answer for _, answer in sorted((each for row in answers for each in row), key=lambda each: each[0])]
