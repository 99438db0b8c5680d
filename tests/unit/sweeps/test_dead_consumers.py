"""Dead consumers: what one look decides. What backends do with it is in tests/conformance/test_dead_consumers.py."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.engine.sweep import Action, Keep
from wrasse.ports.groups import ConsumerState
from wrasse.ports.outcome import Outcome
from wrasse.streams.alerts import ALERTS, Alerts
from wrasse.streams.group_census import (
    IDLE_OBSERVATIONS,
    Census,
    ConsumerChanged,
    IdleObservation,
    IdleObservations,
    PlainSurvey,
    SilentConsumer,
    name_of,
)
from wrasse.streams.retention import RetentionTally
from wrasse.sweeps.dead_consumers import DeadConsumers

NOW = datetime(2026, 2, 14, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def sweep() -> DeadConsumers:
    clock = ManualClock()
    store = Memory(clock)
    alerts = Alerts(store.records(ALERTS), store.streams, clock, DeadConsumers.name)
    census = Census(
        PlainSurvey(store.streams), store.groups, alerts, IdleObservations(store.records(IDLE_OBSERVATIONS))
    )
    return DeadConsumers(census, store.groups, alerts, RetentionTally())


def consumer(*, foreign: bool, pending: int = 0, silent: timedelta = 60 * MINUTE, name: str = "c") -> ConsumerState:
    return ConsumerState("s", "g", name, pending, NOW - silent - MINUTE, NOW - silent, foreign=foreign)


def verdict(state: ConsumerState, first: IdleObservation | None = None) -> str:
    found = sweep().decide(SilentConsumer(state, first), NOW)
    return found.verb if isinstance(found, Action) else found.reason


def test_one_of_ours_is_retired_with_whatever_it_holds() -> None:
    assert verdict(consumer(foreign=False, pending=7)) == "retire"


def test_one_of_another_program_needs_two_looks_and_empty_hands() -> None:
    state = consumer(foreign=True)
    earlier, just_now = IdleObservation(NOW - 11 * MINUTE, state.seen_at), IdleObservation(NOW - MINUTE, state.seen_at)

    assert verdict(state) == "note"
    assert verdict(state, just_now) == "another program's, to be looked at once more"
    assert verdict(state, earlier) == "retire"
    assert verdict(consumer(foreign=True, pending=1), earlier) == "another program's, and it holds something"


def test_a_live_one_is_kept_whoever_it_is_of() -> None:
    for foreign in (True, False):
        alive = consumer(foreign=foreign, silent=-MINUTE)
        assert sweep().decide(SilentConsumer(alive, None), NOW) == Keep("alive")


def test_a_first_look_counts_only_while_the_consumer_did_nothing_since() -> None:
    look = IdleObservation(NOW, consumer(foreign=True).seen_at)

    assert look.fits(consumer(foreign=True))
    assert not look.fits(consumer(foreign=True, silent=30 * MINUTE))


async def test_a_look_is_known_to_every_process_until_it_is_forgotten() -> None:
    store, state = Memory(ManualClock()), consumer(foreign=True)
    await IdleObservations(store.records(IDLE_OBSERVATIONS)).note(state, NOW)
    other = IdleObservations(store.records(IDLE_OBSERVATIONS))
    known = await other.known()
    assert {name: (each.at, each.seen_at) for name, each in known.items()} == {name_of(state): (NOW, state.seen_at)}

    await other.forget(known[name_of(state)])

    assert not await other.known()


async def test_a_newer_look_takes_the_place_of_the_older_one() -> None:
    looks, state = IdleObservations(Memory(ManualClock()).records(IDLE_OBSERVATIONS)), consumer(foreign=True)
    await looks.note(state, NOW)
    (older,) = (await looks.known()).values()

    assert await looks.note(state, NOW) is Outcome.CONFLICT
    assert await looks.note(state, NOW + MINUTE, older) is Outcome.DONE
    assert [each.at for each in (await looks.known()).values()] == [NOW + MINUTE]


def test_a_look_that_is_out_of_date_is_forgotten() -> None:
    found = sweep().decide(ConsumerChanged(IdleObservation(NOW, NOW, ("s", "g", "c"))), NOW)

    assert isinstance(found, Action)
    assert (found.verb, found.suspect) == ("forget", "s g c")
