"""What another process does to streams in a database, for the tests that need one: `python stream_child.py WHAT PATH`.

It prints a line for each thing it knows to be durable, and nothing before that.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from datetime import timedelta
from itertools import count
from pathlib import Path

from wrasse.backends.sqlite.connect import Sqlite
from wrasse.ports.groups import Ack, StartAt
from wrasse.ports.outcome import Outcome
from wrasse.ports.streams import Draft

S, G = "gbe.tasks.email.queue", "workers"
SHORT = timedelta(milliseconds=50)


def start(what: str, path: Path) -> subprocess.Popen[str]:
    """Starts this file in a process of its own."""
    return subprocess.Popen(
        [sys.executable, __file__, what, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


async def appends_one(path: Path) -> None:
    """Appends one entry, on the parent's word."""
    store = await Sqlite.open(path)
    say("waiting")
    await asyncio.to_thread(sys.stdin.readline)
    await store.streams.append([Draft(S, b"from outside")])
    await store.close()


async def appends(path: Path) -> None:
    """Appends until killed, and says what is stored."""
    store = await Sqlite.open(path)
    for n in count():
        bodies = [f"{os.getpid()}-{n}-{k}" for k in range(n % 7 + 1)]
        await store.streams.append([Draft(S, body.encode()) for body in bodies])
        for body in bodies:
            say(body)


async def consumes(path: Path) -> None:
    """Takes deliveries and acks them until killed, and says what is acked."""
    store = await Sqlite.open(path)
    await store.groups.join(S, G, StartAt(first=True))
    while True:
        found = await store.groups.deliver([S], G, str(os.getpid()), 5, ack_timeout=SHORT, wait=timedelta(seconds=1))
        outcomes = await store.groups.answer([Ack(S, G, each.entry.id) for each in found])
        for delivery, outcome in zip(found, outcomes, strict=True):
            if outcome is Outcome.DONE:
                say(delivery.entry.body.decode())


async def trims(path: Path) -> None:
    """Trims below what is acked until killed."""
    store = await Sqlite.open(path)
    while True:
        trimmed = await store.streams.trim(S, age=None, below=None, protect=[G], limit=50)
        say(str(trimmed.count))
        await asyncio.sleep(0.01)


def say(line: str) -> None:
    """One line, whole, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(globals()[sys.argv[1]](Path(sys.argv[2])))
