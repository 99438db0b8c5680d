"""JobQueue on Redis. Every change is one script, which changes the lists that other programs see together with the data
of the port; see docs/design/008-redis-layout.md. A script whose answer is lost is never sent again from here: the
caller does so under the same request id. What a claim sends, and what a worker gets, is the hottest code outside the
server.

Waiting workers are woken by one listener per process (`RedisWakeups`). An enqueue adds tokens to the wake list of its
queue; the listener blocks on the lists of all waiting workers, on a connection of its own, and gets a token for every
enqueue of wrasse at once. Each waiting worker also polls every POLL seconds, so that a job pushed by another program,
one that became due, and one whose token another process got, are found soon all the same; and so that a listener
without a connection costs some milliseconds, never a job. It tries again after any error, while a worker waits, and
logs it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.jobs import job_listing
from wrasse.backends.redis.jobs.changes import (
    Settling,
    claim_key_of,
    delete,
    heartbeat_args,
    heartbeat_keys,
    move,
    outcomes,
    read_heartbeat,
)
from wrasse.backends.redis.jobs.enqueue import CallKeys, EnqueueArguments, answers, in_ms, is_plain_enqueue, pushed
from wrasse.backends.redis.jobs.job_json import decode, flaw, from_ms, job_of
from wrasse.backends.redis.jobs.lists import compare_dead
from wrasse.backends.redis.jobs.states import ClaimedBytes, ClaimKey, read_claim, text_of
from wrasse.backends.redis.keys import RedisKeys
from wrasse.backends.redis.replies import in_pieces, not_its_answer, reads_replies
from wrasse.backends.redis.scripts import load
from wrasse.backends.wakeup import Wakeup, registered
from wrasse.clock import Clock, to_micros
from wrasse.errors import WrasseError
from wrasse.ports.jobs import (
    BATCH_MAX,
    IDS_KEPT,
    NO_PROGRESS,
    Claim,
    Claimed,
    ClaimedJob,
    Counts,
    DeadLetterJob,
    Delete,
    Enqueued,
    HeartbeatAnswer,
    Job,
    JobFilter,
    JobGroup,
    JobInfo,
    JobRecord,
    JobState,
    Move,
    Progress,
    Rate,
    Reason,
    Rejected,
    Settlement,
    WorkerInfo,
    bounded,
    check_claim,
    check_enqueue,
    check_settlements,
)
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.rules.job_transitions import claimed_job, setters
from wrasse.ports.rules.store_time import StoreTime

POLL = 0.04  # seconds: foreign pushes are to be found within 50 ms
_BLOCK = 1  # seconds, the longest wait of one blocking command
_PAUSE = 0.2  # seconds after an error
_CLAIM_TRIES = 100  # tries of one claim that find only invalid entries
_TIME_KEPT = 3_600.0  # seconds until the server's time is read again: every claim also returns it
_CLAIMED_MAX = 20_000  # claims whose bytes are cached; others are read when they are needed
_new = object.__new__

_log = logging.getLogger("wrasse.jobs")


@reads_replies
class RedisJobs:
    """The jobs of one root."""

    def __init__(self, client: RedisClient, clock: Clock, *, done_max: int = 10_000) -> None:
        assert done_max >= 0, "a limit is not negative"
        self._client, self._clock, self._done_max = client, clock, done_max
        self._keys = RedisKeys(client.options)
        self._wakeups = RedisWakeups(client)
        self._claimed: dict[str, ClaimedBytes] = {}
        self._time = StoreTime(clock, self._read_time, kept=_TIME_KEPT)

    async def enqueue(
        self, jobs: Sequence[Job], *, request: str, groups: Sequence[JobGroup] = ()
    ) -> Sequence[Enqueued]:
        check_enqueue(jobs, groups)
        if not jobs and not groups:
            return ()
        if not groups and all(map(is_plain_enqueue, jobs)):
            keys, words = pushed(jobs, self._keys, self._client.options, self._clock.now())
            return answers(await self._client.run(load("push"), keys, [request, *words]), jobs)
        call_keys = CallKeys(self._keys, self._keys.enqueue)
        enqueues = EnqueueArguments(call_keys, self._client.options, self._clock.now())
        args = [request, *enqueues.runs(jobs), *enqueues.groups(groups)]
        return answers(await self._client.run(load("enqueue"), call_keys.keys, args), jobs)

    async def claim(
        self,
        queues: Sequence[str],
        limit: int,
        *,
        worker: str,
        heartbeat_timeout: timedelta,
        request: str,
        wait: timedelta = timedelta(0),
        rates: Sequence[Rate] = (),
    ) -> Claimed:
        check_claim(limit, heartbeat_timeout)
        wanted = ClaimRequest(tuple(dict.fromkeys(queues)), min(limit, BATCH_MAX), worker, heartbeat_timeout, rates)
        claimed = await self._claim(wanted, request)
        if claimed.jobs or claimed.rejected or wait <= timedelta(0):
            return claimed
        with self._wakeups.waiting([self._keys.queue(queue).wake for queue in wanted.queues], wait) as wakeup:
            while not (claimed.jobs or claimed.rejected or wakeup.late):
                await wakeup.fired(POLL)
                claimed = await self._claim(wanted, request)
        return claimed

    async def heartbeat(
        self,
        worker: WorkerInfo,
        claims: Sequence[Claim],
        *,
        heartbeat_timeout: timedelta,
        progress: Mapping[str, Progress] = NO_PROGRESS,
    ) -> HeartbeatAnswer:
        args = heartbeat_args(worker, bounded(claims), heartbeat_timeout, progress)
        return read_heartbeat(await self._client.run(load("heartbeat"), heartbeat_keys(self._keys, worker.id), args))

    async def settle(self, settlements: Sequence[Settlement], *, request: str) -> Sequence[Outcome]:
        check_settlements(settlements)
        if not settlements:
            return ()
        claimed = await self._known([claim_key_of(settlement.claim) for settlement in settlements])
        return await self._settle(settlements, claimed, request)

    async def move(self, moves: Sequence[Move]) -> Sequence[Outcome]:
        return await move(self._client, self._keys, bounded(moves))

    async def get(self, id: str) -> JobRecord | None:
        found = await job_listing.record(self._client, self._keys, id)
        if found is None and await compare_dead(self._client, self._keys):
            found = await job_listing.record(self._client, self._keys, id)
        return found

    async def page(
        self, state: JobState, where: JobFilter, after: str | None, limit: int, *, newest: bool = False
    ) -> Page[JobInfo]:
        if state is JobState.DEAD and after is None:
            await compare_dead(self._client, self._keys)
        return await job_listing.page(self._client, self._keys, state, where, after, limit, newest=newest)

    async def overdue(self, after: str | None, limit: int) -> Page[JobInfo]:
        return await job_listing.overdue(self._client, self._keys, after, limit)

    async def counts(self) -> Counts:
        await compare_dead(self._client, self._keys)
        return await job_listing.counts(self._client, self._keys)

    async def delete(self, deletes: Sequence[Delete], *, ids_kept: timedelta = IDS_KEPT) -> Sequence[Outcome]:
        return await delete(self._client, self._keys, bounded(deletes), ids_kept)

    async def close(self) -> None:
        """Stops listening for wake-ups."""
        await self._wakeups.close()

    async def _claim(self, wanted: ClaimRequest, request: str) -> Claimed:
        """One claim. Invalid entries are dead-lettered, and the claim is repeated under a request id that is derived
        from the first: a retry finds the same steps."""
        rejected: list[Rejected] = []
        tries = 0
        while True:
            tries += 1
            found = await self._grant(wanted, request)
            if found.bad:
                rejected += await self._dead_letter(found.bad)
            if found.jobs or not found.bad or tries == _CLAIM_TRIES:
                return Claimed(tuple(found.jobs), from_ms(found.now), tuple(rejected))
            request += "+"

    async def _grant(self, wanted: ClaimRequest, request: str) -> ClaimAnswer:
        nonce = secrets.token_hex(4)
        answer = await self._client.run(load("claim"), wanted.keys(self._keys), wanted.args(request, nonce))
        found = granted(answer, wanted, nonce)
        self._time.note(from_ms(found.now))
        for claimed in found.claimed:
            self._claimed[claimed.claim_key] = claimed
        while len(self._claimed) > _CLAIMED_MAX:
            del self._claimed[next(iter(self._claimed))]
        return found

    async def _dead_letter(self, bad: Sequence[ClaimedBytes]) -> list[Rejected]:
        """Dead-letters entries that cannot be decoded; returns those for which that is certain."""
        settlements = []
        for claimed in bad:
            token, _, nonce = claimed.claim_key.partition("-")
            settlements.append(
                DeadLetterJob(Claim(claimed.id, int(token), nonce), Reason.INVALID_PAYLOAD, error=flaw(claimed.raw))
            )
        texts = {claimed.claim_key: claimed for claimed in bad}
        done = await self._settle(settlements, texts, f"bad {bad[0].claim_key}")
        ended = zip(bad, settlements, done, strict=True)
        return [Rejected(claimed.queue, claimed.id, each.error) for claimed, each, is_ in ended if is_ is Outcome.DONE]

    async def _settle(
        self, settlements: Sequence[Settlement], claimed: Mapping[str, ClaimedBytes], request: str
    ) -> Sequence[Outcome]:
        call_keys = CallKeys(self._keys, self._keys.shared)
        enqueues = EnqueueArguments(call_keys, self._client.options, self._clock.now())
        settling = Settling(call_keys, enqueues, self._client.options, to_micros(await self._time.now()) // 1_000)
        args = [request, self._done_max, in_ms(IDS_KEPT), *settling.args(settlements, claimed)]
        answer = await self._client.run(load("settle"), call_keys.keys, args)
        for claim_key in claimed:
            self._claimed.pop(claim_key, None)
        return outcomes(answer)

    async def _known(self, claim_keys: Sequence[str]) -> Mapping[str, ClaimedBytes]:
        """The running jobs of these claims: mostly from the cache, else read."""
        known = {key: claimed for key in claim_keys if (claimed := self._claimed.get(key)) is not None}
        missing = [claim_key for claim_key in claim_keys if claim_key not in known]
        texts = await in_pieces(missing, lambda claim_keys: self._client.ask("HMGET", self._keys.holds, *claim_keys))
        for claim_key, text in zip(missing, texts, strict=True):
            if text is not None:
                hold = read_claim(text)
                worker, queue, id = text_of(hold.worker), text_of(hold.queue), text_of(hold.id)
                known[claim_key] = ClaimedBytes(
                    claim_key, worker, queue, id, hold.claimed_at, hold.bytes, decode(hold.bytes)
                )
        return known

    async def _read_time(self) -> datetime:
        return from_ms(await job_listing.read_now(self._client))


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """The request of a worker."""

    queues: tuple[str, ...]
    limit: int
    worker: str
    heartbeat_timeout: timedelta
    rates: Sequence[Rate]

    def keys(self, keys: RedisKeys) -> list[str]:
        """KEYS of the script."""
        names = [*keys.shared, keys.processing(self.worker), keys.heartbeat(self.worker)]
        for queue in self.queues:
            found = keys.queue(queue)
            names += (found.list, found.delayed, found.rate)
        return names

    def args(self, request: str, nonce: str) -> list[Word]:
        """ARGV of the script."""
        args: list[Word] = [request, self.limit, in_ms(self.heartbeat_timeout), self.worker, nonce, len(self.queues)]
        for queue in self.queues:
            rates = [rate for rate in self.rates if rate.queue == queue]
            args += (queue, len(rates))
            for rate in rates:
                args += (rate.limit, in_ms(rate.per))
        return args


@dataclass(frozen=True, slots=True)
class ClaimAnswer:
    """The answer: jobs with their claims, and entries that are not jobs."""

    jobs: list[ClaimedJob]
    claimed: list[ClaimedBytes]
    bad: list[ClaimedBytes]
    now: int


def granted(answer: list[Any], wanted: ClaimRequest, nonce: str) -> ClaimAnswer:
    """The script's answer, read."""
    now, token, *found = answer
    given = ClaimAnswer([], [], [], now)
    if token == 0:
        for claim_key, until, text in zip(found[::3], found[1::3], found[2::3], strict=True):
            hold = read_claim(text)
            claimed = _claimed_bytes(
                text_of(claim_key), text_of(hold.worker), text_of(hold.queue), hold.claimed_at, hold.bytes
            )
            known = ClaimKey.of(claim_key)
            _add(given, claimed, known.token, known.nonce, from_ms(float(until)))
        return given
    until = from_ms(now + in_ms(wanted.heartbeat_timeout))
    for queue, raws in zip(wanted.queues, found, strict=True):
        for raw in raws:
            _add(given, _claimed_bytes(f"{token}-{nonce}", wanted.worker, queue, now, raw), token, nonce, until)
            token += 1
    return given


def _claimed_bytes(claim_key: str, worker: str, queue: str, claimed_at: int, raw: bytes) -> ClaimedBytes:
    wire = decode(raw)
    claimed = _new(ClaimedBytes)
    _set_claim_key(claimed, claim_key)
    _set_worker(claimed, worker)
    _set_claimed_queue(claimed, queue)
    _set_claimed_id(claimed, "" if wire is None else wire.id)
    _set_claimed_at(claimed, claimed_at)
    _set_raw(claimed, raw)
    _set_wire(claimed, wire)
    return claimed


def _add(given: ClaimAnswer, claimed: ClaimedBytes, token: int, nonce: str, until: datetime) -> None:
    wire = claimed.wire
    job = None if wire is None else job_of(wire, claimed.queue)
    if wire is None or job is None:
        given.bad.append(claimed)
        return
    counts = wire.attempts + 1, wire.retries, wire.rescues, wire.interruptions
    given.jobs.append(claimed_job(job, token, nonce, counts, wire.creation_time, until))
    given.claimed.append(claimed)


_set_claim_key, _set_worker, _set_claimed_queue, _set_claimed_id, _set_claimed_at, _set_raw, _set_wire = setters(
    ClaimedBytes, "claim_key", "worker", "queue", "id", "claimed_at", "raw", "wire"
)


class RedisWakeups:
    """The waiting workers of this process, and the task that listens for them."""

    __slots__ = ("_client", "_task", "_waiting")

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._task: asyncio.Task[None] | None = None
        self._waiting: set[Wakeup] = set()

    @contextmanager
    def waiting(self, keys: Iterable[str], wait: timedelta) -> Iterator[Wakeup]:
        """A wakeup for these wake lists, which fires after `wait` at the latest."""
        with registered(self._waiting, keys, wait) as wakeup:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._listen(), name="redis wake-ups")
            yield wakeup

    async def close(self) -> None:
        """Stops listening, and wakes all waiting workers."""
        for wakeup in self._waiting:
            wakeup.expire()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _listen(self) -> None:
        deaf = False
        while keys := list(dict.fromkeys(key for wakeup in self._waiting for key in wakeup.names)):
            try:
                heard = await self._client.block("BLPOP", *keys, _BLOCK, timeout=_BLOCK)
                key = None if heard is None else _key_in(heard, self._client)
            except WrasseError as error:
                if not deaf:
                    _log.warning("wakeups are not received, so jobs are polled instead: %s", error.message)
                deaf = True
                await asyncio.sleep(_PAUSE)
                continue
            if deaf:
                _log.info("wakeups are received again")
            deaf = False
            if key is not None:
                self._fire(key)
                await asyncio.sleep(0)  # the woken worker claims the job before this listens again

    def _fire(self, key: str) -> None:
        for wakeup in self._waiting:
            if key in wakeup.names:
                wakeup.fire()


def _key_in(heard: object, client: RedisClient) -> str:
    """The list from which BLPOP popped a token."""
    match heard:
        case [bytes(key), _]:
            return key.decode(errors="replace")
    raise not_its_answer(client, "BLPOP")
