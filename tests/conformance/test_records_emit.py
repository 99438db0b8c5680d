"""Records that carry drafts for streams: the write and its entries are one step, or the drafts are refused."""

from __future__ import annotations

from typing import Protocol

import pytest

from conformance.stores import EMITTING_BACKENDS, RECORDS_BACKENDS, Store
from faults import LOST_REPLY, FaultyRecords, Network, Script
from wrasse.errors import StoreUnavailable, UsageError
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Records
from wrasse.ports.streams import START, Draft, Streams

LONG = pytest.param("redis-7.0", marks=pytest.mark.full)
emitting = pytest.mark.parametrize("open_store", [*EMITTING_BACKENDS, LONG], indirect=True)
SUBJECT = "gbe.tasks.mail.queue"


class WithStreams(Protocol):
    """A backend that has streams too."""

    @property
    def streams(self) -> Streams: ...


@pytest.fixture
def records(store: Store) -> Records:
    return store.records()


@pytest.fixture
def streams(store: Store) -> Streams:
    backend: WithStreams = store.backend  # type: ignore[assignment]
    return backend.streams


async def bodies(streams: Streams, subject: str = SUBJECT) -> list[bytes]:
    return [entry.body for entry in await streams.read(subject, START, 100)]


@emitting
async def test_a_new_record_and_its_entries_are_written_together(records: Records, streams: Streams) -> None:
    other = "gbe.events.system.error"

    await records.create("k", b"{}", emit=[Draft(SUBJECT, b"one"), Draft(other, b"two")])

    assert await records.get("k") is not None
    assert (await bodies(streams), await bodies(streams, other)) == ([b"one"], [b"two"])


@emitting
async def test_a_record_is_replaced_together_with_its_entries(records: Records, streams: Streams) -> None:
    created = await records.create("k", b"{}")
    assert created.version is not None

    await records.put("k", b'{"a":"b"}', at=created.version, emit=[Draft(SUBJECT, b"one")])

    assert await bodies(streams) == [b"one"]


@emitting
async def test_a_write_that_conflicts_emits_nothing(records: Records, streams: Streams) -> None:
    created = await records.create("k", b"{}")
    assert created.version is not None
    await records.put("k", b"{}", at=created.version)

    again = await records.create("k", b"{}", emit=[Draft(SUBJECT, b"one")])
    late = await records.put("k", b"{}", at=created.version, emit=[Draft(SUBJECT, b"two")])

    assert (again.outcome, late.outcome) == (Outcome.CONFLICT, Outcome.CONFLICT)
    assert await bodies(streams) == []


@emitting
async def test_a_retry_after_a_lost_reply_emits_nothing_twice(records: Records, streams: Streams) -> None:
    unlucky = FaultyRecords(records, Network(Script({0: LOST_REPLY})))
    with pytest.raises(StoreUnavailable):
        await unlucky.create("k", b"{}", nonce="n", emit=[Draft(SUBJECT, b"one")])

    again = await unlucky.create("k", b"{}", nonce="n", emit=[Draft(SUBJECT, b"one")])

    assert again.outcome is Outcome.DONE
    assert await bodies(streams) == [b"one"]


@emitting
async def test_an_emitted_draft_whose_key_is_known_makes_no_second_entry(records: Records, streams: Streams) -> None:
    await records.create("k", b"{}", emit=[Draft(SUBJECT, b"one", key="1")])

    await records.create("l", b"{}", emit=[Draft(SUBJECT, b"one", key="1")])

    assert await bodies(streams) == [b"one"]
    assert await records.get("l") is not None


@pytest.mark.parametrize(
    "open_store", [name for name in RECORDS_BACKENDS if name not in (*EMITTING_BACKENDS, "redis-6.2")], indirect=True
)
async def test_where_streams_are_apart_drafts_are_refused(records: Records) -> None:
    assert not records.emits

    with pytest.raises(UsageError, match="not one database"):
        await records.create("k", b"{}", emit=[Draft(SUBJECT, b"one")])

    assert await records.get("k") is None
