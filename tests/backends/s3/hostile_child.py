"""A client of a hostile store, in a process of its own, so that its memory can be told: `endpoint answers`.

Says the largest memory in kilobytes before and after every operation met every answer.
"""

from __future__ import annotations

import asyncio
import resource
import sys

from backends.s3.test_hostile import ended, operations
from wrasse.backends.s3.address import S3Address
from wrasse.backends.s3.client import Client
from wrasse.backends.s3.connect import S3
from wrasse.backends.s3.transport import S3Transport
from wrasse.clock import ManualClock
from wrasse.errors import WrasseError


async def main(endpoint: str, answers: int) -> None:
    clock = ManualClock()
    address = S3Address("bucket", "", endpoint, access_key="k", secret_key="s")
    store = S3(Client(S3Transport(address, clock, tries=1, silence_max=1, request_max=2)))
    asked = operations(store, address, clock)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for each in ("page", "read", "record", "deleted", "uploads", "copy"):
        for _ in range(answers):
            assert isinstance(await ended(asked[each]), WrasseError | bool)
    print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    await store.close()


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
