"""Jobs in every state of a Redis, with everything that may be stored beside them, and ways to make it inconsistent."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from conformance.queue_client import HEARTBEAT_TIMEOUT, LONGER, QueueClient, fresh
from conformance.stores import Store
from wrasse.backends.redis.client.connection import OwnRedisClient
from wrasse.backends.redis.connect import Redis
from wrasse.backends.redis.keys import RedisKeys
from wrasse.clock import ManualClock
from wrasse.ports.inconsistency import Inconsistency
from wrasse.ports.jobs import (
    Budget,
    Cancel,
    Claim,
    Complete,
    DeadLetterJob,
    Delete,
    Job,
    JobFilter,
    JobGroup,
    JobState,
    Progress,
    Reason,
    Requeue,
    RequeueDead,
)

HOUR = timedelta(hours=1)
GROUP = "g1"
MEMBERS = ("member-1", "member-2", "member-3")
EVERY = ("held-1", "held-2", "waiting", "given", "delayed", "named", "dead-1", "dead-2", "done-1", "kept", *MEMBERS)

GARBAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda text: b"",
    "not UTF-8": lambda text: b"\xff\xfe\x80 " + text,
    "cut": lambda text: text[: len(text) // 2],
    "cut at the first space": lambda text: text.split(b" ")[0],
    "huge numbers": lambda text: b"9" * 400 + b" " + b"9" * 400,
    "every number huge": lambda text: b" ".join(b"9" * 30 if each.isdigit() else each for each in text.split(b" ")),
    "other separators": lambda text: text.replace(b" ", b"\t").replace(b"\n", b"\r"),
    "NUL": lambda text: text[:3] + b"\0" + text[3:],
    "negative": lambda text: b"-1 " + text,
    "not a number": lambda text: b"nan",
    "infinite": lambda text: b"inf",
    "hexadecimal": lambda text: b"0x10",
    "exponent": lambda text: b"1e309",
    "map of another program": lambda text: b"\x81\xa4list\xa3abc",  # MessagePack {"list": "abc"}
    "list of another program": lambda text: b"\x93\x01\x02\x03",
    "nested": lambda text: b"\x91" * 200,
}
FEW = ("empty", "not UTF-8", "cut", "every number huge", "map of another program")  # the others in the full run
KINDS = [kind if kind in FEW else pytest.param(kind, marks=pytest.mark.full) for kind in GARBAGE]


class Scene:
    """One root, with a job in every place."""

    def __init__(self, store: Store) -> None:
        assert isinstance(store.backend, Redis)
        assert isinstance(store.clock, ManualClock)
        self.store, self.clock, self.redis = store, store.clock, store.backend
        self.client: OwnRedisClient = store.backend.client
        self.keys = RedisKeys(self.client.options)
        self.jobs_client = QueueClient(store.jobs)
        self.holds: dict[str, Claim] = {}

    async def do(self, *command: str | bytes | int) -> Any:
        return await self.client.ask(*command)

    async def set_up(self) -> None:
        """Puts, takes, finishes and buries, so that every structure has something in it."""
        await self.jobs_client.enqueue(Job("done-1", lasting=True), Job("kept", keep=HOUR), "dead-1", "dead-2", "gone")
        for claimed in await self.jobs_client.claim():
            dies = claimed.job.id.startswith("dead")
            end = (
                DeadLetterJob(claimed.claim, Reason.FAILED, error="it broke")
                if dies
                else Complete(claimed.claim, result=b"42")
            )
            await self.jobs_client.settle(end)
        await self.jobs_client.enqueue(Job("held-1", unique="name-1"), "held-2")
        self.holds = {claimed.job.id: claimed.claim for claimed in await self.jobs_client.claim(heartbeat_timeout=HOUR)}
        told = {self.holds["held-1"].id: Progress(0.5, "half")}
        await self.jobs_client.jobs.heartbeat(
            self.jobs_client.worker, list(self.holds.values()), heartbeat_timeout=HOUR, progress=told
        )
        members = [Job(id, group=GROUP) for id in MEMBERS]
        await self.jobs_client.enqueue(
            Job("waiting", minted=True), Job("given"), Job("delayed", delay=24 * HOUR), Job("named", unique="name-2")
        )
        await self.jobs_client.enqueue(Job("windowed", unique="name-3", window=HOUR))
        await self.jobs_client.jobs.enqueue(members, request=fresh(), groups=[JobGroup(GROUP, 3, Job("callback"))])
        await self.do("DEL", self.keys.heartbeat("w1"))  # it is the server's clock that would end it

    async def check(self) -> list[str]:
        """The kinds of damage there are."""
        return [each.kind for each in await self.redis.fsck.check(repair=False, heartbeat_timeout=HEARTBEAT_TIMEOUT)]

    async def repair(self) -> dict[str, Inconsistency]:
        return {
            each.kind: each for each in await self.redis.fsck.check(repair=True, heartbeat_timeout=HEARTBEAT_TIMEOUT)
        }

    async def missing(self) -> set[str]:
        """Of the jobs that were there, those that cannot be found any more."""
        return {id for id in EVERY if await self.jobs_client.state(id) is None}

    def claim_key_of(self, id: str) -> str:
        return f"{self.holds[id].token}-{self.holds[id].nonce}"

    async def entry(self, id: str) -> bytes:
        """The bytes of a held job."""
        text: bytes = await self.do("HGET", self.keys.holds, self.claim_key_of(id))
        return text[text.index(b'{"id"') :]


Plant = Callable[[Scene], Awaitable[object]]


class Chance:
    """Everything the port allows, in no order."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene, self.jobs_client, self.chance = scene, scene.jobs_client, random.Random(seed)
        self.held: list[Claim] = []
        self.number = 0

    async def step(self) -> None:
        acts = (self.put, self.put, self.group, self.take, self.end, self.end, self.beat, self.sweep, self.delete)
        await self.chance.choice((*acts, self.cancel, self.revive, self.pass_time))()

    async def put(self) -> None:
        self.number += 1
        id = f"j{self.chance.randrange(40)}" if self.chance.random() < 0.3 else f"n{self.number}"
        await self.jobs_client.enqueue(
            Job(
                id,
                delay=self.chance.choice((timedelta(0), timedelta(0), HEARTBEAT_TIMEOUT)),
                lasting=self.chance.random() < 0.3,
                unique=self.chance.choice(("", "", "a", "b")),
                window=self.chance.choice((timedelta(0), HEARTBEAT_TIMEOUT)),
                keep=self.chance.choice((timedelta(0), HEARTBEAT_TIMEOUT)),
                group=self.chance.choice(("", "", "g0", "g1")),
            )
        )

    async def group(self) -> None:
        self.number += 1
        callback = Job(f"c{self.number}")
        group = JobGroup(f"g{self.chance.randrange(3)}", self.chance.randrange(1, 4), callback)
        await self.jobs_client.jobs.enqueue((), request=fresh(), groups=[group])

    async def take(self) -> None:
        self.held += [claimed.claim for claimed in await self.jobs_client.claim(limit=self.chance.randrange(1, 5))]

    async def end(self) -> None:
        if not self.held:
            return
        claim = self.held.pop(self.chance.randrange(len(self.held)))
        delay = self.chance.choice((timedelta(0), HEARTBEAT_TIMEOUT))
        await self.jobs_client.settle(
            self.chance.choice(
                (
                    Complete(claim, result=b"1"),
                    Complete(claim, enqueues=(Job(f"f{self.number}"),)),
                    DeadLetterJob(claim, Reason.FAILED, error="no"),
                    Requeue(claim, Budget.FAILURES, Reason.FAILED, error="no", delay=delay),
                )
            )
        )

    async def beat(self) -> None:
        told = {claim.id: Progress(0.5) for claim in self.held}
        await self.jobs_client.jobs.heartbeat(
            self.jobs_client.worker, self.held, heartbeat_timeout=HEARTBEAT_TIMEOUT, progress=told
        )

    async def sweep(self) -> None:
        for info in await self.jobs_client.jobs.overdue(None, 10):
            bury = DeadLetterJob(info.claim, Reason.WORKER_DIED, error="silent")
            back = Requeue(info.claim, Budget.RESCUES, Reason.WORKER_DIED, error="silent")
            await self.jobs_client.move(self.chance.choice((bury, back)))

    async def delete(self) -> None:
        for state in (JobState.READY, JobState.DONE, JobState.DEAD):
            for info in await self.jobs_client.jobs.page(state, JobFilter(), None, 1):
                await self.jobs_client.jobs.delete([Delete(info.claim, state)])

    async def cancel(self) -> None:
        state = self.chance.choice((JobState.READY, JobState.RUNNING))
        for info in await self.jobs_client.jobs.page(state, JobFilter(), None, 1):
            await self.jobs_client.move(Cancel(info.id, "enough"))

    async def revive(self) -> None:
        for info in await self.jobs_client.jobs.page(JobState.DEAD, JobFilter(), None, 1):
            await self.jobs_client.move(RequeueDead(info.claim))

    async def pass_time(self) -> None:
        self.scene.clock.advance(LONGER)
