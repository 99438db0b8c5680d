"""Several processes in one directory: one winner, no lost update, and nothing torn when one of them is killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backends.directory.process import THINGS
from conformance.object_stores import listed, whole
from wrasse.backends.directory.connect import Directory
from wrasse.clock import SystemClock

TESTS = Path(__file__).parents[2]
PATIENCE = 60.0
Known = dict[tuple[str, str], Any]


@contextmanager
def processes(what: str, place: Path, outs: Sequence[Path]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """One process for each output."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    started = []
    for number, out in enumerate(outs):
        command = [sys.executable, "-m", "backends.directory.process", what, str(place), f"{out.name}-{number}"]
        with out.open("wb") as output:
            started.append(subprocess.Popen(command, stdout=output, env=environment))
    try:
        yield started
    finally:
        for each in started:
            each.kill()
            each.wait()


def said(out: Path) -> list[Sequence[Any]]:
    """The whole lines of a process's output."""
    text = out.read_bytes()
    return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]


async def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if condition():
                return
            await asyncio.sleep(0.002)


async def lines(out: Path, count: int) -> None:
    """Waits until a process has said so many."""
    await until(lambda: len(said(out)) >= count)


async def ended(running: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Waits for all; how each ended."""
    await until(lambda: all(each.poll() is not None for each in running))
    return [each.returncode for each in running]


async def test_of_eight_processes_that_create_one_key_one_wins(tmp_path: Path) -> None:
    place, outs = tmp_path / "data", [tmp_path / f"out{n}" for n in range(8)]
    with processes("create", place, outs) as running:
        for out in outs:
            await lines(out, 1)
        (tmp_path / "gate").touch()
        assert await ended(running) == [0] * 8
    won = {key: f"out{n}-{n}" for n, out in enumerate(outs) for key, done in said(out)[1:] if done}
    wins = [done for out in outs for _, done in said(out)[1:]].count(True)
    directory = await Directory.open(place)
    stored = {info.key: await whole(directory.objects, info.key) for info in await listed(directory.objects)}
    heads = [await directory.objects.head(key) for key in won]
    await directory.close()
    assert (wins, len(won)) == (5, 5)
    assert stored == {key: name.encode() * 10_000 for key, name in won.items()}
    assert [head and head.metadata["name"] for head in heads] == list(won.values())


async def test_no_update_by_four_processes_is_lost(tmp_path: Path) -> None:
    outs = [tmp_path / f"out{n}" for n in range(4)]
    with processes("count", tmp_path / "data", outs) as running:
        for out in outs:
            await lines(out, 1)
        (tmp_path / "gate").touch()
        assert await ended(running) == [0] * 4
    directory = await Directory.open(tmp_path / "data")
    record = await directory.records(THINGS).get("n")
    await directory.close()
    assert record is not None
    assert record.value == b"80"


async def state(directory: Directory) -> Known:
    """Everything there is; listings, heads, records and the due index must agree."""
    found: Known = {}
    for info in await listed(directory.objects, "k/"):
        head = await directory.objects.head(info.key)
        assert head is not None
        assert len(await whole(directory.objects, info.key, at=info.version)) == info.size
        found["object", info.key] = (info.size, dict(head.metadata))
    records = directory.records(THINGS)
    due = {record.key for record in await records.due(SystemClock().now() + timedelta(hours=2), None, 100)}
    for record in await records.page("", None, 100):
        found["record", record.key] = (int(record.value), record.due_at is not None)
        assert (record.key in due) == (record.due_at is not None)
    assert due <= {record.key for record in await records.page("", None, 100)}
    return found


def tell(known: Known, story: Sequence[Sequence[Any]]) -> tuple[Known, Known]:
    """What there must have been before the last change, and after it."""
    before = after = dict(known)
    for word, *change in story:
        if word == "begin":
            what, key, value, more = change
            before, after = after, dict(after)
            after.pop((what, key), None)
            if value is not None:
                after[what, key] = (value, more)
        else:
            before = after
    return before, after


async def killed(times: int, place: Path, seed: int) -> int:
    """Kills a process that lives in the directory, so many times; how often it died between begin and end."""
    draw, known, torn = random.Random(seed), Known(), 0
    for number in range(times):
        out = place.parent / f"out{number}"
        with processes("live", place, [out]):
            await lines(out, draw.randint(2, 60))
            await asyncio.sleep(draw.random() * 0.01)
        before, after = tell(known, said(out))
        directory = await Directory.open(place)
        known = await state(directory)
        await directory.close()
        assert known in (before, after), f"after kill {number}"
        torn += before != after
    return torn


async def test_a_process_killed_anywhere_leaves_nothing_torn(tmp_path: Path) -> None:
    assert await killed(30, tmp_path / "data", 1) > 0


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_a_process_killed_two_hundred_times_leaves_nothing_torn(tmp_path: Path) -> None:
    assert await killed(200, tmp_path / "data", 2) > 0
