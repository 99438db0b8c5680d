"""The board that a worker shares with its heartbeat process."""

from __future__ import annotations

import os
import threading
from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from wrasse.jobs.worker.heartbeat_table import (
    ChildFailed,
    ClaimEnded,
    HeartbeatFailed,
    HeartbeatMessage,
    HeartbeatOrders,
    HeartbeatSent,
    HeartbeatTable,
    TableEntry,
    encode_message,
    needs_heartbeat,
    parse_message,
)
from wrasse.ports.jobs import ID_BYTES_MAX, Claim, WorkerInfo

HEARTBEAT_TIMEOUT = timedelta(seconds=30)


@pytest.fixture
def table() -> HeartbeatTable:
    return HeartbeatTable.make(8)


def test_what_is_posted_is_read_by_whoever_has_the_descriptor(table: HeartbeatTable) -> None:
    claim = Claim("ö" * (ID_BYTES_MAX // 2), 2**62, "f" * 32)
    table.post(claim, 12.5, 3.25)
    other = HeartbeatTable.attach(os.dup(table.fd))
    [posted] = other.read()
    assert (posted.claim, posted.deadline, posted.since) == (claim, 12.5, 3.25)


def test_what_is_taken_down_is_read_no_more(table: HeartbeatTable) -> None:
    kept, cleared = (table.post(Claim(id, 1, "n"), 1.0, 0.0) for id in ("kept", "cleared"))
    table.clear(cleared)
    assert [posted.place for posted in table.read()] == [kept]


def test_two_postings_in_one_place_are_told_apart(table: HeartbeatTable) -> None:
    place = table.post(Claim("a", 1, "n"), 1.0, 0.0)
    first = table.word(place)
    table.clear(place)
    assert table.post(Claim("a", 1, "n"), 1.0, 0.0) == place
    assert table.word(place) != first


def test_a_deadline_can_be_moved_while_it_stands(table: HeartbeatTable) -> None:
    place = table.post(Claim("a", 1, "n"), 1.0, 0.0)
    table.extend(place, 99.0)
    assert [posted.deadline for posted in table.read()] == [99.0]


def test_a_full_board_has_no_room_and_gets_it_back(table: HeartbeatTable) -> None:
    places = [table.post(Claim(str(number), 1, "n"), 1.0, 0.0) for number in range(8)]
    assert table.free == 0
    table.clear(places[3])
    assert table.free == 1


def test_a_posting_that_is_being_written_is_not_read(table: HeartbeatTable) -> None:
    place = table.post(Claim("a", 1, "n"), 1.0, 0.0)
    word = table.word(place)
    table._words[64 // 8 + place * 64] = word & ~3 | 1
    assert table.read() == []


def test_a_posting_whose_bytes_do_not_fit_its_checksum_is_not_read(table: HeartbeatTable) -> None:
    table.post(Claim("abcdef", 1, "n"), 1.0, 0.0)
    table._map[:] = table._map[:].replace(b"abcdef", b"abcxef")
    assert table.read() == []


def test_a_reader_never_sees_half_of_one_hold_and_half_of_another() -> None:
    table = HeartbeatTable.make(1)
    reader = HeartbeatTable.attach(os.dup(table.fd))
    done = threading.Event()

    def write() -> None:
        for number in range(20_000):
            place = table.post(Claim(f"{number}" * 20, number, f"nonce {number}"), float(number), 0.0)
            table.clear(place)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    torn = []
    while not done.is_set():
        for posted in reader.read():
            number = posted.claim.token
            if posted.claim != Claim(f"{number}" * 20, number, f"nonce {number}"):
                torn.append(posted)
    writer.join()
    assert torn == []


@given(
    since=st.floats(0, 100),
    deadline=st.floats(0, 200),
    now=st.floats(0, 300),
)
def test_a_hold_gets_no_beat_once_its_time_is_up(since: float, deadline: float, now: float) -> None:
    posted = TableEntry(0, 2, Claim("a", 1, "n"), deadline, since)
    beaten = bool(needs_heartbeat([posted], HEARTBEAT_TIMEOUT, now))
    assert beaten <= (now < deadline)
    # What is more than a tenth of a heartbeat timeout old and has time left is never passed over.
    assert beaten or now >= deadline or now - since < 3.0


@pytest.mark.parametrize(
    "word", [HeartbeatSent(), HeartbeatFailed(), ClaimEnded(7, 2**40), ChildFailed("no\nroom", "make\nroom")]
)
def test_a_word_is_read_as_it_was_spelt(word: HeartbeatMessage) -> None:
    line = encode_message(word)
    assert parse_message(line) == word
    assert line.count(b"\n") == 1


def test_orders_arrive_as_they_were_given() -> None:
    orders = HeartbeatOrders("sqlite:a b.db", WorkerInfo("w", "host", 7, 16), timedelta(milliseconds=1500), 9)
    assert HeartbeatOrders.of(orders.line()) == orders
