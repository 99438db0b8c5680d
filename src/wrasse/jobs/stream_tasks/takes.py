"""Taking tasks: a queue entry is a hint, the record is the task.

A hint is delivered, its task is claimed by a conditional write with a token, and only then is the hint acked; a hint
whose claim is lost, or whose task is gone or not ready, is just acked. A worker that dies between the two leaves the
hint to be delivered again, and that one finds the task held. Tasks that were given back go before the hints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

from wrasse.errors import StoreBroken
from wrasse.jobs.record_core.batches import abreast
from wrasse.jobs.record_core.claims import Claim, Claims
from wrasse.jobs.stream_tasks.events import Post, hinted
from wrasse.jobs.stream_tasks.names import group_of, queue_of
from wrasse.jobs.stream_tasks.search import TaskSearch
from wrasse.jobs.stream_tasks.store import Task, TaskStore
from wrasse.ports.groups import Ack, Answer, Delivery, Groups, Nak, StartAt

ACK_TIMEOUT = timedelta(seconds=30)  # within which a hint is claimed and acked
_NAP = timedelta(seconds=1)  # the longest wait between two looks at what is due
_SHORTEST = timedelta(milliseconds=5)


class Takes(Claims[Task]):
    """Takes tasks from their streams."""

    tries = 3

    def __init__(self, store: TaskStore, groups: Groups, post: Post, search: TaskSearch) -> None:
        super().__init__(store)
        self._store = store
        self._groups = groups
        self._post = post
        self._search = search
        self._joined: set[str] = set()

    async def take(self, claim: Claim, wait: timedelta) -> list[Task]:
        """Up to the claim's limit of tasks, waiting for the first for as long as `wait`."""
        for task_type in claim.queues:
            await self._join(task_type)
        while True:
            look = await self._search.look(min(wait, _NAP))
            taken = await self._to_the_end(self._now(claim, look.next_ones))
            if taken or wait <= timedelta(0):
                return taken
            nap = min(wait, _NAP)
            if look.next_at is not None:
                nap = min(nap, max(look.next_at - look.at, _SHORTEST))
            wait -= nap
            deliveries = await self._wait(claim, nap)
            if deliveries:
                taken = await self._to_the_end(self._claim_hints(claim, deliveries, claim.limit))
                if taken:
                    return taken

    async def _now(self, claim: Claim, next_ones: Sequence[Task]) -> list[Task]:
        """What is there now: queue by queue, in each first what was given back."""
        taken: list[Task] = []
        for task_type in claim.queues:
            for task in next_ones:
                if task.stored.state.queue == task_type and len(taken) < claim.limit:
                    found = await self._claim(claim, task)
                    taken += [] if found is None else [found]
            while len(taken) < claim.limit:
                deliveries = await self._groups.deliver(
                    [queue_of(task_type)],
                    group_of(task_type),
                    claim.worker,
                    claim.limit - len(taken),
                    ack_timeout=ACK_TIMEOUT,
                )
                if not deliveries:
                    break
                taken += await self._claim_hints(claim, deliveries, claim.limit - len(taken))
        return taken

    async def _claim_hints(self, claim: Claim, deliveries: Sequence[Delivery], limit: int) -> list[Task]:
        answers: dict[int, Answer] = {}
        try:
            found = await abreast(
                [partial(self._claim_hint, claim, each, answers) for each in enumerate(deliveries[:limit])]
            )
        finally:
            # What was not claimed is delivered again at once, also if an error ended this.
            naks = [Nak(each.entry.subject, each.group, each.entry.id) for each in deliveries]
            await self._groups.answer([answers.get(n, nak) for n, nak in enumerate(naks)])
        return [task for task in found if task is not None]

    async def _claim_hint(
        self, claim: Claim, numbered: tuple[int, Delivery], answers: dict[int, Answer]
    ) -> Task | None:
        number, delivery = numbered
        entry = delivery.entry
        task_type = entry.subject.split(".")[-2]
        payload = self._post.open(entry)
        id, params = ("", b"") if payload is None else hinted(payload, task_type)
        if not id:
            answers[number] = self._post.set_aside(delivery, "not an event of a task")
            return None
        try:
            task = await self._store.get(task_type, id)
        except StoreBroken:
            answers[number] = self._post.set_aside(delivery, "the record of its task is malformed")
            return None
        taken = None if task is None else await self._claim(claim, _with_params(task, params))
        answers[number] = Ack(entry.subject, delivery.group, entry.id)
        return taken

    async def _wait(self, claim: Claim, nap: timedelta) -> Sequence[Delivery]:
        """Hints, as soon as one of the types has any."""
        waits = [
            asyncio.ensure_future(
                self._groups.deliver(
                    [queue_of(each)], group_of(each), claim.worker, claim.limit, ack_timeout=ACK_TIMEOUT, wait=nap
                )
            )
            for each in claim.queues
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            answers = await asyncio.gather(*waits, return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, Exception)]
        found = [delivery for answer in answers if not isinstance(answer, BaseException) for delivery in answer]
        if failed and not found:
            raise failed[0]
        return found

    async def _join(self, task_type: str) -> None:
        if task_type not in self._joined:
            first = StartAt(first=True)
            await self._groups.join(queue_of(task_type), group_of(task_type), first, ack_timeout=ACK_TIMEOUT)
            self._joined.add(task_type)


def _with_params(task: Task, params: bytes) -> Task:
    """With the parameters that the event of another program brings, where the record has none."""
    job = task.stored.job
    if not params or job.payload or task.fields.get("params_ref") or task.stored.put_by:
        return task
    state = replace(task.stored.state, size=len(params))
    return replace(task, stored=replace(task.stored, job=replace(job, payload=params), state=state))
