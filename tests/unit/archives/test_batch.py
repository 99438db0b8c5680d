"""When a batch is complete, and what its archive holds."""

from __future__ import annotations

import gzip
import hashlib
from datetime import timedelta

import pytest

from wrasse.archives.batch import ArchiveBatch, BatchLimits
from wrasse.archives.codec import line_of
from wrasse.ports.streams import Entry, EntryChunk, EntryId, chunk_of

from .scene import CHANGE, envelope

NOON = 1_771_070_400_000
DAY = 86_400_000


def entries(count: int, ms: int = NOON, seq: int = 1) -> list[Entry]:
    return [Entry(EntryId(ms, seq + number), CHANGE, envelope()) for number in range(count)]


def row(entries: list[Entry]) -> EntryChunk:
    return chunk_of(CHANGE, entries, EntryId(NOON, 0).at, more=False)


def test_a_batch_is_complete_at_its_size() -> None:
    batch = ArchiveBatch(BatchLimits(size=3))
    assert (batch.extend(row(entries(5))), batch.complete, batch.count) == (3, True, 3)


def test_a_batch_is_complete_before_it_has_more_bytes_than_it_may() -> None:
    line = len(line_of(entries(1)[0]))
    batch = ArchiveBatch(BatchLimits(bytes=3 * line - 1))
    assert (batch.extend(row(entries(5))), batch.complete, batch.raw) == (2, True, 2 * line)


def test_an_entry_larger_than_a_batch_is_one_of_its_own() -> None:
    batch = ArchiveBatch(BatchLimits(bytes=10))
    assert (batch.extend(row(entries(2))), batch.complete) == (1, True)


def test_a_batch_ends_at_midnight_by_the_time_of_its_entries() -> None:
    batch = ArchiveBatch(BatchLimits())
    assert batch.extend(row(entries(2) + entries(2, NOON + DAY, 9))) == 2
    assert batch.complete


@pytest.mark.parametrize(("seconds", "due"), [(59, False), (60, True)])
def test_a_batch_is_due_after_its_timeout_from_its_first_entry(seconds: int, due: bool) -> None:
    batch = ArchiveBatch(BatchLimits(timeout=timedelta(seconds=60)))
    batch.extend(row(entries(1) + entries(1, NOON + 50_000, 9)))
    assert batch.due(EntryId(NOON, 0).at + timedelta(seconds=seconds)) is due


def test_a_batch_of_yesterday_is_due() -> None:
    batch = ArchiveBatch(BatchLimits(timeout=timedelta(days=30)))
    batch.extend(row(entries(1)))
    assert batch.due(EntryId(NOON + DAY, 0).at)


def test_an_empty_batch_is_never_due() -> None:
    assert not ArchiveBatch(BatchLimits()).due(EntryId(NOON, 0).at)


@pytest.mark.parametrize("count", [3, 3_000])
def test_an_archive_is_the_lines_in_order_and_says_what_it_holds(count: int) -> None:
    batch, wanted = ArchiveBatch(BatchLimits(size=10_000)), entries(count)
    batch.extend(row(wanted[:1]))
    batch.extend(row(wanted[1:]))
    sealed = batch.seal()
    raw = gzip.decompress(sealed.data)
    assert raw == b"".join(map(line_of, wanted))
    assert (sealed.first, sealed.last, sealed.count, sealed.marked) == (wanted[0].id, wanted[-1].id, count, 0)
    assert (sealed.raw_bytes, sealed.sha256) == (len(raw), hashlib.sha256(raw).hexdigest())


def test_a_large_batch_is_held_compressed() -> None:
    batch = ArchiveBatch(BatchLimits(size=100_000))
    batch.extend(row(entries(10_000)))
    batch.compress(batch.piece())
    assert 0 < batch.held < batch.raw / 2
