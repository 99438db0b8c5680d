"""The queue of a job that is found outside of one. Pure, except for the names of the queues."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.failure import WrongType
from wrasse.backends.redis.jobs.job_json import JobFields
from wrasse.backends.redis.keys import RedisKeys
from wrasse.backends.redis.options import RedisOptions


async def known_queues(client: RedisClient, keys: RedisKeys) -> list[str]:
    """Every queue that a job was enqueued in or that the settings name, in order."""
    try:
        put = {name.decode("utf-8", "replace") for name in await client.ask("SMEMBERS", keys.queues)}
    except WrongType:  # costs only the names in it; `jobs fsck` names the key
        put = set()
    return sorted(put | set(client.options.queues.values()))


@dataclass(frozen=True, slots=True)
class QueueGuess:
    """A queue, and whether the job's own bytes name it."""

    queue: str
    right: bool = True


@dataclass(frozen=True, slots=True)
class Router:
    """The rule: the queue a job names if it is known; without a name that of its priority, else the default's. For an
    unknown name there is no guess."""

    options: RedisOptions
    queues: Collection[str]

    def route(self, wire: JobFields | None) -> QueueGuess:
        """The queue of a job that another program left."""
        default = self.options.queues.get(self.options.default_priority, self.options.default_priority)
        if wire is None:
            return QueueGuess(default)
        if wire.origin_queue:
            known = wire.origin_queue in self.queues
            return QueueGuess(wire.origin_queue) if known else QueueGuess(default, right=False)
        by_priority = self.options.queues.get(wire.priority, wire.priority)
        return QueueGuess(by_priority if by_priority in self.queues else default)

    def back_to(self, wire: JobFields | None, queue: str) -> str:
        """The queue of a dead job that is requeued: where it came from, else the queue of its last claim."""
        return wire.origin_queue if wire is not None and wire.origin_queue in self.queues else queue
