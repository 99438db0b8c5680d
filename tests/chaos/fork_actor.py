"""Forks workers and rescuers on one Redis and kills them, thousands of times, each after a few milliseconds.

A fork has everything imported already, so that a life costs milliseconds: `fork_actor.py URL KILLS`.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from uuid import uuid4

from wrasse.backends.redis.connect import Redis
from wrasse.errors import StoreUnavailable
from wrasse.ports.jobs import Budget, ClaimedJob, Complete, Reason, Requeue, Settlement

HEARTBEAT_TIMEOUT = timedelta(milliseconds=100)
KEEP_ALL = 1_000_000
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG
Life = Callable[[str], Coroutine[None, None, None]]


async def work(url: str) -> None:
    """Takes jobs, finishes half of them and fails the others, whose next attempt is at once or a little later."""
    jobs = (await Redis.open(url, done_max=KEEP_ALL)).jobs
    while True:
        claimed = await jobs.claim(
            ["low"],
            random.randint(1, 5),
            worker=f"w-{os.getpid()}",
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            request=uuid4().hex,
            wait=timedelta(seconds=1),
        )
        if claimed.jobs:
            await jobs.settle([_end(each) for each in claimed.jobs], request=uuid4().hex)


def _end(claimed: ClaimedJob) -> Settlement:
    if random.random() < 0.5:
        return Complete(claimed.claim)
    delay = timedelta(milliseconds=random.choice((0, 20)))
    return Requeue(claimed.claim, Budget.FAILURES, Reason.FAILED, delay=delay)


async def rescue(url: str) -> None:
    """Gives back what is overdue, without end."""
    jobs = (await Redis.open(url, done_max=KEEP_ALL)).jobs
    while True:
        overdue = await jobs.overdue(None, 20)
        if overdue:
            await jobs.move([Requeue(each.claim, Budget.RESCUES, Reason.WORKER_DIED) for each in overdue])
        await asyncio.sleep(0.005)


def born(life: Life, url: str, nth: int) -> int:
    """A process that lives this life until it is killed."""
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
        random.seed(f"{os.environ.get('PYTEST_SEED_OF_WRASSE')} {nth}")
        asyncio.run(life(url))
    except StoreUnavailable as error:
        os.write(2, f"{error}\n".encode())
    finally:
        os._exit(1)  # only a kill ends a life in order


def main() -> None:
    random.seed(os.environ.get("PYTEST_SEED_OF_WRASSE"))
    url, kills = sys.argv[1], int(sys.argv[2])
    lives: list[Life] = [work, work, work, rescue, rescue]
    seats = [born(life, url, nth) for nth, life in enumerate(lives)]
    for nth in range(kills):
        time.sleep(random.uniform(0.001, 0.02))
        seat = random.randrange(len(seats))
        end(seats[seat])
        seats[seat] = born(lives[seat], url, len(lives) + nth)
    for pid in seats:
        end(pid)


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        sys.exit("a life ended by itself")


if __name__ == "__main__":
    main()
