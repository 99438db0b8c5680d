"""The search for strays: so many scans, within so much time, with uneven pauses."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given, strategies as st

from wrasse.clock import ManualClock
from wrasse.ports.inconsistency import StrayScan
from wrasse.sweeps.stuck_jobs import StraySearch

NOW = timedelta(0)
SECOND = timedelta(seconds=1)


class Field:
    """A round of so many scans, each of which takes this long."""

    def __init__(self, clock: ManualClock, scans: int, takes: timedelta = NOW) -> None:
        self._clock, self._scans, self._takes = clock, scans, takes
        self.asked: list[tuple[str | None, int, timedelta, bool]] = []

    async def scan(self, after: str | None, limit: int, *, heartbeat_timeout: timedelta, dry: bool) -> StrayScan:
        self.asked.append((after, limit, heartbeat_timeout, dry))
        self._clock.advance(self._takes)
        number = len(self.asked)
        return StrayScan(3, 2, 1, str(number), ended=number >= self._scans)


async def test_a_search_scans_until_the_round_is_over() -> None:
    clock = ManualClock()
    field = Field(clock, 3)
    seen = await StraySearch(field, clock, limit=7, pause=NOW).search(SECOND, dry=False)
    assert (seen, field.asked) == (6, [(after, 7, SECOND, False) for after in (None, "1", "2")])


async def test_a_search_stops_when_its_time_is_over() -> None:
    clock = ManualClock()
    field = Field(clock, 100, takes=SECOND)
    await StraySearch(field, clock, runtime_max=3 * SECOND, pause=NOW).search(SECOND, dry=True)
    assert len(field.asked) == 3


@given(chance=st.floats(0, 1), jitter=st.floats(0, 0.99))
def test_pauses_stay_within_their_jitter(chance: float, jitter: float) -> None:
    clock = ManualClock()
    pause = StraySearch(Field(clock, 1), clock, pause=SECOND, pause_jitter=jitter, chance=lambda: chance).next_pause()
    bit = timedelta(microseconds=1)  # of rounding
    assert SECOND * (1 - jitter) - bit <= pause <= SECOND * (1 + jitter) + bit


def test_pauses_reach_both_ends_of_their_jitter() -> None:
    clock = ManualClock()
    ends = [
        StraySearch(Field(clock, 1), clock, pause=SECOND, chance=lambda n=n: n).next_pause() for n in (0.0, 0.5, 1.0)
    ]
    assert ends == [SECOND / 2, SECOND, SECOND * 1.5]
