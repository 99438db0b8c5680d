"""The memory backend's sorted sets: always in order, from any key, either way, at a flat cost."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from wrasse.backends.memory.ordered import CHUNK, Ordered

keys = st.sets(st.integers(0, 30))
bounds = st.none() | st.integers(-1, 31)


def filled(numbers: set[int], chunk: int = CHUNK) -> Ordered[int]:
    order: Ordered[int] = Ordered(chunk)
    for number in numbers:
        order.add(number)
    return order


@given(keys, keys, bounds, st.integers(1, 4))
def test_walking_gives_what_was_added_and_not_removed_in_order(
    added: set[int], removed: set[int], after: int | None, chunk: int
) -> None:
    order = filled(added, chunk)
    for number in removed & added:
        order.remove(number)
    left = sorted(added - removed)
    assert [chunk[-1] for chunk in order._chunks] == order._tops
    assert list(order.walk(after)) == [n for n in left if after is None or n > after]
    assert list(order.walk(after, newest=True)) == [n for n in reversed(left) if after is None or n < after]
    assert list(order.walk_from(after or 0)) == [n for n in left if n >= (after or 0)]
    assert (len(order), order.first(), order.first(newest=True)) == (
        len(left),
        next(iter(left), None),
        next(reversed(left), None),
    )


def test_removing_what_is_not_there_is_a_mistake() -> None:
    order = filled({1, 3})
    with pytest.raises(AssertionError, match="not in the index"):
        order.remove(2)


def test_no_chunk_grows_beyond_twice_its_size() -> None:
    order = filled(set(range(10 * CHUNK)))
    assert max(len(chunk) for chunk in order._chunks) < 2 * CHUNK
