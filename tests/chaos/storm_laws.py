"""What must be so after any storm, by the side log, by the port, and by a look at the keys themselves."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import msgspec
import redis

from processes.kill_scene import KillScene
from wrasse.backends.redis.keys import RedisKeys
from wrasse.backends.redis.options import RedisOptions
from wrasse.ports.jobs import JobInfo, JobState, Reason

RESCUES_MAX = 3


class Ending:
    """How it ended: the side log by kind of line, and every job that is done or dead."""

    def __init__(self, scene: KillScene, done: list[JobInfo], dead: list[JobInfo]) -> None:
        self.scene, self.done, self.dead = scene, done, dead
        self.facts: dict[str, list[tuple[object, ...]]] = {}
        for line in scene.log():
            self.facts.setdefault(line.what, []).append(line.facts)

    @property
    def again(self) -> int:
        """How often a handler was started for a job that had been started before."""
        return sum(count - 1 for count in Counter(id for id, _ in self.facts.get("start", ())).values())

    @property
    def twice(self) -> int:
        """How often a handler ran to its end that had done so before."""
        return sum(count - 1 for count in Counter(id for id, _ in self.facts.get("end", ())).values())


async def ending_of(scene: KillScene) -> Ending:
    return Ending(scene, await scene.everything(JobState.DONE), await scene.everything(JobState.DEAD))


def nothing_lost(ending: Ending) -> None:
    """Every job that a producer was told is stored, is there, once; and nothing is that nobody put."""
    stored = Counter(info.id for info in ending.done + ending.dead)
    told = {id for ids in ending.facts.get("put", ()) for id in ids}
    meant = {id for ids in ending.facts.get("will", ()) for id in ids} | {"poison"}
    assert told - set(stored) == set(), "lost"
    assert [id for id, count in stored.items() if count > 1] == [], "there twice"
    assert set(stored) - meant == set(), "from nowhere"


async def none_finished_twice(ending: Ending) -> None:
    """A job's result names the token that finished it; no handler ever started under a greater one."""
    started: dict[object, int] = {}
    for id, token in ending.facts["start"]:
        assert isinstance(token, int)
        started[id] = max(token, started.get(id, 0))
    for first in range(0, len(ending.done), 100):
        some = ending.done[first : first + 100]
        for record in await asyncio.gather(*(ending.scene.record(info.id) for info in some)):
            assert record.result is not None
            assert msgspec.json.decode(record.result)["token"] == started[record.info.id], "finished by the wrong one"


async def dead_by_the_budget_alone(ending: Ending) -> None:
    """The poison is dead within its budget; another job only if so many workers were really lost with it."""
    starts = [id for id, _ in ending.facts["start"]].count("poison")
    assert (starts == 0) == ("poison" not in [info.id for info in ending.dead]), "the poison is not dead"
    assert starts <= RESCUES_MAX + 1, "beyond its budget"
    for info in ending.dead:
        deaths = [e for e in (await ending.scene.record(info.id)).history if e.reason is Reason.WORKER_DIED]
        assert (info.reason, info.rescues, len(deaths)) == (Reason.WORKER_DIED, RESCUES_MAX + 1, RESCUES_MAX + 1)


def keys_agree(ending: Ending, port: int) -> None:
    """The lists that others see and all that is kept beside them tell the same story, and nothing else is there."""
    options = RedisOptions.of(ending.scene.url)
    keys, done, dead = RedisKeys(options), len(ending.done), len(ending.dead)
    with redis.Redis(port=port) as client:
        names = {name.decode() for name in client.scan_iter(f"{keys.root}:*", 1_000)}
        counts = {name: int(count) for name, count in client.hgetall(keys.counts).items()}
        completed = Counter(_id(raw) for raw in client.lrange(keys.completed, 0, -1))
        dead_letters = [_id(raw) for raw in client.lrange(keys.dead_letter, 0, -1)]
        takes = {*client.zrange(keys.done, 0, -1), *client.zrange(keys.dead, 0, -1)}
        finished = set(client.hkeys(keys.finished))
        where = client.hgetall(keys.where)
        given = {id.decode() for id in client.hkeys(keys.ids)}
    left = keys.queue("low")
    gone = {left.list, left.delayed, keys.held, keys.holds, keys.uniques, keys.groups}
    assert names & gone == set(), "something waits or is held"
    assert [name for name in names if name.endswith(":processing")] == [], "a worker's list is left"
    assert completed == Counter(info.id for info in ending.done), "the completed list is wrong"
    assert sorted(dead_letters) == sorted(info.id for info in ending.dead), "the dead letter list is wrong"
    assert (takes, set(where.values()), len(where)) == (finished, finished, done + dead), "an index is wrong"
    assert {id.decode() for id in where} >= given, "an id is remembered for nothing"
    assert {name: count for name, count in counts.items() if count} == _counted(done, dead), "a counter is wrong"


def _id(raw: bytes) -> str:
    return str(json.loads(raw)["id"]) if raw else ""


def _counted(done: int, dead: int) -> dict[bytes, int]:
    return {name: count for name, count in ((b"done:low", done), (b"dead:low", dead)) if count}


async def no_damage(ending: Ending) -> None:
    """What `wrasse jobs fsck` looks for is not there."""
    assert ending.scene.store.fsck is not None
    found = await ending.scene.store.fsck.check(repair=False, heartbeat_timeout=ending.scene.one_silence())
    assert [(each.kind, each.count) for each in found if each.count] == [], "damage"


async def check_all(scene: KillScene, port: int) -> Ending:
    """All of them, with a look at the server of this port."""
    ending = await ending_of(scene)
    nothing_lost(ending)
    await none_finished_twice(ending)
    await dead_by_the_budget_alone(ending)
    keys_agree(ending, port)
    await no_damage(ending)
    return ending
