"""The changes of jobs: settlements and heartbeats of their workers, and moves and deletes by everyone else.

`Settling` writes the ends of attempts as arguments: runs of one kind, worker and queue. The process that claimed a job
has its bytes; for one that was claimed by another process, or before a restart, they are read first. A claim that does
not exist is sent all the same: on a retry the first answer counts.

`move` rescues, dead-letters, requeues and cancels; `delete` deletes jobs that are not claimed. The bytes that a move
writes are made here from the stored ones, under a new token; the script then compares everything again when it runs. A
change in between makes a move a `conflict`, except a cancel: then the job is searched for again, since a cancel is for
the job in any state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from wrasse.backends.redis.client.client import RedisClient
from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.failure import ReplyTooLarge
from wrasse.backends.redis.jobs.enqueue import CallKeys, EnqueueArguments, in_ms
from wrasse.backends.redis.jobs.job_json import JobFields, Router, decode, from_ms, is_plain, known_queues, seconds
from wrasse.backends.redis.jobs.pages import WaitingJob, find_waiting
from wrasse.backends.redis.jobs.states import (
    AttemptEnd,
    ClaimedBytes,
    FinishedText,
    Flag,
    cancelled,
    dead_lettered,
    finished,
    read_claim,
    read_finished,
    requeued,
    requeued_dead,
    text_of,
)
from wrasse.backends.redis.keys import RedisKeys
from wrasse.backends.redis.options import RedisOptions
from wrasse.backends.redis.scripts import load
from wrasse.bounded import integer
from wrasse.ports.jobs import (
    Cancel,
    Claim,
    Complete,
    DeadLetterJob,
    Delete,
    HeartbeatAnswer,
    JobState,
    Move,
    Progress,
    Reason,
    Requeue,
    RequeueDead,
    Settlement,
    WorkerInfo,
    WorkerState,
)
from wrasse.ports.outcome import Outcome

_OUTCOMES = {ord("d"): Outcome.DONE, ord("l"): Outcome.CONFLICT}
SCRIPT_BYTES_MAX = 8 << 20  # of jobs that one script moves or deletes, and the one that exceeds it
_FINISHED_KINDS = {JobState.DONE: "D", JobState.DEAD: "X"}
_CANCEL_TRIES = 5  # how often a cancel follows a moving job


def claim_key_of(claim: Claim) -> str:
    """K: the key of this claim."""
    return f"{claim.token}-{claim.nonce}"


class Settling:
    """Writes the settlements of one call as arguments."""

    __slots__ = ("_args", "_begun", "_call_keys", "_enqueues", "_now", "_options", "_run", "_runs")

    def __init__(self, call_keys: CallKeys, enqueues: EnqueueArguments, options: RedisOptions, now: int) -> None:
        self._call_keys, self._enqueues, self._options, self._now = call_keys, enqueues, options, now
        self._args: list[Word] = []
        self._runs, self._begun, self._run = 0, 0, ("", "", "")

    def args(self, settlements: Sequence[Settlement], claimed: Mapping[str, ClaimedBytes]) -> list[Word]:
        """The runs, after their number."""
        for settlement in settlements:
            found = claimed.get(claim_key_of(settlement.claim))
            if found is None or not _names(settlement, found):
                self._begin("L", "", "")
            else:
                self._add(settlement, found)
        return [self._runs, *self._args]

    def _add(self, settlement: Settlement, claimed: ClaimedBytes) -> None:
        match settlement:
            case Complete():
                self._finish(settlement, claimed)
            case Requeue():
                ending = AttemptEnd(settlement.reason, settlement.error, settlement.spends, self._now)
                self._begin("R", claimed.worker, claimed.queue)
                raw = requeued(claimed, ending, claimed.claim_key, self._options)
                self._args += (claimed.claim_key, raw, in_ms(settlement.delay))
            case DeadLetterJob():
                ending = AttemptEnd(settlement.reason, settlement.error, settlement.spends, self._now)
                self._dead_letter(claimed, ending)

    def _finish(self, finish: Complete, claimed: ClaimedBytes) -> None:
        wire = claimed.wire
        assert wire is not None, "bytes that are not a job are never claimed"
        if not finish.enqueues and is_plain(wire):
            self._begin("F", claimed.worker, claimed.queue)
            self._args += (claimed.claim_key, finished(claimed, finish.result))
            return
        self._begin("S", claimed.worker, claimed.queue, alone=True)
        kept, group = in_ms(seconds(wire.keep)), "" if wire.counted else wire.group
        self._args += (claimed.claim_key, finished(claimed, finish.result), claimed.id, group, wire.unique, kept)
        self._args += self._enqueues.runs(finish.enqueues)

    def _dead_letter(self, claimed: ClaimedBytes, ending: AttemptEnd) -> None:
        raw, text = dead_lettered(claimed, ending, self._options)
        self._begin("B", claimed.worker, claimed.queue)
        self._args += (claimed.claim_key, text, raw, claimed.id, *_group_and_unique(claimed.wire))

    def _begin(self, kind: str, worker: str, queue: str, *, alone: bool = False) -> None:
        """Counts one more item, in the current run if it is of the same kind."""
        if self._run == (kind, worker, queue) and not alone:
            self._args[self._begun] = int(self._args[self._begun]) + 1
            return
        first_keys = (0, 0) if kind == "L" else (self._call_keys.worker(worker), self._call_keys.queue(queue))
        self._args += (kind, *first_keys, queue, 1)
        self._runs, self._begun, self._run = self._runs + 1, len(self._args) - 1, (kind, worker, queue)


def _names(settlement: Settlement, claimed: ClaimedBytes) -> bool:
    """Whether the settlement is about this job; bytes that are not a job can only be released or dead-lettered."""
    if claimed.wire is None:
        return not isinstance(settlement, Complete)
    return claimed.id == settlement.claim.id


def outcomes(answer: bytes) -> tuple[Outcome, ...]:
    """The script's answer."""
    return tuple([_OUTCOMES[letter] for letter in answer])


def heartbeat_keys(keys: RedisKeys, worker: str) -> list[str]:
    """KEYS of the script."""
    processing, heartbeat = keys.processing(worker), keys.heartbeat(worker)
    return [keys.held, keys.workers, keys.workers_info, processing, heartbeat, keys.progress]


def heartbeat_args(
    worker: WorkerInfo, claims: Sequence[Claim], heartbeat_timeout: timedelta, progress: Mapping[str, Progress]
) -> list[Word]:
    """ARGV of the script."""
    told: list[Word] = []
    for claim in claims if progress else ():
        found = progress.get(claim.id)
        if found is not None:
            told += (claim_key_of(claim), claim.id, f"{found.fraction!r} {found.note}")
    known = f"{worker.pid} {worker.slots} {worker.host}"
    return [worker.id, in_ms(heartbeat_timeout), known, len(told) // 3, *told, *map(claim_key_of, claims)]


def read_heartbeat(answer: list[Any]) -> HeartbeatAnswer:
    """The script's answer."""
    now, mine = answer
    return HeartbeatAnswer(tuple([letter == 49 for letter in mine]), from_ms(now))


def read_worker(id: bytes, text: bytes) -> WorkerState | None:
    """A worker's row; None for one that another program wrote, which decides nothing."""
    try:
        heartbeat_at, until, pid, slots, host = text.decode().split(" ", 4)
        info = WorkerInfo(id.decode(), host, integer(pid), integer(slots))
        return WorkerState(info, from_ms(integer(heartbeat_at)), from_ms(integer(until)))
    except ValueError:
        return None


def read_progress(text: bytes) -> Progress | None:
    """The last progress of a handler; None if another program wrote it."""
    try:
        at, fraction, note = text.decode("utf-8", "replace").split(" ", 2)
        share = float(fraction)
        return Progress(share if 0 <= share <= 1 else 0.0, note, from_ms(integer(at)))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class _RunningClaim:
    """A running job, and whether its worker's heartbeat is checked beside the deadline."""

    claimed: ClaimedBytes
    foreign: bool


@dataclass(frozen=True, slots=True)
class _Known:
    """The stored state of the jobs of a batch: running or dead ones by claim, the claim of each id."""

    claimed: Mapping[str, _RunningClaim]
    dead: Mapping[str, FinishedText]
    where: Mapping[str, str]
    waiting: Mapping[str, WaitingJob]


async def move(client: RedisClient, keys: RedisKeys, moves: Sequence[Move]) -> tuple[Outcome, ...]:
    """Makes the moves, in two round trips if no waiting job is cancelled and the jobs are small."""
    try:
        ends = await _tried(client, keys, moves)
    except ReplyTooLarge:  # nothing was moved: the jobs are read first
        if len(moves) == 1:
            raise
        half = len(moves) // 2
        return (*await move(client, keys, moves[:half]), *await move(client, keys, moves[half:]))
    for _ in range(_CANCEL_TRIES - 1):
        again = [n for n, move in enumerate(moves) if isinstance(move, Cancel) and ends[n] is None]
        if not again:
            break
        for n, outcome in zip(again, await _tried(client, keys, [moves[n] for n in again]), strict=True):
            ends[n] = outcome
    return tuple(Outcome.CONFLICT if end is None else end for end in ends)


async def _tried(client: RedisClient, keys: RedisKeys, moves: Sequence[Move]) -> list[Outcome | None]:
    """The outcomes; None for a cancel whose job existed, but moved before the script ran."""
    now, first, known = await _read(client, keys, moves)
    queues = await known_queues(client, keys) if any(isinstance(each, RequeueDead) for each in moves) else []
    router = Router(client.options, queues)
    ends: list[Outcome | None] = []
    while len(ends) < len(moves):
        arguments = _MoveArguments(CallKeys(keys, keys.shared), router, now, first + len(ends))
        ends += await _sent(client, arguments, moves[len(ends) :], known)
    return ends


async def _sent(
    client: RedisClient, arguments: _MoveArguments, moves: Sequence[Move], known: _Known
) -> list[Outcome | None]:
    """The outcomes of as many moves as one script makes: the server does nothing else meanwhile."""
    sent: list[bool] = []
    for each in moves:
        if arguments.bytes > SCRIPT_BYTES_MAX:
            break
        sent.append(arguments.add(each, known))
    run = client.run(load("move"), arguments.call_keys.keys, [sum(sent), *arguments.args]) if any(sent) else None
    answer = iter(outcomes(await run)) if run is not None else iter(())
    ends: list[Outcome | None] = []
    for each, was_sent in zip(moves, sent, strict=False):
        outcome = next(answer) if was_sent else Outcome.CONFLICT
        followed = isinstance(each, Cancel) and was_sent and outcome is Outcome.CONFLICT
        ends.append(None if followed else outcome)
    return ends


async def _read(client: RedisClient, keys: RedisKeys, moves: Sequence[Move]) -> tuple[int, int, _Known]:
    """The time (ms), the first of as many new tokens as there are moves, and the stored state of the jobs."""
    ids = list(dict.fromkeys(move.id for move in moves if isinstance(move, Cancel)))
    claimed = [claim_key_of(move.claim) for move in moves if isinstance(move, Requeue | DeadLetterJob)]
    dead = [claim_key_of(move.claim) for move in moves if isinstance(move, RequeueDead)]
    # A retried read skips some tokens: they only have to grow.
    commands: list[Sequence[Word]] = [("TIME",), ("INCRBY", keys.token, len(moves))]
    commands += [("HMGET", key, *names) for key, names in _reads(keys, ids, claimed, dead)]
    time, last, *replies = await client.ask_many(commands)
    stored = dict(zip([key for key, _ in _reads(keys, ids, claimed, dead)], replies, strict=True))
    where = {
        id: text_of(claim_key)
        for id, claim_key in zip(ids, stored.get(keys.where, ()), strict=False)
        if claim_key is not None
    }
    texts = dict(zip(claimed, stored.get(keys.holds, ()), strict=False))
    if where:
        claim_keys = list(where.values())
        texts |= dict(zip(claim_keys, await client.ask("HMGET", keys.holds, *claim_keys), strict=True))
    holds = {claim_key: _running_claim(claim_key, text) for claim_key, text in texts.items() if text is not None}
    missing = [id for id in ids if id not in where or where[id] not in holds]
    found = await find_waiting(client, keys, missing) if missing else {}
    finished = zip(dead, stored.get(keys.finished, ()), strict=False)
    dead_ones = {claim_key: read_finished(text) for claim_key, text in finished if text is not None}
    return client.time_in(time) // 1_000, int(last) - len(moves) + 1, _Known(holds, dead_ones, where, found)


def _reads(keys: RedisKeys, ids: list[str], claimed: list[str], dead: list[str]) -> list[tuple[str, list[str]]]:
    wanted = [(keys.where, ids), (keys.holds, claimed), (keys.finished, dead)]
    return [(key, names) for key, names in wanted if names]


def _running_claim(claim_key: str, text: bytes) -> _RunningClaim:
    hold = read_claim(text)
    wire = decode(hold.bytes)
    id = text_of(hold.id) if wire is None else wire.id
    claimed = ClaimedBytes(claim_key, text_of(hold.worker), text_of(hold.queue), id, hold.claimed_at, hold.bytes, wire)
    return _RunningClaim(claimed, bool(hold.flags & Flag.FOREIGN))


class _MoveArguments:
    """Writes the moves of one call as arguments."""

    def __init__(self, call_keys: CallKeys, router: Router, now: int, first: int) -> None:
        self.call_keys = call_keys
        self.args: list[Word] = []
        self._measured = self._bytes = 0
        self._router = router
        self._now = now
        self._token = first

    @property
    def bytes(self) -> int:
        """The size of the jobs so far."""
        self._bytes += sum(len(word) for word in self.args[self._measured :] if isinstance(word, bytes))
        self._measured = len(self.args)
        return self._bytes

    def add(self, move: Move, known: _Known) -> bool:
        """Whether there is anything to move."""
        token, self._token = self._token, self._token + 1
        match move:
            case Requeue() | DeadLetterJob():
                claimed = known.claimed.get(claim_key_of(move.claim))
                if claimed is None:
                    return False
                ending = AttemptEnd(move.reason, move.error, move.spends, self._now)
                claim_key = f"{token}-{move.claim.nonce}"
                if isinstance(move, Requeue):
                    self._requeue(claimed, ending, claim_key, in_ms(move.delay))
                else:
                    self._dead_letter("B", claimed, ending, claim_key)
            case RequeueDead():
                dead = known.dead.get(claim_key_of(move.claim))
                if dead is None:
                    return False
                self._requeue_dead(dead, claim_key_of(move.claim), f"{token}-{move.claim.nonce}", in_ms(move.delay))
            case Cancel():
                return self._cancel(move, known, token)
        return True

    def _requeue(self, running: _RunningClaim, ending: AttemptEnd, claim_key: str, delay: int) -> None:
        claimed, name = running.claimed, running.claimed.queue
        raw = requeued(claimed, ending, claim_key, self._router.options)
        self.args += ("R", claimed.claim_key, self.call_keys.worker(claimed.worker), int(running.foreign), name)
        self.args += (self.call_keys.queue(name), name, raw, delay)

    def _dead_letter(self, kind: str, running: _RunningClaim, ending: AttemptEnd, claim_key: str) -> None:
        claimed = running.claimed
        raw, text = dead_lettered(claimed, ending, self._router.options)
        worker = self.call_keys.worker(claimed.worker)
        self.args += (kind, claimed.claim_key, worker, int(running.foreign), claimed.queue)
        self.args += (text, raw, claimed.id, *_group_and_unique(claimed.wire), claim_key)

    def _requeue_dead(self, dead: FinishedText, claim_key: str, new_claim_key: str, delay: int) -> None:
        wire = decode(dead.bytes)
        counted = text_of(dead.queue)
        queue = self._router.back_to(wire, counted)
        unique = "" if wire is None or wire.window else wire.unique
        self.args += ("V", claim_key, dead.bytes, dead.id, unique, counted, self.call_keys.queue(queue), queue)
        self.args += (requeued_dead(dead, wire, new_claim_key), delay)

    def _cancel(self, cancel: Cancel, known: _Known, token: int) -> bool:
        claimed = known.claimed.get(known.where.get(cancel.id, ""))
        if claimed is not None:
            ending = AttemptEnd(Reason.CANCELLED, cancel.error, None, self._now)
            self._dead_letter("C", claimed, ending, f"{token}-{claimed.claimed.claim_key.partition('-')[2]}")
            return True
        found = known.waiting.get(cancel.id)
        wire = None if found is None else decode(found.bytes)
        if found is None or wire is None:
            return False
        raw, text = cancelled(found.bytes, wire, found.queue, cancel.error, self._now, self._router.options)
        self.args += ("W", self.call_keys.queue(found.queue), found.queue, found.kind, found.entry, found.at)
        self.args += (text, raw, wire.id, *_group_and_unique(wire), f"{token}-{wire.nonce}")
        return True


def _group_and_unique(wire: JobFields | None) -> tuple[str, str]:
    """The group that a finished job is counted in, and the unique name that it releases."""
    return ("", "") if wire is None else ("" if wire.counted else wire.group, wire.unique)


async def delete(
    client: RedisClient, keys: RedisKeys, deletes: Sequence[Delete], ids_kept: timedelta
) -> tuple[Outcome, ...]:
    """Deletes each that still has its state and token."""
    ids = list(dict.fromkeys(each.claim.id for each in deletes if each.state is JobState.READY))
    waiting = await find_waiting(client, keys, ids) if ids else {}
    call_keys = CallKeys(keys, keys.shared)
    items = [_item(each, call_keys, waiting) for each in deletes]
    left = [item for item in items if item]
    ends: list[Outcome] = []
    while left:
        sent = left[: _fitting(left)]
        args = [in_ms(ids_kept), SCRIPT_BYTES_MAX, len(sent), *(word for item in sent for word in item)]
        some = outcomes(await client.run(load("delete"), call_keys.keys, args))
        if not 0 < len(some) <= len(sent):
            raise ValueError(f"{len(some)} outcomes of {len(sent)} deletes")
        ends += some
        del left[: len(some)]  # the script ends early if finished jobs are large
    answer = iter(ends)
    return tuple(next(answer) if item else Outcome.CONFLICT for item in items)


def _fitting(items: Sequence[Sequence[Word]]) -> int:
    """How many of these one script deletes."""
    size = 0
    for count, item in enumerate(items):
        if size > SCRIPT_BYTES_MAX:
            return count
        size += sum(len(word) for word in item if isinstance(word, bytes))
    return len(items)


def _item(each: Delete, call_keys: CallKeys, waiting: Mapping[str, WaitingJob]) -> tuple[Word, ...]:
    """The arguments of one delete; none if there is nothing to delete."""
    if each.state in _FINISHED_KINDS:
        return _FINISHED_KINDS[each.state], claim_key_of(each.claim)
    found = waiting.get(each.claim.id) if each.state is JobState.READY else None
    wire = None if found is None else decode(found.bytes)
    if found is None or wire is None or (wire.token, wire.nonce) != (each.claim.token, each.claim.nonce):
        return ()
    first = call_keys.queue(found.queue)
    return "W", first, found.kind, found.entry, found.at, wire.id, *_group_and_unique(wire)
