"""Ids: sorted by time, and never equal or out of order within one process, whatever the wall clock does."""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import reduce

import pytest
from hypothesis import given, strategies as st

from wrasse.clock import ManualClock, SystemClock, to_micros
from wrasse.ids import Ids

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
CROCKFORD = set(ALPHABET)


def test_an_id_has_26_characters_of_crockfords_alphabet() -> None:
    id = Ids(SystemClock()).new()
    assert (len(id), set(id) <= CROCKFORD, id[0] <= "7") == (26, True, True)


@given(st.lists(st.integers(-5_000, 5_000), max_size=50))
def test_ids_grow_however_the_wall_clock_steps(steps: list[int]) -> None:
    clock = ManualClock()
    ids = Ids(clock)
    made = [ids.new()]
    for step in steps:
        clock.step(timedelta(milliseconds=step))
        made.append(ids.new())
    assert made == sorted(set(made))


def test_ids_of_one_millisecond_differ_and_grow() -> None:
    ids = Ids(ManualClock())
    made = [ids.new() for _ in range(1_000)]
    assert made == sorted(set(made))


@pytest.mark.parametrize("bits", [5, 10, 20, 30, 40, 79])
def test_ids_count_up_across_every_carry(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.randbits", lambda wanted: (1 << bits) - 4)
    ids = Ids(ManualClock())
    made = [ids.new() for _ in range(10)]
    numbers = [reduce(lambda number, letter: number * 32 + ALPHABET.index(letter), id, 0) for id in made]
    assert numbers == [*range(numbers[0], numbers[0] + 10)]


def test_a_later_id_of_another_process_sorts_later() -> None:
    clock = ManualClock()
    earlier = Ids(clock).new()
    clock.advance(timedelta(milliseconds=1))
    assert earlier < Ids(clock).new()


def test_two_processes_do_not_make_the_same_id_at_the_same_time() -> None:
    clock = ManualClock()
    assert len({Ids(clock).new() for _ in range(1_000)}) == 1_000


def test_the_first_ten_characters_are_the_milliseconds_since_1970() -> None:
    clock = ManualClock()
    clock.advance(timedelta(milliseconds=1))
    digits = ["0123456789ABCDEFGHJKMNPQRSTVWXYZ".index(letter) for letter in Ids(clock).new()[:10]]
    assert reduce(lambda number, digit: number * 32 + digit, digits) == to_micros(clock.now()) // 1_000


def test_threads_share_ids_without_repeating_one() -> None:
    ids = Ids(SystemClock())
    made: list[list[str]] = [[] for _ in range(4)]

    def make(into: list[str]) -> None:
        into.extend(ids.new() for _ in range(500))

    threads = [threading.Thread(target=make, args=[into]) for into in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id for into in made for id in into}) == 2_000
    assert all(into == sorted(into) for into in made)
