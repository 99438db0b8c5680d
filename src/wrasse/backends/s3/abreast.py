"""Several requests beside each other, a bounded number at a time, answers in the order asked."""

from __future__ import annotations

from asyncio import TaskGroup
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from wrasse.errors import first_error

AT_ONCE = 16
"""Requests of one call in flight."""
T = TypeVar("T")
A = TypeVar("A")


async def abreast(ask: Callable[[A], Awaitable[T]], asked: Sequence[A]) -> list[T]:
    """Asks for each; the first error that any of them meets is raised as it is."""

    async def one(each: A) -> T:
        return await ask(each)

    answers: list[T] = []
    for begin in range(0, len(asked), AT_ONCE):
        async with together() as tasks:
            running = [tasks.create_task(one(each)) for each in asked[begin : begin + AT_ONCE]]
        answers += [task.result() for task in running]
    return answers


@asynccontextmanager
async def together() -> AsyncIterator[TaskGroup]:
    """A TaskGroup whose first error comes out by itself: whoever called asked for one thing, not for a group."""
    try:
        async with TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        raise first_error(group) from None
