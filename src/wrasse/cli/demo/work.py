"""The handler of the demo's workers, and the process that has a lease until it is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from wrasse.jobs.worker.running_job import RunningJob

SLOW_FOR = 60.0  # seconds; longer than any scene waits
LEASE = "orders/42"
LEASE_TTL = "2s"


async def handle(job: RunningJob) -> str:
    """The handler of every kind of job in the demo."""
    if job.kind == "poison":
        # Like a fault in a C library or the out-of-memory killer: no exception, no clean stop.
        os.kill(os.getpid(), signal.SIGKILL)
    if job.kind == "slow" and job.attempt == 1:
        await asyncio.sleep(SLOW_FOR)
    await asyncio.sleep(0.01)
    return f"done by attempt {job.attempt}"


async def hold_for_ever(url: str) -> None:
    """Acquires the lease, writes its token, and renews it until the process ends."""
    from wrasse.api.app import connect

    async with connect(url) as app, app.lease(LEASE, ttl=LEASE_TTL, owner="first") as lease:
        sys.stdout.write(f"{lease.token}\n")
        sys.stdout.flush()
        await asyncio.sleep(SLOW_FOR)


if __name__ == "__main__":
    asyncio.run(hold_for_ever(sys.argv[1]))
