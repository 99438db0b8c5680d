"""Taking tasks: a queue entry is a hint, the record is the task.

A hint is delivered, its task is claimed by a conditional write with a token, and only then is the hint acked; a hint
whose claim is lost, or whose task is gone or not ready, is just acked. A worker that dies between the two leaves the
hint to be delivered again, and that one finds the task held. Tasks that were given back go before the hints.

A take that is cancelled while it claims finishes that, and gives back what it got: nobody would know of it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from wrasse.errors import StoreBroken, StoreUnavailable, WrasseError
from wrasse.jobs.task_abreast import abreast
from wrasse.jobs.task_events import Post, hinted
from wrasse.jobs.task_names import group_of, queue_of
from wrasse.jobs.task_search import TaskSearch
from wrasse.jobs.task_store import Task, TaskStore
from wrasse.ports import job_transitions as rules
from wrasse.ports.groups import Ack, Answer, Delivery, Groups, Nak, StartAt
from wrasse.ports.jobs import Hold, Place

ACK_TIMEOUT = timedelta(seconds=30)  # within which a hint is claimed and acked
_NAP = timedelta(seconds=1)  # the longest wait between two looks at what is due
_SHORTEST = timedelta(milliseconds=5)
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Claim:
    """Who takes, for how long, and the request by which a claim is known again."""

    worker: str
    silence: timedelta
    request: str
    types: tuple[str, ...]
    limit: int
    tried: list[tuple[str, str]] = field(default_factory=list)  # type and id of every claim that was begun
    got: set[tuple[str, str]] = field(default_factory=set)  # of these, the ones that it holds

    def nonce(self, id: str) -> str:
        """The nonce of its hold on a task: the same if the same request asks again."""
        return hashlib.blake2b(f"{self.request}\0{id}".encode(), digest_size=8).hexdigest()


class Takes:
    """Takes tasks from their streams."""

    def __init__(self, store: TaskStore, groups: Groups, post: Post, search: TaskSearch) -> None:
        self._store = store
        self._groups = groups
        self._post = post
        self._search = search
        self._joined: set[str] = set()

    async def take(self, claim: Claim, wait: timedelta) -> list[Task]:
        """Up to the claim's limit of tasks, waiting for the first for as long as `wait`."""
        for task_type in claim.types:
            await self._join(task_type)
        while True:
            look = await self._search.look(min(wait, _NAP))
            taken = await self._finishing(self._now(claim, look.next_ones))
            if taken or wait <= timedelta(0):
                return taken
            nap = min(wait, _NAP)
            if look.next_at is not None:
                nap = min(nap, max(look.next_at - look.at, _SHORTEST))
            wait -= nap
            deliveries = await self._wait(claim, nap)
            if deliveries:
                taken = await self._finishing(self._claim_hints(claim, deliveries, claim.limit))
                if taken:
                    return taken

    async def again(self, claim: Claim) -> list[Task]:
        """What an earlier asking of this claim took and still holds."""
        found = [await self._store.get(task_type, id) for task_type, id in dict.fromkeys(claim.tried)]
        return [task for task in found if task is not None and self._is_ours(task, claim)]

    async def _finishing(self, claiming: Coroutine[None, None, list[Task]]) -> list[Task]:
        """Claims, to the end; cancelled, gives back what was claimed."""
        task = asyncio.ensure_future(claiming)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # What a server that is away does not take back is rescued at its deadline.
            with suppress(WrasseError):
                for taken in await task:
                    await self._give_back(taken)
            raise

    async def _now(self, claim: Claim, next_ones: Sequence[Task]) -> list[Task]:
        """What is there now: queue by queue, in each first what was given back."""
        taken: list[Task] = []
        for task_type in claim.types:
            for task in next_ones:
                if task.stored.state.queue == task_type and len(taken) < claim.limit:
                    taken += await self._claim(claim, task)
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
        return [task for each in found for task in each]

    async def _claim_hint(
        self, claim: Claim, numbered: tuple[int, Delivery], answers: dict[int, Answer]
    ) -> list[Task]:
        number, delivery = numbered
        entry = delivery.entry
        task_type = entry.subject.split(".")[-2]
        payload = self._post.open(entry)
        id, params = ("", b"") if payload is None else hinted(payload, task_type)
        if not id:
            answers[number] = self._post.set_aside(delivery, "not an event of a task")
            return []
        try:
            task = await self._store.get(task_type, id)
        except StoreBroken:
            answers[number] = self._post.set_aside(delivery, "the record of its task is malformed")
            return []
        taken = [] if task is None else await self._claim(claim, _with_params(task, params))
        answers[number] = Ack(entry.subject, delivery.group, entry.id)
        return taken

    async def _claim(self, claim: Claim, task: Task) -> list[Task]:
        """The task, held; nothing if it is not to be had."""
        state = task.stored.state
        claim.tried.append((state.queue, state.id))
        for _ in range(_TRIES):
            at = await self._store.time.now()
            held = rules.take(
                task.stored, at, worker=claim.worker, nonce=claim.nonce(state.id), silence=claim.silence
            )
            if held is None:
                return self._got(claim, task) if self._is_ours(task, claim) else []
            written = await self._store.put(task, held, at)
            if written is not None:
                return self._got(claim, written)
            found = await self._store.get(state.queue, state.id)
            if found is None:
                return []
            task = found
        raise StoreUnavailable(f"the record of task {state.id!r} keeps changing", do="try again")

    def _got(self, claim: Claim, task: Task) -> list[Task]:
        """The task, unless another hint of this very take brought it already."""
        name = (task.stored.state.queue, task.stored.state.id)
        if name in claim.got:
            return []
        claim.got.add(name)
        return [task]

    def _is_ours(self, task: Task, claim: Claim) -> bool:
        state = task.stored.state
        return rules.holds(task.stored, Hold(state.id, state.token, claim.nonce(state.id)))

    async def _give_back(self, task: Task) -> None:
        """Undoes a claim of which nobody was told: the attempt was none."""
        at = await self._store.time.now()
        state = replace(
            task.stored.state,
            place=Place.READY,
            token=task.stored.state.token + 1,
            attempts=task.stored.state.attempts - 1,
            worker="",
            taken_at=None,
            beat_at=None,
            until=None,
        )
        # Its hint is acked: it is found by being due, as what was given back is.
        await self._store.put(task, replace(task.stored, state=state, rank=-rules.back(at)), at)

    async def _wait(self, claim: Claim, nap: timedelta) -> Sequence[Delivery]:
        """Hints, as soon as one of the types has any."""
        waits = [
            asyncio.ensure_future(
                self._groups.deliver(
                    [queue_of(each)], group_of(each), claim.worker, claim.limit, ack_timeout=ACK_TIMEOUT, wait=nap
                )
            )
            for each in claim.types
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
            await self._groups.join(queue_of(task_type), group_of(task_type), StartAt(first=True))
            self._joined.add(task_type)


def _with_params(task: Task, params: bytes) -> Task:
    """With the parameters that the event of another program brings, where the record has none."""
    job = task.stored.job
    if not params or job.payload or task.fields.get("params_ref") or task.stored.put_by:
        return task
    state = replace(task.stored.state, size=len(params))
    return replace(task, stored=replace(task.stored, job=replace(job, payload=params), state=state))
