"""A directory through a crash at every step of every change: what it holds is the old or the new, and nothing leaks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from backends.directory.dying_files import DyingFiles, files_below
from conformance.object_stores import listed, whole
from faults import Crashed
from wrasse.backends.directory.connect import Directory
from wrasse.clock import ManualClock
from wrasse.ports.objects import ObjectDelete, Objects
from wrasse.ports.outcome import Outcome

STEPS_MAX = 200
Seen = tuple[bytes, Mapping[str, str]]
State = Mapping[str, Seen]


async def state_of(objects: Objects) -> dict[str, Seen]:
    """Everything the store holds; its listing, heads and bytes must agree."""
    state = {}
    for info in await listed(objects):
        head = await objects.head(info.key)
        assert head is not None
        assert head.info == info
        data = await whole(objects, info.key, at=info.version)
        assert len(data) == info.size
        state[info.key] = (data, dict(head.metadata))
    return state


async def version(objects: Objects, key: str) -> str:
    head = await objects.head(key)
    assert head is not None
    return head.info.version


@dataclass(frozen=True)
class Story:
    """What stands there before, what is done, and what stands there afterwards."""

    before: State
    act: Callable[[Objects], Awaitable[object]]
    after: State


async def streamed(*chunks: bytes):
    for chunk in chunks:
        yield chunk


async def replace(objects: Objects, key: str, data: bytes, metadata: Mapping[str, str]) -> None:
    await objects.replace(key, data, at=await version(objects, key), metadata=metadata)


async def delete(objects: Objects, *keys: str) -> None:
    await objects.delete([ObjectDelete(key, await version(objects, key)) for key in keys])


OLD, NEW, M1, M2 = b"old" * 9, b"new" * 7, {"m": "1"}, {"m": "2"}
STORIES = {
    "create": Story({}, lambda o: o.create("a/b/c", NEW), {"a/b/c": (NEW, {})}),
    "create with metadata": Story({}, lambda o: o.create("a/b", NEW, metadata=M1), {"a/b": (NEW, M1)}),
    "create from a stream": Story(
        {"x": (OLD, {})},
        lambda o: o.create("a", streamed(b"x" * 1_500_000, b"y")),
        {"x": (OLD, {}), "a": (b"x" * 1_500_000 + b"y", {})},
    ),
    "create in vain": Story({"a": (OLD, M1)}, lambda o: o.create("a", NEW, metadata=M2), {"a": (OLD, M1)}),
    "create below an object": Story(
        {"a": (OLD, M1)}, lambda o: o.create("a/b/c", NEW, metadata=M2), {"a": (OLD, M1), "a/b/c": (NEW, M2)}
    ),
    "create above an object": Story(
        {"a/b": (OLD, M1)}, lambda o: o.create("a", NEW, metadata=M2), {"a/b": (OLD, M1), "a": (NEW, M2)}
    ),
    "replace": Story({"a": (OLD, {})}, partial(replace, key="a", data=NEW, metadata={}), {"a": (NEW, {})}),
    "replace metadata": Story(
        {"a/b": (OLD, M1)}, partial(replace, key="a/b", data=NEW, metadata=M2), {"a/b": (NEW, M2)}
    ),
    "drop metadata": Story({"a": (OLD, M1)}, partial(replace, key="a", data=NEW, metadata={}), {"a": (NEW, {})}),
    "replace above an object": Story(
        {"a": (OLD, M1), "a/b": (OLD, {})},
        partial(replace, key="a", data=NEW, metadata=M2),
        {"a": (NEW, M2), "a/b": (OLD, {})},
    ),
    "delete": Story({"a/b/c": (OLD, M1), "a/x": (OLD, {})}, lambda o: delete(o, "a/b/c"), {"a/x": (OLD, {})}),
    "delete above an object": Story({"a": (OLD, M1), "a/b": (OLD, M1)}, lambda o: delete(o, "a"), {"a/b": (OLD, M1)}),
    "delete below an object": Story({"a": (OLD, M1), "a/b": (OLD, M1)}, lambda o: delete(o, "a/b"), {"a": (OLD, M1)}),
}


async def killed_at(step: int, story: Story, place: Path, clock: ManualClock, *, exchanges: bool) -> bool:
    """Tells the story up to this step; whether it got to its end."""
    opened: list[DyingFiles] = []

    def files(root: str) -> DyingFiles:
        opened.append(DyingFiles(root, exchanges=exchanges))
        return opened[-1]

    directory = await Directory.open(place, clock, files=files)
    for key, (data, metadata) in story.before.items():
        assert await directory.objects.create(key, data, metadata=metadata)
    opened[0].left = step
    try:
        await story.act(directory.objects)
    except Crashed:
        return False
    else:
        return True
    finally:
        await directory.close()


@pytest.mark.parametrize("exchanges", [True, False], ids=["exchange", "in turns"])
@pytest.mark.parametrize("name", STORIES)
async def test_a_crash_at_any_step_leaves_the_old_or_the_new(tmp_path: Path, name: str, exchanges: bool) -> None:
    story, seen = STORIES[name], set()
    for step in range(STEPS_MAX):
        clock, place = ManualClock(), tmp_path / str(step)
        finished = await killed_at(step, story, place, clock, exchanges=exchanges)
        directory = await Directory.open(place, clock)
        state = await state_of(directory.objects)
        await directory.close()
        assert state in (story.before, story.after), f"after step {step}"
        seen.add(state == story.after)
        if finished:
            break
    assert seen == ({True} if story.before == story.after else {False, True})
    assert finished


@pytest.mark.parametrize("exchanges", [True, False], ids=["exchange", "in turns"])
@pytest.mark.parametrize("name", STORIES)
async def test_what_a_crash_leaves_is_gone_an_hour_later(tmp_path: Path, name: str, exchanges: bool) -> None:
    story = STORIES[name]
    for step in range(STEPS_MAX):
        clock, place = ManualClock(), tmp_path / str(step)
        finished = await killed_at(step, story, place, clock, exchanges=exchanges)
        clock.advance(timedelta(hours=1, seconds=1))
        directory = await Directory.open(place, clock)
        state = await state_of(directory.objects)
        await directory.close()
        assert state in (story.before, story.after), f"after step {step}"
        # A file for each object and each metadata, and none besides.
        assert len(files_below(place)) == len(state) + sum(bool(metadata) for _, metadata in state.values()), step
        if finished:
            break
    assert finished


@pytest.mark.parametrize("name", STORIES)
async def test_after_a_crash_the_change_can_be_made_again(tmp_path: Path, name: str) -> None:
    story = STORIES[name]
    for step in range(STEPS_MAX):
        clock, place = ManualClock(), tmp_path / str(step)
        finished = await killed_at(step, story, place, clock, exchanges=True)
        directory = await Directory.open(place, clock)
        if await state_of(directory.objects) != story.after:
            await story.act(directory.objects)
        state = await state_of(directory.objects)
        everything = [ObjectDelete(key, await version(directory.objects, key)) for key in state]
        outcomes = await directory.objects.delete(everything)
        left = await listed(directory.objects)
        await directory.close()
        assert (state, set(outcomes), left) == (story.after, {Outcome.DONE}, []), f"after step {step}"
        if finished:
            break
    assert finished
