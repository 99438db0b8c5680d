"""Records in a directory through a crash at every step: old or new, always indexed, and asking again is safe."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backends.directory.dying_files import DyingFiles, files_below
from faults import Crashed
from wrasse.backends.directory.connect import Directory
from wrasse.clock import ManualClock
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection, Record, Records, Written

STEPS_MAX = 200
HOUR = timedelta(hours=1)
THINGS = Collection(data="ns/meta", index="ns/.lease-index", buckets="ns/.lease-index/buckets.json")
KEY = "orders/42"
LONG = "%" * 250
Value = tuple[bytes, datetime | None]


@dataclass(frozen=True)
class Story:
    """What stands there before, the one write that is made, and what stands there afterwards."""

    key: str
    before: timedelta | bool | None  # due in this long; None: never; False: there is no record
    act: Callable[[Records, str, datetime], Coroutine[Any, Any, Written]]
    after: timedelta | bool | None


def create(key: str, due: timedelta | None) -> Callable[[Records, str, datetime], Coroutine[Any, Any, Written]]:
    return lambda records, at, now: records.create(key, b"new", due_at=now + due if due else None, nonce="n")


def put(key: str, due: timedelta | None) -> Callable[[Records, str, datetime], Coroutine[Any, Any, Written]]:
    return lambda records, at, now: records.put(key, b"new", at=at, due_at=now + due if due else None, nonce="n")


def delete(key: str) -> Callable[[Records, str, datetime], Coroutine[Any, Any, Written]]:
    return lambda records, at, now: records.delete(key, at=at, nonce="n")


STORIES = {
    "create": Story(KEY, False, create(KEY, None), None),
    "create that is due": Story(KEY, False, create(KEY, HOUR), HOUR),
    "create with a long name": Story(LONG, False, create(LONG, HOUR), HOUR),
    "put": Story(KEY, None, put(KEY, None), None),
    "put that becomes due": Story(KEY, None, put(KEY, HOUR), HOUR),
    "put that is due later": Story(KEY, HOUR, put(KEY, 3 * HOUR), 3 * HOUR),
    "put that is due at the same time": Story(KEY, HOUR, put(KEY, HOUR), HOUR),
    "put that is no longer due": Story(KEY, HOUR, put(KEY, None), None),
    "delete": Story(KEY, None, delete(KEY), False),
    "delete what is due": Story(KEY, HOUR, delete(KEY), False),
    "delete a long name": Story(LONG, HOUR, delete(LONG), False),
}


def expected(story: Story, now: datetime, *, new: bool) -> Value | None:
    due = story.after if new else story.before
    if due is False:
        return None
    return b"new" if new else b"old", now + due if isinstance(due, timedelta) else None


async def prepared(story: Story, place: Path, clock: ManualClock) -> tuple[Directory, DyingFiles, str]:
    opened: list[DyingFiles] = []

    def files(root: str) -> DyingFiles:
        opened.append(DyingFiles(root))
        return opened[-1]

    directory = await Directory.open(place, clock, files=files)
    records, version = directory.records(THINGS), "none"
    if story.before is not False:
        due_at = clock.now() + story.before if isinstance(story.before, timedelta) else None
        written = await records.create(story.key, b"old", due_at=due_at)
        assert written.version is not None
        version = written.version
    return directory, opened[0], version


async def look(records: Records, key: str, now: datetime) -> Value | None:
    """The record; page, get and the due index must agree about it."""
    record = await records.get(key)
    assert list(await records.page("", None, 10)) == ([] if record is None else [record])
    due = list(await records.due(now + 100 * HOUR, None, 10))
    assert due == ([record] if record is not None and record.due_at is not None else [])
    return None if record is None else (record.value, record.due_at)


@pytest.mark.parametrize("name", STORIES)
async def test_a_crash_at_any_step_leaves_the_old_or_the_new_and_nothing_unindexed(tmp_path: Path, name: str) -> None:
    story, seen, finished = STORIES[name], set(), False
    for step in range(STEPS_MAX):
        clock, place = ManualClock(), tmp_path / str(step)
        now = clock.now()
        directory, files, version = await prepared(story, place, clock)
        files.left = step
        try:
            await story.act(directory.records(THINGS), version, now)
            finished = True
        except Crashed:
            finished = False
        await directory.close()
        again = await Directory.open(place, clock)
        found = await look(again.records(THINGS), story.key, now)
        await again.close()
        assert found in (expected(story, now, new=False), expected(story, now, new=True)), f"after step {step}"
        seen.add(found == expected(story, now, new=True))
        if finished:
            break
    assert (finished, seen) == (True, {False, True})


@pytest.mark.parametrize("name", STORIES)
async def test_a_write_asked_again_after_a_crash_is_made_once(tmp_path: Path, name: str) -> None:
    story, finished = STORIES[name], False
    for step in range(STEPS_MAX):
        clock, place = ManualClock(), tmp_path / str(step)
        now = clock.now()
        directory, files, version = await prepared(story, place, clock)
        files.left = step
        try:
            await story.act(directory.records(THINGS), version, now)
            finished = True
        except Crashed:
            finished = False
        await directory.close()
        again = await Directory.open(place, clock)
        records = again.records(THINGS)
        between = await records.get(story.key)
        written = await story.act(records, version, now)
        found = await look(records, story.key, now)
        record = await records.get(story.key)
        await again.close()
        assert (written.outcome, found) == (Outcome.DONE, expected(story, now, new=True)), f"after step {step}"
        if between is not None and between.value == b"new":
            assert record == between, "the write was made before, and is not made again"
        if finished:
            break
    assert finished


@pytest.mark.parametrize("name", STORIES)
async def test_what_a_crash_leaves_in_the_index_goes_when_its_bucket_is_over(tmp_path: Path, name: str) -> None:
    story, finished = STORIES[name], False
    for step in range(STEPS_MAX):
        clock, place = ManualClock(), tmp_path / str(step)
        directory, files, version = await prepared(story, place, clock)
        files.left = step
        try:
            await story.act(directory.records(THINGS), version, clock.now())
            finished = True
        except Crashed:
            finished = False
        await directory.close()
        clock.advance(10 * HOUR)
        again = await Directory.open(place, clock)
        due = await again.records(THINGS).due(None, None, 10)
        for record in due:
            await again.records(THINGS).delete(record.key, at=record.version)
        await again.records(THINGS).due(None, None, 10)
        left = list(await again.records(THINGS).page("", None, 10))
        await again.close()
        buckets = place / "ns/.lease-index/buckets.json"
        names = {"ns/.lease-index/buckets.json"} if buckets.exists() else set()
        assert files_below(place) == names | {_file(record) for record in left}, f"after step {step}"
        assert not buckets.exists() or json.loads(buckets.read_text()) == []
        assert list((place / "ns/.lease-index").glob("2*")) == []
        if finished:
            break
    assert finished


async def test_a_crash_while_a_bucket_is_retired_loses_no_bucket(tmp_path: Path) -> None:
    finished, step = False, 0
    while not finished:
        clock, place = ManualClock(), tmp_path / str(step)
        story = STORIES["create that is due"]
        directory, files, _ = await prepared(story, place, clock)
        records = directory.records(THINGS)
        for key, hours in (("gone", 1), ("kept", 2)):
            await records.create(key, b"", due_at=clock.now() + hours * HOUR)
        gone = await records.get("gone")
        assert gone is not None
        await records.delete("gone", at=gone.version)
        later = clock.now() + 10 * HOUR
        files.left = step
        try:
            await records.due(later, None, 10)
            finished = True
        except Crashed:
            finished = False
        await directory.close()
        again = await Directory.open(place, clock)
        records = again.records(THINGS)
        await records.create("gone", b"again", due_at=clock.now() + HOUR)
        due = [record.key for record in await records.due(later, None, 10)]
        await again.close()
        assert due == ["gone", "kept"], f"after step {step}"
        step += 1
    assert step > 2


def _file(record: Record) -> str:
    return f"ns/meta/{record.key.replace('/', '%2F')}.json"
