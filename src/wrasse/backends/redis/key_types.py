"""Keys of ours that have a value of another type: another program wrote there, or a person by mistake.

Scripts check the keys they need before they change anything (lua/types.lua). A walk over several queues skips those
whose keys have a wrong type; `jobs fsck`, the doctor and the status name them. No key is deleted for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from wrasse.backends.foreign_protocol import printable
from wrasse.backends.page_loop import PageLoop
from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.failure import WrongType
from wrasse.backends.redis.jobs.queue_guess import known_queues
from wrasse.backends.redis.keys import RedisKeys, pattern_glob, workers_in
from wrasse.backends.redis.reply_limit import scanned
from wrasse.backends.redis.stream_keys import StreamKeys

DO = "move it away with RENAME if its value is needed, else DEL it; then run `wrasse jobs fsck`"
WORKERS_MAX = 1_000_000
"""Workers whose keys a Redis may name in one search."""
_NAMED_MAX = 5
_SHOWN = {"zset": "sorted set"}
_ENDS = {":delayed": "zset", ":wake": "list", ":rate": "list"}
_STREAM_ENDS = {":keys": "hash", ":keys:expiry": "zset", ":held": "zset", ":due": "zset", ":consumers": "hash",
                ":wake": "stream"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Misfit:
    """A key of a wrong type."""

    key: str
    found: str
    expected: str  # empty if several types would be right

    def __str__(self) -> str:
        should = f" instead of a {_SHOWN.get(self.expected, self.expected)}" if self.expected else ""
        return f"the key {printable(self.key)} holds a {_SHOWN.get(self.found, self.found)}{should}"


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
            return next((kind for end, kind in _ENDS.items() if key.endswith(end)), "list")
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
        return WrongType(f"{self._client.options.where}: {what} (WRONGTYPE)", do=DO)


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
