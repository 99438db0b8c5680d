"""The raw lists, as the seed's own admin commands show and purge them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.fsck.pages import workers_with
from wrasse.backends.redis.jobs.queue_guess import known_queues
from wrasse.backends.redis.jobs.states import text_of
from wrasse.backends.redis.keys import RedisKeys
from wrasse.backends.redis.replies import reads_replies
from wrasse.backends.redis.reply_limit import fitting
from wrasse.backends.redis.scripts import load
from wrasse.errors import StoreUnavailable
from wrasse.ports.job_lists import ListLengths, Purged


@reads_replies
class RedisLists:
    """The lists of one root."""

    def __init__(self, client: RedisClient) -> None:
        self._client, self._keys = client, RedisKeys(client.options)

    @property
    def names(self) -> Mapping[str, str]:
        """The key of each list that has a name."""
        queues = {name: self._keys.queue(queue).list for name, queue in self._client.options.queues.items()}
        return {**queues, "completed": self._keys.completed, "dead_letter": self._keys.dead_letter}

    async def lengths(self, limiter: str) -> ListLengths:
        """The current length of each list."""
        options, names = self._client.options, self.names
        holding = await workers_with(self._client, options.processing_list_pattern, "list")
        processing = [self._keys.processing(worker) for worker in holding]
        beating = await workers_with(self._client, options.heartbeat_key_pattern, "string")
        told = await self._client.ask_many([("LLEN", key) for key in (*names.values(), *processing)])
        ends = await self._client.ask("PTTL", limiter)
        return ListLengths(
            {f"{name}({key})": length for (name, key), length in zip(names.items(), told, strict=False)},
            {key: length for key, length in zip(processing, told[len(names) :], strict=True) if length},
            len(beating),
            timedelta(milliseconds=ends) if ends > 0 else None,
        )

    async def peek(self, key: str, count: int) -> Sequence[bytes]:
        """The right end of the list, the next one first."""
        found: list[bytes] = []
        step = count
        while len(found) < count:
            behind = len(found)
            some, step = await fitting(
                min(step, count - behind),
                lambda few: self._client.ask("LRANGE", key, -behind - few, -behind - 1),  # noqa: B023
            )
            found += some[::-1]
            if len(some) < step:
                break
        return found

    async def purge(self, limiter: str, *, force: bool, dry: bool) -> Purged:
        """Runs one script. The counter of tokens stays, since a token is never issued twice; so do remembered
        answers."""
        options, keys = self._client.options, self._keys
        beating = await workers_with(self._client, options.heartbeat_key_pattern, "string")
        holding = await workers_with(self._client, options.processing_list_pattern, "list")
        names = [*map(keys.heartbeat, beating), *map(keys.processing, holding), limiter]
        for queue in await known_queues(self._client, keys):
            own = keys.queue(queue)
            names += (own.list, own.delayed, own.wake, own.rate)
        names += (key for key in keys.shared if key not in (keys.token, *keys.requests))
        names = list(dict.fromkeys(names))
        what = "look" if dry else "force" if force else "ask"
        alive, *told = await self._client.run(load("purge"), names, [what, len(beating)])
        if alive and not (dry or force):
            return Purged({}, tuple(map(text_of, told)))
        if len(told) != len(names):
            raise StoreUnavailable("only a part of the purge was answered", do="ask again with --dry-run")
        sizes = {name: size for name, size in zip(names, told, strict=True) if size}
        return Purged(sizes, tuple(names[: len(beating)]) if alive else ())
