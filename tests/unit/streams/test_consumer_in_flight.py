"""What a consumer has been given and has not answered."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wrasse.clock import ManualClock
from wrasse.ports.groups import Delivery
from wrasse.ports.streams import Entry, EntryId
from wrasse.streams.consumer import InFlightDeliveries
from wrasse.streams.delivery import Received
from wrasse.streams.envelope import Envelope

TIMEOUT = timedelta(seconds=30)
CLOCK = ManualClock()


def delivery(seq: int, number: int = 1, subject: str = "s") -> Delivery:
    return Delivery(Entry(EntryId(1, seq), subject, b""), "g", "c", number, CLOCK.now() + TIMEOUT)


def flights(most: int = 3) -> tuple[InFlightDeliveries, ManualClock]:
    clock = ManualClock()
    return InFlightDeliveries(clock, most, TIMEOUT), clock


def test_what_was_handed_out_takes_room_until_it_is_answered() -> None:
    flying, clock = flights()
    flying.began([delivery(1), delivery(2)], clock.monotonic())
    before = flying.room()
    flying.answered(delivery(1))
    assert (before, flying.room()) == (1, 2)


def test_what_its_handler_left_unanswered_takes_room_until_its_deadline() -> None:
    flying, clock = flights()
    flying.began([delivery(1)], clock.monotonic())
    flying.over(delivery(1))
    clock.advance(TIMEOUT - timedelta(seconds=1))
    before = flying.room()
    clock.advance(timedelta(seconds=1))
    assert (before, flying.room()) == (2, 3)


def test_what_a_handler_still_has_takes_room_past_its_deadline() -> None:
    flying, clock = flights()
    flying.began([delivery(1)], clock.monotonic())
    clock.advance(TIMEOUT * 2)
    assert flying.room() == 2


def test_only_what_waits_or_runs_has_its_deadline_moved_on() -> None:
    flying, clock = flights()
    flying.began([delivery(1), delivery(2)], clock.monotonic())
    flying.over(delivery(1))
    assert flying.kept() == [delivery(2)]


def test_a_deadline_that_was_moved_on_counts_from_when_it_was_asked_for() -> None:
    flying, clock = flights()
    flying.began([delivery(1)], clock.monotonic())
    clock.advance(TIMEOUT / 2)
    flying.extended([delivery(1)], [True], clock.monotonic())
    flying.over(delivery(1))
    clock.advance(TIMEOUT / 2)
    before = flying.room()
    clock.advance(TIMEOUT / 2)
    assert (before, flying.room()) == (2, 3)


def test_what_is_somebody_else_s_leaves_and_its_handler_is_told() -> None:
    flying, clock = flights()
    flying.began([delivery(1)], clock.monotonic())
    received = Received(delivery(1), Envelope("", "s", 0, b""), None)  # type: ignore[arg-type]
    flying.handling(delivery(1), received)
    flying.extended([delivery(1)], [False], clock.monotonic())
    assert (received.lost, flying.room(), delivery(1) in flying) == (True, 3, False)


def test_two_deliveries_of_one_entry_are_two() -> None:
    flying, clock = flights()
    flying.began([delivery(1, 1), delivery(1, 2), delivery(1, 1, "other")], clock.monotonic())
    flying.answered(delivery(1, 1))
    assert (len(flying), delivery(1, 2) in flying) == (2, True)


@given(st.lists(st.tuples(st.sampled_from(["answered", "over"]), st.integers(0, 9)), max_size=20))
def test_room_is_never_more_than_the_limit(steps: list[tuple[str, int]]) -> None:
    flying, clock = flights(10)
    flying.began([delivery(n) for n in range(10)], clock.monotonic())
    for step, n in steps:
        getattr(flying, step)(delivery(n))
        clock.advance(timedelta(seconds=7))
    assert flying.room() == 10 - len(flying)


class Model(RuleBasedStateMachine):
    """Against a plain account of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.flying, self.clock = flights(5)
        self.running: set[int] = set()
        self.over: dict[int, float] = {}
        self.until: dict[int, float] = {}
        self.next = 0

    @precondition(lambda self: self.flying.room() > 0)
    @rule(count=st.integers(1, 5))
    def hand_out(self, count: int) -> None:
        new = [delivery(self.next + n) for n in range(min(count, self.flying.room()))]
        self.flying.began(new, self.clock.monotonic())
        for each in new:
            self.running.add(each.entry.id.seq)
            self.until[each.entry.id.seq] = self.clock.monotonic() + 30
        self.next += len(new)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.running)))
        self.flying.over(delivery(seq))
        self.running.discard(seq)
        self.over[seq] = self.until[seq]

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.running)))
        self.flying.answered(delivery(seq))
        self.running.discard(seq)

    @rule()
    def extend(self) -> None:
        kept = self.flying.kept()
        self.flying.extended(kept, [True] * len(kept), self.clock.monotonic())
        for each in kept:
            self.until[each.entry.id.seq] = self.clock.monotonic() + 30

    @rule(seconds=st.integers(0, 40))
    def wait(self, seconds: int) -> None:
        self.clock.advance(timedelta(seconds=seconds))

    @invariant()
    def room_is_what_is_left(self) -> None:
        now = self.clock.monotonic()
        held = len(self.running) + sum(until > now for until in self.over.values())
        assert self.flying.room() == 5 - held


TestModel = Model.TestCase
