"""Several requests beside each other, a bounded number at a time, answers in the order asked."""

from __future__ import annotations

from asyncio import TaskGroup
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from wrasse.errors import WrasseError

AT_ONCE = 16
T = TypeVar("T")
A = TypeVar("A")


async def abreast(ask: Callable[[A], Awaitable[T]], asked: Sequence[A]) -> list[T]:
    """Asks for each; the first error of ours that any of them meets is raised as it is."""

    async def one(each: A) -> T:
        return await ask(each)

    answers: list[T] = []
    for begin in range(0, len(asked), AT_ONCE):
        try:
            async with TaskGroup() as tasks:
                running = [tasks.create_task(one(each)) for each in asked[begin : begin + AT_ONCE]]
        except* WrasseError as group:
            raise _first(group) from None
        answers += [task.result() for task in running]
    return answers


def _first(group: BaseExceptionGroup[WrasseError]) -> WrasseError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, WrasseError), "only ours are caught"
    return error
