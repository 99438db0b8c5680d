"""A producer that uses everything: groups in pieces, unique names, kept results and a queue with a limit.

It asks again after lost replies, forgets that it did and does it again; whatever it began, it ends.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta

from simulation.actors import QUEUES, Nature, asked
from simulation.comfort_laws import SLOW, Comforts
from wrasse.errors import StoreUnavailable
from wrasse.ports.jobs import Job, JobGroup, JobQueue

NAMES = {"one": timedelta(0), "two": timedelta(0), "window": timedelta(seconds=25)}


class ComfortProducer:
    """Puts what people expect to be able to put."""

    def __init__(self, name: str, jobs: JobQueue, draw: random.Random, comforts: Comforts, acts: int) -> None:
        self._name = name
        self._jobs = jobs
        self._draw = draw
        self._comforts = comforts
        self._acts = acts
        self.acknowledged: set[str] = set()
        self.opened: list[str] = []  # callbacks of groups that are enqueued whole

    async def run(self) -> None:
        """Until all is enqueued and acknowledged."""
        for number in range(self._acts):
            id = f"{self._name}-{number}"
            match self._draw.choice(["group", "unique", "unique", "kept", "slow"]):
                case "group":
                    await self._group(id)
                case "unique":
                    unique = self._draw.choice(sorted(NAMES))
                    await self._put([self._job(id, unique=unique, window=NAMES[unique])], id)
                case "kept":
                    keep = timedelta(seconds=self._draw.uniform(30, 300))
                    await self._put([self._job(f"{id}-{n}", keep=keep) for n in range(3)], id)
                case _:
                    await self._put([self._job(f"{id}-{n}", queue=SLOW.queue) for n in range(3)], id)
            await asyncio.sleep(self._draw.uniform(0, 8))

    async def _group(self, id: str) -> None:
        """Members in two pieces, the group with the first; sometimes all of it once more, as after a crash."""
        members = [self._job(f"{id}/{n}", group=id) for n in range(self._draw.randint(2, 4))]
        group = JobGroup(id, len(members), Job(f"{id}/then", payload=Nature(takes=1).encode(), lasting=True))
        self._comforts.groups[group.callback.id] = group, tuple(job.id for job in members)
        for again in range(2 if self._draw.random() < 0.5 else 1):
            await self._put(members[:1], f"{id}-first-{again}", (group,))
            await asyncio.sleep(self._draw.uniform(0, 20))
            await self._put(members[1:], f"{id}-rest-{again}")
            await asyncio.sleep(self._draw.uniform(0, 20))
        self.opened.append(group.callback.id)

    async def _put(self, batch: Sequence[Job], request: str, groups: Sequence[JobGroup] = ()) -> None:
        try:
            answers = await asked(lambda: self._jobs.enqueue(batch, request=request, groups=groups), self._draw)
        except StoreUnavailable:
            return await self._put(batch, request + "'", groups)  # too late to ask again; the ids keep it from doubling
        self.acknowledged |= {answer.id for answer in answers}
        return None

    def _job(
        self,
        id: str,
        *,
        queue: str | None = None,
        unique: str = "",
        window: timedelta = timedelta(0),
        keep: timedelta = timedelta(0),
        group: str = "",
    ) -> Job:
        draw = self._draw
        nature = Nature(
            takes=draw.choice([0.1, 1, 5, draw.uniform(10, 45)]),
            fails=draw.choice([0, 0, 0, 1, 5]),
            kills=draw.random() < 0.05,
        )
        return Job(
            id,
            queue=queue or draw.choice(QUEUES),
            payload=nature.encode(),
            lasting=True,
            unique=unique,
            window=window,
            keep=keep,
            group=group,
        )
