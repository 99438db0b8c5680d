"""Entries of the due index that a record has left behind, in a collection whose sweep looks after them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from wrasse.backends.directory.connect import Directory
from wrasse.clock import ManualClock
from wrasse.ports.records import Collection

TENDED = Collection("things/r", "things/due", "things/due/buckets.json", tended=True)


async def test_an_entry_left_behind_is_shown_until_it_is_removed(tmp_path: Path) -> None:
    clock = ManualClock()
    directory = await Directory.open(tmp_path, clock)
    records = directory.records(TENDED)
    due = clock.now()
    created = await records.create("a", b"1", due_at=due)
    assert created.version is not None
    await records.put("a", b"2", at=created.version, due_at=None, entry_stays=True)
    clock.advance(timedelta(hours=2))
    shown = [await records.due(None, None, 10) for _ in range(2)]
    for record in shown[1]:
        assert record.due_at is not None
        await records.leave(record.key, record.due_at)
    left = await records.due(None, None, 10)
    await directory.close()
    assert ([[r.value for r in page] for page in shown], list(left)) == ([[b"2"], [b"2"]], [])


@pytest.mark.parametrize("found", [None, b"", b"\xff\xfe", b"[" * 5_000, b"{}", b"[1]", b"null", b'["yesterday"]'])
async def test_a_bucket_that_the_list_has_lost_is_found_and_listed_again(tmp_path: Path, found: bytes | None) -> None:
    clock = ManualClock()
    directory = await Directory.open(tmp_path, clock)
    records = directory.records(TENDED)
    await records.create("a", b"1", due_at=clock.now())
    listed = tmp_path / "things/due/buckets.json"
    before = listed.read_bytes()
    if found is None:
        listed.unlink()
    else:
        listed.write_bytes(found)
    clock.advance(timedelta(hours=2))
    shown = await records.due(None, None, 10)
    await directory.close()
    assert ([record.key for record in shown], listed.read_bytes()) == (["a"], before)
