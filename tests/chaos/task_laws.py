"""What must be so of tasks after any storm: by the side log, by their records, and by what their streams told."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import msgspec

from chaos.storm_laws import Ending, ending_of, none_finished_twice, nothing_lost
from chaos.task_scene import RETRIES, TYPE, TaskStore
from processes.kill_scene import KillScene, eventually
from wrasse.clock import SystemClock
from wrasse.jobs.stream_tasks.fields import group_of, queue_of, terminal_of
from wrasse.ports.jobs import Reason
from wrasse.ports.streams import START
from wrasse.runtime.stream_tasks import EnvelopeCodec

PAGE = 1_000


class End(msgspec.Struct, frozen=True):
    """What an event of the terminal stream tells."""

    task_id: str
    completed_at: int = 0
    state: str = "completed"


async def dead_by_the_budget_alone(ending: Ending) -> None:
    """A task is dead only after as many runs as its type allows, each ended by the loss of its worker."""
    starts = Counter(id for id, _ in ending.facts["start"])
    assert (starts["poison"] == 0) == ("poison" not in [info.id for info in ending.dead]), "the poison is not dead"
    for info in ending.dead:
        deaths = [e for e in (await ending.scene.record(info.id)).history if e.reason is Reason.WORKER_DIED]
        assert (info.reason, info.rescues, len(deaths)) == (Reason.WORKER_DIED, RETRIES, RETRIES + 1)
        assert 1 <= starts[info.id] <= RETRIES + 1, "failed without having run, or ran too often"


async def told_of_every_end(ending: Ending, store: TaskStore) -> int:
    """The terminal stream tells how each task ended, and nothing else: once where a state and its event are one step,
    elsewhere at least once. Gives how many it told more than once."""
    ends = [end async for end in _ends(store)]
    told = Counter(end.task_id for end in ends)
    for how, infos in (("completed", ending.done), ("failed", ending.dead)):
        assert {end.task_id for end in ends if end.state == how} == {info.id for info in infos}, f"{how}: told wrong"
    again = sum(count - 1 for count in told.values())
    assert not again or not store.jobs._store.emits, "told twice"
    return again


async def _ends(store: TaskStore) -> AsyncIterator[End]:
    codec, after, streams = EnvelopeCodec(SystemClock()), START, store.backend.streams
    state = await streams.info(terminal_of(TYPE))
    assert state is not None
    assert state.last is not None
    while after < state.last:  # a copy that answers may be behind
        for entry in await streams.read(terminal_of(TYPE), after, PAGE):
            yield msgspec.json.decode(codec.open(entry) or b"", type=End)
            after = entry.id


async def nothing_trimmed_while_needed(ending: Ending, store: TaskStore) -> None:
    """No waiting task was found without its entry, and no group lost one that it held."""
    assert ending.facts.get("untold", []) == [], "a waiting task had no entry"

    async def owes_nothing() -> bool:  # a task is finished a step before its entry is acked
        state = await store.backend.streams.info(queue_of(TYPE))
        assert state is not None
        (group,) = [each for each in state.groups if each.name == group_of(TYPE)]
        assert group.lost == 0, "its group lost an entry"
        return (group.pending, group.delivered) == (0, state.last)

    await eventually(owes_nothing)


async def check_tasks(scene: KillScene, store: TaskStore) -> tuple[Ending, int]:
    """All of them."""
    ending = await ending_of(scene)
    await nothing_trimmed_while_needed(ending, store)
    nothing_lost(ending)
    await none_finished_twice(ending)
    await dead_by_the_budget_alone(ending)
    return ending, await told_of_every_end(ending, store)
