"""What every port of Redis does with replies and keys that are not as expected.

`reads_replies` detects replies that are well-formed RESP but do not answer the command: another program at that
address, a proxy, a malicious server. The ports read replies as the scripts write them, without checks; an error while
reading is turned into one of ours here. An exception that a port method raises before the first reply is about its
arguments, and is not changed; neither is one of the client itself. `__cause__` keeps the original.

`fitting`, `in_pieces` and `scanned` read what may exceed `redis.reply_bytes_max`: repeated for less until the reply
fits. The size of entries is not known before they are read, and other programs write them too. A reply beyond the limit
costs its connection (`ReplyTooLarge`), so a page shrinks fast; a single entry beyond it cannot be read at all.

`KeyTypes` names keys of ours that have a value of another type: another program wrote there, or a person by mistake.
Scripts check the keys they need before they change anything (lua/queue_keys.lua). A walk over several queues skips
those whose keys have a wrong type; `jobs fsck`, the doctor and the status name them. No key is deleted for it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from wrasse.backends.page_loop import PageLoop
from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.failure import ReplyTooLarge, WrongType
from wrasse.backends.redis.jobs.job_json import known_queues
from wrasse.backends.redis.keys import RedisKeys, StreamKeys, pattern_glob, workers_in
from wrasse.backends.tcp import printable
from wrasse.errors import StoreBroken

WRONG_TYPE_ADVICE = "move it away with RENAME if its value is needed, else DEL it; then run `wrasse jobs fsck`"
WORKERS_MAX = 1_000_000
"""Workers whose keys a Redis may name in one search."""
_NAMED_MAX = 5
_SHOWN_TYPES = {"zset": "sorted set"}
_QUEUE_ENDS = {":delayed": "zset", ":wake": "list", ":rate": "list"}
_STREAM_ENDS = {":keys": "hash", ":keys:expiry": "zset", ":held": "zset", ":due": "zset", ":consumers": "hash",
                ":wake": "stream"}  # fmt: skip
C = TypeVar("C")
# A StopIteration within a coroutine or a generator is a RuntimeError.
_UNREADABLE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError, msgspec.MsgspecError)
_CLIENTS = ("wrasse.backends.redis.client.connection", "wrasse.backends.redis.client.redis_py")
T = TypeVar("T")
Item = TypeVar("Item")
_SHRINK = 8  # how many times less is read after a reply that was too large


@dataclass(frozen=True, slots=True)
class Misfit:
    """A key of a wrong type."""

    key: str
    found: str
    expected: str  # empty if several types would be right

    def __str__(self) -> str:
        should = f" instead of a {_SHOWN_TYPES.get(self.expected, self.expected)}" if self.expected else ""
        return f"the key {printable(self.key)} holds a {_SHOWN_TYPES.get(self.found, self.found)}{should}"


class KeyTypes:
    """The type that each key of one root should have."""

    def __init__(self, client: RedisClient, keys: RedisKeys) -> None:
        self._client, self._keys, self._streams = client, keys, StreamKeys(client.options)
        self.shared = {
            **dict.fromkeys((keys.token, keys.strays), "string"),
            **dict.fromkeys((keys.ids, keys.uniques, keys.groups, keys.where, *keys.requests, keys.holds), "hash"),
            **dict.fromkeys((keys.finished, keys.counts, keys.progress, keys.workers_info), "hash"),
            **dict.fromkeys((keys.ids_expiry, keys.uniques_expiry, keys.groups_expiry, keys.held), "zset"),
            **dict.fromkeys((keys.done, keys.dead, keys.workers, keys.strangers), "zset"),
            **dict.fromkeys((keys.completed, keys.dead_letter), "list"),
            keys.queues: "set",
        }

    def expected(self, key: str) -> str:
        """The type of a key, by its name; empty if unknown."""
        options = self._client.options
        if key in self.shared:
            return self.shared[key]
        if [*workers_in([key.encode()], options.processing_list_pattern)]:
            return "list"
        if [*workers_in([key.encode()], options.heartbeat_key_pattern)]:
            return "string"
        if key == self._streams.registry:
            return "zset"
        if key.startswith(f"{self._streams.registry}:"):
            return next((kind for end, kind in _STREAM_ENDS.items() if key.endswith(end)), "hash")
        if key.startswith(f"{self._keys.root}:queue:") or key in options.literal_queues:
            return next((kind for end, kind in _QUEUE_ENDS.items() if key.endswith(end)), "list")
        return "stream" if self._streams.subject(key.encode()) is not None else ""

    async def misfits(self, kinds: Mapping[str, str]) -> list[Misfit]:
        """Those of these keys that have another type than expected."""
        told = await self._client.ask_many([("TYPE", key) for key in kinds])
        found = [Misfit(key, kind.decode(), kinds[key]) for key, kind in zip(kinds, told, strict=True)]
        return [each for each in found if each.found not in ("none", each.expected)]

    async def of_jobs(self) -> list[Misfit]:
        """Keys of a wrong type among those that all workers share, and those of the queues."""
        kinds: dict[str, str] = {}
        for queue in map(self._keys.queue, await known_queues(self._client, self._keys)):
            kinds |= {queue.list: "list", queue.delayed: "zset", queue.wake: "list", queue.rate: "list"}
        return await self.misfits(kinds | self.shared)

    async def everywhere(self) -> list[Misfit]:
        """Like `of_jobs`, plus the keys of each worker, for which all key names are scanned."""
        options, keys = self._client.options, self._keys
        kinds = {keys.processing(worker): "list" for worker in await self._workers(options.processing_list_pattern)}
        for worker in await self._workers(options.heartbeat_key_pattern):
            kinds[keys.heartbeat(worker)] = "string"
        return [*await self.of_jobs(), *await self.misfits(kinds)]

    async def _workers(self, pattern: str) -> list[str]:
        names = scanned(self._client, ("SCAN",), 500, ("MATCH", pattern_glob(pattern)))
        return await workers_among(self._client, names, pattern)

    async def named(self, error: WrongType) -> WrongType:
        """The error with the keys that have a wrong type."""
        keys = [key if isinstance(key, str) else key.decode(errors="replace") for key in error.keys]
        found = await self.misfits({key: self.expected(key) for key in keys})
        sure = [each for each in found if each.expected] or found
        if not sure:
            return error
        what = "; ".join(map(str, sure[:_NAMED_MAX]))
        return WrongType(f"{self._client.options.where}: {what} (WRONGTYPE)", do=WRONG_TYPE_ADVICE)


async def workers_among(client: RedisClient, found: AsyncIterator[list[bytes]], pattern: str) -> list[str]:
    """The workers that keys of this pattern belong to."""
    workers: set[str] = set()
    async for names in found:
        workers.update(workers_in(names, pattern))
        if len(workers) > WORKERS_MAX:
            raise PageLoop(client.options.where, f"SCAN {pattern}").endless(f"{WORKERS_MAX} workers were not all")
    return sorted(workers)


async def usable_queues(client: RedisClient, keys: RedisKeys) -> list[str]:
    """The known queues whose jobs can be read: their lists and delayed sets have the right types."""
    own = {name: keys.queue(name) for name in await known_queues(client, keys)}
    told = iter(await client.ask_many([("TYPE", key) for at in own.values() for key in (at.list, at.delayed)]))
    right = [(next(told) in (b"none", b"list"), next(told) in (b"none", b"zset")) for _ in own]
    return [name for name, fit in zip(own, right, strict=True) if all(fit)]


def reads_replies(port: type[C]) -> type[C]:
    """For a class with a `_client`: an unreadable reply in its public methods becomes StoreBroken."""
    for name, method in list(vars(port).items()):
        if inspect.iscoroutinefunction(method) and not name.startswith("_"):
            setattr(port, name, _reading(method))
    return port


def not_its_answer(client: RedisClient, what: str) -> StoreBroken:
    """The error for a reply that does not answer the command."""
    return StoreBroken(
        f"{client.options.where} answered {what} with an unreadable reply",
        do="check that redis.addr is the address of a Redis or Valkey, and that no proxy or other program changes its "
        "replies or its scripts; if it is and none does, report this with the error above",
    )


def _reading(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def reading(self: Any, *args: Any, **named: Any) -> Any:
        client: RedisClient = self._client
        before = client.replies
        try:
            return await method(self, *args, **named)
        except WrongType as error:
            if not error.keys:
                raise
            raise await KeyTypes(client, RedisKeys(client.options)).named(error) from error
        except _UNREADABLE as error:
            if client.replies == before or not _is_about_a_reply(error):
                raise
            raise not_its_answer(client, method.__qualname__) from error

    return reading


def _is_about_a_reply(error: Exception) -> bool:
    if isinstance(error, RuntimeError) and not isinstance(error.__cause__, StopIteration):
        return False
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return at is None or at.tb_frame.f_globals.get("__name__") not in _CLIENTS


async def fitting(count: int, ask: Callable[[int], Awaitable[T]]) -> tuple[T, int]:
    """The answer of `ask` for `count`, or for as many fewer as fit; and for how many it was asked."""
    while True:
        try:
            return await ask(count), count
        except ReplyTooLarge:
            if count <= 1:
                raise
            count = max(1, count // _SHRINK)


async def in_pieces(items: Sequence[Item], ask: Callable[[Sequence[Item]], Awaitable[Sequence[T]]]) -> list[T]:
    """One answer for each item, in one request or in as many as it takes."""
    found: list[T] = []
    count = len(items)
    while len(found) < len(items):
        rest = items[len(found) :]
        answers, count = await fitting(min(count, len(rest)), lambda few: ask(rest[:few]))  # noqa: B023
        if len(answers) != count:
            raise ValueError(f"{len(answers)} answers for {count} items")
        found += answers
    return found


async def scanned(
    client: RedisClient, command: tuple[str, ...], count: int, options: tuple[str, ...] = ()
) -> AsyncIterator[list[bytes]]:
    """The results of SCAN, HSCAN or ZSCAN, in steps that fit into a reply."""
    cursor, page_loop = b"0", PageLoop(client.options.where, " ".join(command))
    while True:
        page_loop.turn(cursor)
        (cursor, found), _ = await fitting(
            count,
            lambda fewer: client.ask(*command, cursor, *options, "COUNT", fewer),  # noqa: B023
        )
        if found:
            yield found
        if cursor == b"0":
            return
