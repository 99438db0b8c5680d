"""A process that races others: `python process.py ENDPOINT KEY SECRET BUCKET PREFIX NAME COUNT`.

It waits for a line, then creates COUNT objects and counts a record up COUNT times, and prints the keys that it won.
"""

from __future__ import annotations

import asyncio
import sys

from wrasse.backends.s3.address import S3Address
from wrasse.backends.s3.connect import S3
from wrasse.ports.records import Collection


async def main(endpoint: str, key: str, secret: str, bucket: str, prefix: str, name: str, count: str) -> None:
    """Races."""
    backend = await S3.open(S3Address(bucket, prefix, endpoint, access_key=key, secret_key=secret))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for number in range(int(count)):
        if await backend.objects.create(f"race/{number}", name.encode()):
            print(f"won {number}", flush=True)
    records, counted = backend.records(Collection.named("race")), 0
    await records.create("n", b"0")
    while counted < int(count):
        record = await records.get("n")
        assert record is not None
        if await records.put("n", b"%d" % (int(record.value) + 1), at=record.version):
            counted += 1
    await backend.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
