"""Which streams a consumer reads."""

from __future__ import annotations

from datetime import timedelta

import pytest

from wrasse.backends.memory.connect import Memory
from wrasse.clock import ManualClock
from wrasse.errors import UsageError
from wrasse.ports.streams import Draft
from wrasse.streams.membership import JoinOptions, Membership

EVERY = timedelta(seconds=1)


class Scene:
    """Streams in memory, and somebody who reads some of them."""

    def __init__(self, pattern: str, *, most: int = 10_000) -> None:
        self.clock = ManualClock()
        self.memory = Memory(self.clock)
        self.members = Membership(
            self.memory.streams,
            self.memory.groups,
            self.clock,
            pattern,
            "g",
            JoinOptions(discover=EVERY, streams_max=most),
        )

    async def append(self, *subjects: str) -> None:
        await self.memory.streams.append([Draft(subject, b"") for subject in subjects])

    async def lag(self, subject: str) -> int | None:
        state = await self.memory.streams.info(subject)
        assert state is not None
        return state.groups[0].lag


async def test_a_stream_that_was_there_is_read_from_where_the_group_was_to_begin() -> None:
    scene = Scene("a.*")
    await scene.append("a.x")
    await scene.members.refresh()
    assert (scene.members.subjects, await scene.lag("a.x")) == (("a.x",), 0)


async def test_a_stream_that_comes_later_is_read_from_its_first_entry() -> None:
    scene = Scene("a.*")
    await scene.members.refresh()
    await scene.append("a.x", "b.x")
    scene.clock.advance(EVERY)
    await scene.members.refresh()
    assert (scene.members.subjects, await scene.lag("a.x")) == (("a.x",), 1)


async def test_nobody_looks_more_often_than_told() -> None:
    scene = Scene("a.*")
    await scene.members.refresh()
    await scene.append("a.x")
    await scene.members.refresh()
    assert scene.members.subjects == ()


async def test_a_subject_is_joined_before_its_stream_is_there() -> None:
    scene = Scene("a.x")
    await scene.members.refresh()
    await scene.append("a.x")
    assert (scene.members.subjects, await scene.lag("a.x")) == (("a.x",), 1)


async def test_more_streams_than_can_be_read_are_refused_and_not_cut_off() -> None:
    scene = Scene("a.*", most=3)
    await scene.append("a.1", "a.2", "a.3")
    await scene.members.refresh()
    await scene.append("a.4")
    scene.clock.advance(EVERY)
    with pytest.raises(UsageError, match="more than 3 streams"):
        await scene.members.refresh()
