"""Consumers of a queue on a directory, made to be killed: each line on stdin starts one more, in a fork.

    python consumer_actor.py <folder> <log>

The parent imports everything once and says the pid of each child. A child writes a line to the log before it works a
job and another once it was told that its finish counted; when stdin ends, the parent ends and lets the children be.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from datetime import timedelta
from pathlib import Path

from wrasse.backends.directory.connect import Directory
from wrasse.clock import SystemClock
from wrasse.jobs.record_queue.queue import RecordedJobs, RecordedOptions
from wrasse.ports.jobs import Complete
from wrasse.ports.outcome import Outcome

HEARTBEAT_TIMEOUT = timedelta(seconds=1)


async def consume(folder: Path, log: int) -> None:
    clock = SystemClock()
    store = await Directory.open(folder, clock)
    jobs = RecordedJobs(store.records, store.objects, clock, RecordedOptions(rescues_max=10_000, poll_max=0.1))
    me, number = f"consumer-{os.getpid()}", 0
    while True:
        number += 1
        claimed = await jobs.claim(
            ["low"],
            3,
            worker=me,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            request=f"{me}-{number}",
            wait=timedelta(seconds=5),
        )
        for each in claimed.jobs:
            os.write(log, f"ran {each.job.id}\n".encode())
            await asyncio.sleep(random.uniform(0, 0.01))
            (outcome,) = await jobs.settle([Complete(each.claim)], request=f"{me}-{number}-{each.job.id}")
            if outcome is Outcome.DONE:
                os.write(log, f"finished {each.job.id}\n".encode())


def main() -> None:
    folder, log = Path(sys.argv[1]), os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number, _ in enumerate(sys.stdin):
        child = os.fork()
        if child == 0:
            os.close(0)
            random.seed(f"{os.environ.get('PYTEST_SEED_OF_WRASSE')} {number}")
            asyncio.run(consume(folder, log))
        print(child, flush=True)


if __name__ == "__main__":
    main()
