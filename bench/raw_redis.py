"""What Redis and redis-py can do without us: round trips, and the least that can be called a reliable worker.

The raw loop claims and completes a hundred jobs with one small script, and does nothing else: no deadline, no second
check, no result, no rescue.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import redis
import redis.asyncio

from bench.measure import seconds
from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.jobs.enqueue import pushed
from wrasse.backends.redis.keys import RedisKeys
from wrasse.backends.redis.options import RedisOptions
from wrasse.backends.redis.scripts import load
from wrasse.clock import SystemClock
from wrasse.ids import Ids
from wrasse.ports.jobs import Job

BATCH = 100
_STEP = """
for i = 2, #ARGV do redis.call('LREM', KEYS[2], -1, ARGV[i]) end
local out = {}
for i = 1, tonumber(ARGV[1]) do
  local v = redis.call('LMOVE', KEYS[1], KEYS[2], 'RIGHT', 'LEFT')
  if not v then break end
  out[i] = v
end
return out"""


class RawRedis:
    """redis-py with hiredis on one connection."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._redis = redis.Redis.from_url(url)
        self._options = RedisOptions.of(url)
        self._keys = RedisKeys(self._options)
        self._clock = SystemClock()
        self._ids = Ids(self._clock)
        self._push = load("push")
        self._redis.script_load(self._push.text)

    def lpush(self, count: int) -> float:
        """Seconds for one LPUSH after the other, of what a job is."""
        jobs = self._jobs(count)
        return seconds(lambda: [self._redis.lpush("raw", job) for job in jobs])

    def lpush_many(self, count: int) -> float:
        """Seconds for LPUSHes of a hundred jobs each."""
        jobs = self._jobs(count)
        pieces = [jobs[start : start + BATCH] for start in range(0, count, BATCH)]
        return seconds(lambda: [self._redis.lpush("raw", *piece) for piece in pieces])

    def script(self, count: int) -> float:
        """Seconds for the very calls that an enqueue of ours makes, made beforehand."""
        calls = [self._call(Job(self._ids.new(), minted=True)) for _ in range(count)]
        return seconds(lambda: [self._redis.evalsha(self._push.sha, len(keys), *keys, *args) for keys, args in calls])

    async def lpush_async(self, count: int) -> float:
        """As `lpush`, in an event loop as an enqueue of ours is."""
        jobs = self._jobs(count)
        async with redis.asyncio.Redis.from_url(self._url) as client:
            await client.ping()
            begun = self._clock.monotonic()
            for job in jobs:
                await client.lpush("raw", job)
            return self._clock.monotonic() - begun

    async def script_async(self, count: int) -> float:
        """As `script`, in an event loop as an enqueue of ours is."""
        calls = [self._call(Job(self._ids.new(), minted=True)) for _ in range(count)]
        async with redis.asyncio.Redis.from_url(self._url) as client:
            await client.ping()
            begun = self._clock.monotonic()
            for keys, args in calls:
                await client.evalsha(self._push.sha, len(keys), *keys, *args)
            return self._clock.monotonic() - begun

    def work(self, count: int, handle: Callable[[], object]) -> float:
        """Seconds for the raw loop and so many jobs."""
        jobs = self._jobs(count)
        for start in range(0, count, 1_000):
            self._redis.lpush("ready", *jobs[start : start + 1_000])
        step = self._redis.register_script(_STEP)

        def loop() -> None:
            taken: Sequence[bytes] = ()
            while taken := step(keys=["ready", "taken"], args=[BATCH, *taken]):
                for job in taken:
                    json.loads(job)
                    handle()

        return seconds(loop)

    def size(self) -> int:
        """How long the JSON of a job is that says nothing."""
        (raw,) = self._jobs(1)
        assert isinstance(raw, bytes), "a job is sent as bytes"
        return len(raw)

    def empty(self) -> None:
        """Forgets everything but the script."""
        self._redis.flushall()

    def _jobs(self, count: int) -> list[Word]:
        jobs = [Job(self._ids.new(), minted=True) for _ in range(count)]
        _, (_, _, _, *raws) = pushed(jobs, self._keys, self._options, self._clock.now())
        return raws

    def _call(self, job: Job) -> tuple[list[Word], list[Word]]:
        keys, args = pushed([job], self._keys, self._options, self._clock.now())
        return [*keys], [0, self._ids.new(), *args]
