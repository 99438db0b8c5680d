"""Processes that race for the same keys of a real store: one winner each, and no count is lost."""

from __future__ import annotations

import asyncio
import secrets
import sys
from pathlib import Path

from conformance.object_stores import make_bucket, whole
from servers.seaweed import S3 as S3Server
from wrasse.backends.s3.address import S3Address
from wrasse.backends.s3.connect import S3
from wrasse.ports.records import Collection

COUNT = 20
RACERS = 3


async def test_of_racing_processes_one_wins_each_key_and_every_count_is_there(s3: S3Server) -> None:
    address, prefix = await make_bucket(s3), secrets.token_hex(6)
    argv = [sys.executable, str(Path(__file__).with_name("process.py"))]
    argv += [s3.endpoint, s3.key, s3.secret, address.bucket, prefix]
    pipe = asyncio.subprocess.PIPE
    racers = [
        await asyncio.create_subprocess_exec(*argv, f"p{n}", str(COUNT), stdin=pipe, stdout=pipe) for n in range(RACERS)
    ]
    async with asyncio.timeout(90):
        for racer in racers:
            assert racer.stdout is not None
            assert await racer.stdout.readline() == b"ready\n"
        said = [text.decode() for text, _ in await asyncio.gather(*(racer.communicate(b"go\n") for racer in racers))]
    won = {f"race/{line.split()[1]}": f"p{n}" for n, text in enumerate(said) for line in text.splitlines()}
    wins = sum(len(text.splitlines()) for text in said)
    backend = await S3.open(S3Address(address.bucket, prefix, s3.endpoint, access_key=s3.key, secret_key=s3.secret))
    try:
        there = {key: (await whole(backend.objects, key)).decode() for key in won}
        counted = await backend.records(Collection.named("race")).get("n")
    finally:
        await backend.close()
    assert (wins, there) == (COUNT, won)
    assert counted is not None
    assert int(counted.value) == RACERS * COUNT
