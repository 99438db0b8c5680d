"""Another process that uses a directory: `python -m backends.directory.process <what> <place> <name>`.

`create` and `count` wait for the others at a gate. `live` makes random changes until it is killed, and
says each on its output before and after, so that the test that killed it knows what may and what must have happened.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta
from pathlib import Path

import seeds
from wrasse.backends.directory.connect import Directory
from wrasse.clock import SystemClock
from wrasse.ports.objects import ObjectDelete
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection

THINGS = Collection.named("things")
KEYS = ["k/", "k/a", "k/a/b", "k/a/b/c", "k/é//"]


def say(*words: object) -> None:
    print(json.dumps(words), flush=True)


async def at_the_gate(place: Path) -> None:
    """Waits until all are here."""
    say("ready")
    while True:
        if (place.parent / "gate").exists():
            return
        await asyncio.sleep(0.001)


async def create(place: Path, name: str) -> None:
    directory = await Directory.open(place)
    await at_the_gate(place)
    for n in range(5):
        stored = await directory.objects.create(f"k{n}/x", name.encode() * 10_000, metadata={"name": name})
        say(f"k{n}/x", stored.outcome is Outcome.DONE)
    await directory.close()


async def count(place: Path, name: str) -> None:
    """Adds one to a record, by compare and set, twenty times."""
    directory = await Directory.open(place)
    await at_the_gate(place)
    records = directory.records(THINGS)
    added = 0
    while added < 20:
        record = await records.get("n")
        if record is None:
            added += bool(await records.create("n", b"1"))
        else:
            added += bool(await records.put("n", b"%d" % (int(record.value) + 1), at=record.version))
    await directory.close()


async def live(place: Path, name: str) -> None:
    directory = await Directory.open(place)
    draw = seeds.draw(name)
    records, clock = directory.records(THINGS), SystemClock()
    for n in range(1_000_000):
        key, data = draw.choice(KEYS), f"{name}-{n}".encode() * draw.randint(1, 3_000)
        metadata = draw.choice([{}, {"n": str(n)}])
        head = await directory.objects.head(key)
        if head is None:
            say("begin", "object", key, len(data), metadata)
            await directory.objects.create(key, data, metadata=metadata)
        elif draw.random() < 0.5:
            say("begin", "object", key, len(data), metadata)
            await directory.objects.replace(key, data, at=head.info.version, metadata=metadata)
        else:
            say("begin", "object", key, None, {})
            await directory.objects.delete([ObjectDelete(key, head.info.version)])
        say("end")
        record = await records.get(key)
        due_at = draw.choice([None, clock.now() - timedelta(hours=draw.randint(2, 4))])
        if record is not None and draw.random() < 0.3:
            say("begin", "record", key, None, None)
            await records.delete(key, at=record.version)
        else:
            say("begin", "record", key, n, due_at is not None)
            if record is None:
                await records.create(key, str(n).encode(), due_at=due_at)
            else:
                await records.put(key, str(n).encode(), at=record.version, due_at=due_at)
        say("end")


if __name__ == "__main__":
    asyncio.run({"create": create, "count": count, "live": live}[sys.argv[1]](Path(sys.argv[2]), sys.argv[3]))
