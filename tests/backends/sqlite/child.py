"""What another process does to a database, for the tests that need one: `python child.py WHAT PATH`.

It prints a line for each thing it knows to be durable, and nothing before that.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path

from wrasse.backends.sqlite.connect import Sqlite
from wrasse.errors import WrasseError
from wrasse.ports.jobs import Complete, Job

HEARTBEAT_TIMEOUT = timedelta(seconds=60)
NOBODY = 65534


def start(what: str, path: Path) -> subprocess.Popen[str]:
    """Starts this file in a process of its own."""
    return subprocess.Popen(
        [sys.executable, __file__, what, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str], *, patience: float = 60) -> list[str]:
    """What it printed until it ended by itself."""
    out, _ = process.communicate(timeout=patience)
    assert process.returncode == 0, f"the child ended with {process.returncode}"
    return out.splitlines()


async def opens(path: Path, *, user: int = 0) -> None:
    """Only opens it, on the parent's word, and says how it went."""
    say("waiting")
    await asyncio.to_thread(sys.stdin.readline)
    if user and os.getuid() == 0:
        os.setgid(user)
        os.setuid(user)
    try:
        store = await Sqlite.open(path)
    except WrasseError as error:
        say(f"{type(error).__name__}: {error.message}")
        return
    say("opened")
    await store.close()


async def opens_as_nobody(path: Path) -> None:
    """The same without the rights of root, who may write anywhere."""
    await opens(path, user=NOBODY)


async def puts_one(path: Path) -> None:
    """Puts one job, on the parent's word."""
    store = await Sqlite.open(path)
    say("waiting")
    await asyncio.to_thread(sys.stdin.readline)
    await store.jobs.enqueue([Job("from-outside")], request="r")
    say("put")
    await store.close()


async def takes_all(path: Path) -> None:
    """Takes and finishes jobs, a few at a time, until none is left."""
    store = await Sqlite.open(path)
    say("waiting")
    await asyncio.to_thread(sys.stdin.readline)
    for number in count():
        request = f"{os.getpid()}-{number}"
        claimed = await store.jobs.claim(
            ["low"], 7, worker=str(os.getpid()), heartbeat_timeout=HEARTBEAT_TIMEOUT, request=request
        )
        if not claimed.jobs:
            break
        for job in claimed.jobs:
            say(job.claim.id)
        await store.jobs.settle([Complete(job.claim) for job in claimed.jobs], request=request)
    await store.close()


async def churns(path: Path) -> None:
    """Puts, takes and finishes without end, several at once, and says which puts were answered."""
    store = await Sqlite.open(path, done_max=50)

    async def produce(name: str) -> None:
        for number in count():
            jobs = [Job(f"{name}-{number}-{n}", payload=os.urandom(50 if n else 3_000), lasting=True) for n in range(3)]
            await store.jobs.enqueue(jobs, request=f"{name}-{number}")
            for job in jobs:
                say(job.id)

    async def work(name: str) -> None:
        for number in count():
            request = f"{name}-{number}"
            claimed = await store.jobs.claim(
                ["low"], 2, worker=name, heartbeat_timeout=HEARTBEAT_TIMEOUT, request=request
            )
            await store.jobs.settle([Complete(job.claim, b"result") for job in claimed.jobs], request=request)

    async with asyncio.TaskGroup() as group:
        for n in range(4):
            group.create_task(produce(f"{os.getpid()}-{n}"))
            group.create_task(work(f"worker-{os.getpid()}-{n}"))


async def fills(path: Path) -> None:
    """Puts until the file may not grow any more; then says how that went, and what still works."""
    store = await Sqlite.open(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, resource.RLIM_INFINITY))
    for number in count():
        try:
            await store.jobs.enqueue([Job(f"job-{number}", payload=os.urandom(1_000))], request=str(number))
        except WrasseError as error:
            say(f"{type(error).__name__}: {error.message} {error.do}")
            break
        say(f"job-{number}")
    found = await store.jobs.get("job-0")
    say("read" if found is not None else "lost")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.jobs.enqueue([Job("after")], request="after")
    say("after")
    await store.close()


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> None:
    """Runs one of the above."""
    what, path = arguments
    known = (opens, opens_as_nobody, puts_one, takes_all, churns, fills)
    asyncio.run({function.__name__: function for function in known}[what](Path(path)))


if __name__ == "__main__":
    main(sys.argv[1:])
