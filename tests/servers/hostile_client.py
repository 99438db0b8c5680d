"""A client in a process of its own: `python hostile_client.py nats|redis PORT OPTIONS`. Prints what it met, as JSON."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time

from wrasse.backends.nats.client.connection import NatsConnection as NatsLink
from wrasse.backends.nats.client.jetstream import JetStream
from wrasse.backends.nats.options import NatsOptions
from wrasse.backends.redis.client.connection import OwnRedisClient as RedisLink
from wrasse.backends.redis.client.redis_py import RedisPyClient
from wrasse.backends.redis.options import RedisOptions
from wrasse.errors import WrasseError


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def ask_nats(port: int, query: str) -> None:
    link = await NatsLink.open(NatsOptions.of(f"nats://127.0.0.1:{port}?dial_timeout=1s&read_timeout=1s{query}"))
    await JetStream(link).call("INFO")
    await link.close()


async def ask_redis(port: int, query: str) -> None:
    options = RedisOptions.of(f"redis://127.0.0.1:{port}/0?dial_timeout=1s&read_timeout=1s&max_retries=0{query}")
    link = await (RedisLink if options.client == "own" else RedisPyClient).open(options)
    await link.ask("GET", "a")
    await link.close()


async def main(kind: str, port: str, options: str) -> None:
    """Asks one question."""
    before, began = peak(), time.monotonic()
    query = "".join(f"&{name}={value}" for name, value in json.loads(options).items())
    met: BaseException | None = None
    try:
        await (ask_nats if kind == "nats" else ask_redis)(int(port), query)
    except Exception as error:
        met = error
    told = {
        "error": type(met).__name__, "message": str(met), "ours": isinstance(met, WrasseError),
        "seconds": time.monotonic() - began, "grown": peak() - before,
    }  # fmt: skip
    print(json.dumps(told))


asyncio.run(main(*sys.argv[1:]))
