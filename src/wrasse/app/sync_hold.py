"""What lives in an event loop, for programs without one: a call is run in the loop while the caller's thread waits, and
a lease is held in the loop while the body under it runs in that thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import datetime
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from wrasse.leases.attachments_client import write_file
from wrasse.leases.hold import HeldKey
from wrasse.leases.transact import transact

S = TypeVar("S")
R = TypeVar("R")
W = TypeVar("W")
T = TypeVar("T", covariant=True)
P = ParamSpec("P")
Call = Callable[[Coroutine[Any, Any, Any]], Any]


class Block(Protocol[T]):
    """What is entered and left in an event loop."""

    async def __aenter__(self) -> T:
        """Enters it."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leaves it."""
        ...


class _BodyFailed(Exception):
    """Tells a hold that its body raised, in another thread."""


class StandIn(Generic[T]):
    """A block whose body is in another thread: a task of the loop stands in for it until it is told to leave."""

    def __init__(self, hold: Block[T]) -> None:
        self._hold = hold
        self._left = asyncio.Event()
        self._well = True
        self._task: asyncio.Task[None] | None = None

    async def enter(self) -> T:
        """Waits for the lease."""
        granted: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(self._stand_in(granted))
        either: set[asyncio.Future[Any]] = {self._task, granted}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not granted.done():
            await self._task
        return granted.result()

    async def _stand_in(self, granted: asyncio.Future[T]) -> None:
        with contextlib.suppress(_BodyFailed):
            async with self._hold as held:
                granted.set_result(held)
                await self._left.wait()
                if not self._well:
                    raise _BodyFailed

    async def leave(self, *, well: bool) -> None:
        """The body has ended, well or not: commits or rolls back."""
        assert self._task is not None, "left before it was entered"
        self._well = well
        self._left.set()
        await self._task


class Waiting(Generic[S]):
    """An object of the event loop, for a thread that waits for every answer."""

    def __init__(self, asked: S, call: Call) -> None:
        self._asked, self._call = asked, call


def waiting(method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Waiting[S], P], R]:
    """The method for a thread: it is run in the event loop and waited for."""

    @wraps(method)
    def ask(self: Waiting[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        answer: R = self._call(method(self._asked, *args, **kwargs))
        return answer

    return ask


def waiting_for(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]], shown: Callable[[R, Call], W]
) -> Callable[Concatenate[Waiting[S], P], W]:
    """Like `waiting`, for a method whose answer is an object of the event loop itself."""

    @wraps(method)
    def ask(self: Waiting[S], /, *args: P.args, **kwargs: P.kwargs) -> W:
        return shown(self._call(method(self._asked, *args, **kwargs)), self._call)

    return ask


def waiting_for_each(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, Sequence[R]]], shown: Callable[[R, Call], W]
) -> Callable[Concatenate[Waiting[S], P], list[W]]:
    """Like `waiting_for`, where the answer is several of them."""
    return waiting_for(method, lambda answers, call: [shown(answer, call) for answer in answers])


def waiting_within(
    method: Callable[Concatenate[S, P], Block[R]], shown: Callable[[R, Call], W], doc: str
) -> Callable[Concatenate[Waiting[S], P], contextlib.AbstractContextManager[W]]:
    """A block of the event loop for a thread: its body runs in the thread, and what it does well is committed."""

    @contextlib.contextmanager
    @wraps(method)
    def hold(self: Waiting[S], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[W]:
        block = StandIn(method(self._asked, *args, **kwargs))
        held = self._call(block.enter())
        try:
            yield shown(held, self._call)
        except BaseException:
            self._call(block.leave(well=False))
            raise
        self._call(block.leave(well=True))

    hold.__doc__ = doc
    return hold


class Held(Waiting[HeldKey]):
    """A key that is held: `HeldKey` for programs without an event loop."""

    @property
    def key(self) -> str:
        """What is held."""
        return self._asked.key

    @property
    def owner(self) -> str:
        """Who holds it."""
        return self._asked.owner

    @property
    def token(self) -> int:
        """The fencing token: it does not change while the key is held, and the next holder's is higher."""
        return self._asked.token

    @property
    def until(self) -> datetime:
        """When the lease ends unless it is renewed, by the store's clock."""
        return self._asked.until

    @property
    def alive(self) -> bool:
        """Whether the lease is still ours, by monotonic time and without asking anybody."""
        return self._asked.alive

    @property
    def state(self) -> Any:
        """As it was committed last, or saved since; None if there is none."""
        return self._asked.state

    save = waiting(HeldKey.save)
    remove = waiting(HeldKey.remove)
    attach = waiting(HeldKey.attach)
    attachments = waiting(HeldKey.attachments)
    detach = waiting(HeldKey.detach)

    def fetch(self, name: str, path: Path) -> int:
        """Writes an attachment to a file that is then whole or not there; gives how many bytes."""
        size: int = self._call(write_file(path, self._asked.fetch(name)))
        return size


class Changing(Waiting[transact]):
    """The keys of a transaction: `transact` for programs without an event loop."""

    @property
    def id(self) -> str:
        """The name of the transaction, by which others can ask what became of it."""
        return self._asked.id

    hold = waiting_for(transact.hold, Held)
    hold_all = waiting_for_each(transact.hold_all, Held)
