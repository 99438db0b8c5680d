"""Holding a key from a program without an event loop: the lease lives in the loop, the body in the caller's thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from wrasse.leases.attachments import CONTENT_TYPE
from wrasse.leases.attachments_files import write_file
from wrasse.leases.hold import HeldKey
from wrasse.leases.lease import Attachment
from wrasse.leases.transact import transact

T = TypeVar("T", covariant=True)


class Held:
    """A key that is held: `HeldKey` for programs without an event loop."""

    def __init__(self, held: HeldKey, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._held, self._call = held, call

    @property
    def key(self) -> str:
        """What is held."""
        return self._held.key

    @property
    def owner(self) -> str:
        """Who holds it."""
        return self._held.owner

    @property
    def token(self) -> int:
        """The fencing token: it does not change while the key is held, and the next holder's is higher."""
        return self._held.token

    @property
    def until(self) -> datetime:
        """When the lease ends unless it is renewed, by the store's clock."""
        return self._held.until

    @property
    def alive(self) -> bool:
        """Whether the lease is still ours, by monotonic time and without asking anybody."""
        return self._held.alive

    @property
    def state(self) -> Any:
        """As it was committed last, or saved since; None if there is none."""
        return self._held.state

    def save(self, state: Any) -> int:
        """Stages a new state, which is committed when the block ends well; gives the version it will have."""
        version: int = self._call(self._held.save(state))
        return version

    def remove(self) -> bool:
        """Stages the removal of the state; False if there is none."""
        removed: bool = self._call(self._held.remove())
        return removed

    def attach(self, name: str, data: bytes | Path, *, content_type: str = CONTENT_TYPE) -> Attachment:
        """Stages a file that rides along with the state, which is committed when the block ends well."""
        attachment: Attachment = self._call(self._held.attach(name, data, content_type=content_type))
        return attachment

    def attachments(self) -> Sequence[Attachment]:
        """What is attached, staged changes included, in the order of names."""
        found: Sequence[Attachment] = self._call(self._held.attachments())
        return found

    def fetch(self, name: str, path: Path) -> int:
        """Writes an attachment to a file that is then whole or not there; gives how many bytes."""
        size: int = self._call(write_file(path, self._held.fetch(name)))
        return size

    def detach(self, name: str) -> bool:
        """Stages the removal of an attachment; False if there is none of this name."""
        removed: bool = self._call(self._held.detach(name))
        return removed


class Changing:
    """The keys of a transaction: `transact` for programs without an event loop."""

    def __init__(self, change: transact, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._change, self._call = change, call

    @property
    def id(self) -> str:
        """The name of the transaction, by which others can ask what became of it."""
        return self._change.id

    def hold(self, key: str, *, namespace: str | None = None) -> Held:
        """Takes one more key into the transaction."""
        return Held(self._call(self._change.hold(key, namespace=namespace)), self._call)

    def hold_all(self, *keys: str) -> list[Held]:
        """Takes several keys, always in one order; gives them in the order in which they were asked for."""
        return [Held(held, self._call) for held in self._call(self._change.hold_all(*keys))]


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
