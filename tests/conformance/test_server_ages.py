"""Server ages: a server removes by age only streams without a group, and tells what it does."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.stores import Store
from conformance.upkeep import Upkeep
from wrasse.ports.groups import StartAt
from wrasse.ports.outcome import Outcome

pytestmark = pytest.mark.parametrize("open_store", ["nats"], indirect=True)

S, DAY = "gbe.events.audit.change", timedelta(days=1)


@pytest.fixture
async def upkeep(store: Store) -> Upkeep:
    made = Upkeep(store)
    await made.append(S, b"1")
    return made


async def keep_for(upkeep: Upkeep, age: timedelta | None, subject: str = S) -> Outcome:
    assert upkeep.store.backend.ages is not None
    return await upkeep.streams.keep_for(subject, age)


async def age(upkeep: Upkeep) -> timedelta | None:
    state = await upkeep.streams.info(S)
    assert state is not None
    assert state.server_age is not None
    assert state.server_age.ours
    return state.server_age.age


async def test_an_age_is_told_as_it_was_set_and_ended(upkeep: Upkeep) -> None:
    assert await age(upkeep) is None
    assert await keep_for(upkeep, DAY) is Outcome.DONE
    assert await age(upkeep) == DAY
    assert await keep_for(upkeep, None) is Outcome.DONE
    assert await age(upkeep) is None


async def test_an_age_that_is_there_already_is_not_set_again(upkeep: Upkeep) -> None:
    await keep_for(upkeep, DAY)

    assert await keep_for(upkeep, DAY) is Outcome.CONFLICT


async def test_an_age_is_never_shorter_than_the_server_accepts(upkeep: Upkeep) -> None:
    state = await upkeep.streams.info(S)

    await keep_for(upkeep, timedelta(seconds=1))

    assert state is not None
    assert state.server_age is not None
    assert await age(upkeep) == state.server_age.least


async def test_a_stream_with_a_group_gets_no_age_and_one_that_gets_a_group_has_none(upkeep: Upkeep) -> None:
    await keep_for(upkeep, DAY)

    await upkeep.groups.join(S, "g", StartAt(first=True))

    assert await age(upkeep) is None
    assert await keep_for(upkeep, DAY) is Outcome.CONFLICT
    assert await age(upkeep) is None


async def test_a_stream_that_is_not_there_gets_no_age(upkeep: Upkeep) -> None:
    assert await keep_for(upkeep, DAY, "gbe.nothing") is Outcome.CONFLICT
