"""JobQueue on Redis. Every change is one script, in which the lists that other programs see and what the port promises
change together; see docs/design/008-redis-layout.md.

A script whose answer is lost is never sent again from here: whoever asked does so under the same request id.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from wrasse.backends.redis import listing, overview, waking
from wrasse.backends.redis.beats import beat_args, beat_keys, beaten
from wrasse.backends.redis.changes import Held
from wrasse.backends.redis.client import Link
from wrasse.backends.redis.dead_list import compare_dead
from wrasse.backends.redis.fitting import in_pieces
from wrasse.backends.redis.hold_text import read_hold
from wrasse.backends.redis.job_json import decode, flaw, from_ms
from wrasse.backends.redis.keys import Keys
from wrasse.backends.redis.moves import delete, move
from wrasse.backends.redis.puts import Putting, Ring, answers, in_ms, is_plain_put, pushed
from wrasse.backends.redis.replies import reads_replies
from wrasse.backends.redis.scripts import load
from wrasse.backends.redis.settles import Settling, outcomes, take_of
from wrasse.backends.redis.states import text_of
from wrasse.backends.redis.takes import Granted, Wanted, granted
from wrasse.clock import Clock, to_micros
from wrasse.ports.jobs import (
    BATCH_MAX,
    IDS_KEPT,
    NO_PROGRESS,
    Beaten,
    Bury,
    Counts,
    Delete,
    Hold,
    Job,
    JobFilter,
    JobGroup,
    JobRecord,
    JobState,
    Move,
    Place,
    Progress,
    Put,
    Rate,
    Reason,
    Rejected,
    Settlement,
    Taken,
    WorkerInfo,
    bounded,
    check_put,
    check_settlements,
    check_take,
)
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.ports.store_time import StoreTime

_LOOKS_MAX = 100  # of one take, at entries of which none is a job
_TIME_KEPT = 3_600.0  # seconds until the server is asked for its time again: it tells it with every take
_KNOWN_MAX = 20_000  # holds whose bytes are remembered; those of others are read when they are needed


@reads_replies
class RedisJobs:
    """The jobs of one root."""

    def __init__(self, link: Link, clock: Clock, *, done_max: int = 10_000) -> None:
        assert done_max >= 0, "a limit is not negative"
        self._link, self._clock, self._done_max = link, clock, done_max
        self._keys = Keys(link.options)
        self._bells = waking.Bells(link)
        self._held: dict[str, Held] = {}
        self._time = StoreTime(clock, self._asked, kept=_TIME_KEPT)

    async def put(self, jobs: Sequence[Job], *, request: str, groups: Sequence[JobGroup] = ()) -> Sequence[Put]:
        check_put(jobs, groups)
        if not jobs and not groups:
            return ()
        if not groups and all(map(is_plain_put, jobs)):
            keys, words = pushed(jobs, self._keys, self._link.options, self._clock.now())
            return answers(await self._link.run(load("push"), keys, [request, *words]), jobs)
        ring = Ring(self._keys, self._keys.putting)
        putting = Putting(ring, self._link.options, self._clock.now())
        args = [request, *putting.runs(jobs), *putting.groups(groups)]
        return answers(await self._link.run(load("put"), ring.keys, args), jobs)

    async def take(
        self,
        queues: Sequence[str],
        limit: int,
        *,
        worker: str,
        silence: timedelta,
        request: str,
        wait: timedelta = timedelta(0),
        rates: Sequence[Rate] = (),
    ) -> Taken:
        check_take(limit, silence)
        wanted = Wanted(tuple(dict.fromkeys(queues)), min(limit, BATCH_MAX), worker, silence, rates)
        taken = await self._take(wanted, request)
        if taken.jobs or taken.rejected or wait <= timedelta(0):
            return taken
        with self._bells.waiting([self._keys.queue(queue).wake for queue in wanted.queues], wait) as bell:
            while not (taken.jobs or taken.rejected or bell.late):
                await bell.rung(waking.POLL)
                taken = await self._take(wanted, request)
        return taken

    async def beat(
        self,
        worker: WorkerInfo,
        holds: Sequence[Hold],
        *,
        silence: timedelta,
        progress: Mapping[str, Progress] = NO_PROGRESS,
    ) -> Beaten:
        args = beat_args(worker, bounded(holds), silence, progress)
        return beaten(await self._link.run(load("beat"), beat_keys(self._keys, worker.id), args))

    async def settle(self, settlements: Sequence[Settlement], *, request: str) -> Sequence[Outcome]:
        check_settlements(settlements)
        if not settlements:
            return ()
        held = await self._known([take_of(settlement.hold) for settlement in settlements])
        return await self._settle(settlements, held, request)

    async def move(self, moves: Sequence[Move]) -> Sequence[Outcome]:
        return await move(self._link, self._keys, bounded(moves))

    async def get(self, id: str) -> JobRecord | None:
        found = await overview.record(self._link, self._keys, id)
        if found is None and await compare_dead(self._link, self._keys):
            found = await overview.record(self._link, self._keys, id)
        return found

    async def page(
        self, place: Place, where: JobFilter, after: str | None, limit: int, *, newest: bool = False
    ) -> Page[JobState]:
        if place is Place.DEAD and after is None:
            await compare_dead(self._link, self._keys)
        return await listing.page(self._link, self._keys, place, where, after, limit, newest=newest)

    async def overdue(self, after: str | None, limit: int) -> Page[JobState]:
        return await listing.overdue(self._link, self._keys, after, limit)

    async def counts(self) -> Counts:
        await compare_dead(self._link, self._keys)
        return await overview.counts(self._link, self._keys)

    async def delete(self, deletes: Sequence[Delete], *, ids_kept: timedelta = IDS_KEPT) -> Sequence[Outcome]:
        return await delete(self._link, self._keys, bounded(deletes), ids_kept)

    async def close(self) -> None:
        """Stops listening for wake-ups."""
        await self._bells.close()

    async def _take(self, wanted: Wanted, request: str) -> Taken:
        """One look. What turns out to be no job is buried, and the look is repeated under a request id that follows
        from the first: asked again, the same steps are found."""
        rejected: list[Rejected] = []
        looks = 0
        while True:
            looks += 1
            found = await self._grant(wanted, request)
            if found.bad:
                rejected += await self._bury(found.bad)
            if found.jobs or not found.bad or looks == _LOOKS_MAX:
                return Taken(tuple(found.jobs), from_ms(found.now), tuple(rejected))
            request += "+"

    async def _grant(self, wanted: Wanted, request: str) -> Granted:
        nonce = secrets.token_hex(4)
        answer = await self._link.run(load("take"), wanted.keys(self._keys), wanted.args(request, nonce))
        found = granted(answer, wanted, nonce)
        self._time.note(from_ms(found.now))
        for held in found.held:
            self._held[held.take] = held
        while len(self._held) > _KNOWN_MAX:
            del self._held[next(iter(self._held))]
        return found

    async def _bury(self, bad: Sequence[Held]) -> list[Rejected]:
        """Dead-letters what cannot be decoded; gives those of which that is certain."""
        buries = []
        for held in bad:
            token, _, nonce = held.take.partition("-")
            buries.append(Bury(Hold(held.id, int(token), nonce), Reason.INVALID_PAYLOAD, error=flaw(held.raw)))
        done = await self._settle(buries, {held.take: held for held in bad}, f"bad {bad[0].take}")
        ended = zip(bad, buries, done, strict=True)
        return [Rejected(held.queue, held.id, bury.error) for held, bury, is_ in ended if is_ is Outcome.DONE]

    async def _settle(
        self, settlements: Sequence[Settlement], held: Mapping[str, Held], request: str
    ) -> Sequence[Outcome]:
        ring = Ring(self._keys, self._keys.shared)
        putting = Putting(ring, self._link.options, self._clock.now())
        settling = Settling(ring, putting, self._link.options, to_micros(await self._time.now()) // 1_000)
        args = [request, self._done_max, in_ms(IDS_KEPT), *settling.args(settlements, held)]
        answer = await self._link.run(load("settle"), ring.keys, args)
        for take in held:
            self._held.pop(take, None)
        return outcomes(answer)

    async def _known(self, takes: Sequence[str]) -> Mapping[str, Held]:
        """What is held under each of these takes: mostly our own, else read."""
        known = {take: held for take in takes if (held := self._held.get(take)) is not None}
        missing = [take for take in takes if take not in known]
        texts = await in_pieces(missing, lambda takes: self._link.ask("HMGET", self._keys.holds, *takes))
        for take, text in zip(missing, texts, strict=True):
            if text is not None:
                hold = read_hold(text)
                worker, queue, id = text_of(hold.worker), text_of(hold.queue), text_of(hold.id)
                known[take] = Held(take, worker, queue, id, hold.taken, hold.bytes, decode(hold.bytes))
        return known

    async def _asked(self) -> datetime:
        return from_ms(await listing.read_now(self._link))
