"""The arguments of a settle: the ends of attempts, as runs of one kind, worker and queue.

The process that claimed a job has its bytes; for one that was claimed by another process, or before a restart, they are
read first. A claim that does not exist is sent all the same: on a retry the first answer counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.jobs.changes import AttemptEnd, ClaimedBytes, dead_lettered, finished, requeued
from wrasse.backends.redis.jobs.enqueue import CallKeys, EnqueueArguments, in_ms
from wrasse.backends.redis.jobs.job_json import is_plain, seconds
from wrasse.backends.redis.options import RedisOptions
from wrasse.ports.jobs import Claim, Complete, DeadLetterJob, Requeue, Settlement
from wrasse.ports.outcome import Outcome

_OUTCOMES = {ord("d"): Outcome.DONE, ord("l"): Outcome.CONFLICT}


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
                self._dead_letter(
                    claimed, AttemptEnd(settlement.reason, settlement.error, settlement.spends, self._now)
                )

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
        wire = claimed.wire
        raw, text = dead_lettered(claimed, ending, self._options)
        self._begin("B", claimed.worker, claimed.queue)
        group = "" if wire is None or wire.counted else wire.group
        self._args += (claimed.claim_key, text, raw, claimed.id, group, "" if wire is None else wire.unique)

    def _begin(self, kind: str, worker: str, queue: str, *, alone: bool = False) -> None:
        """Counts one more item, in the current run if it is of the same kind."""
        if self._run == (kind, worker, queue) and not alone:
            self._args[self._begun] = int(self._args[self._begun]) + 1
            return
        places: tuple[Word, Word] = (0, 0)
        if kind != "L":
            places = (self._call_keys.worker(worker), self._call_keys.queue(queue))
        self._args += (kind, *places, queue, 1)
        self._runs, self._begun, self._run = self._runs + 1, len(self._args) - 1, (kind, worker, queue)


def _names(settlement: Settlement, claimed: ClaimedBytes) -> bool:
    """Whether the settlement is about this job; bytes that are not a job can only be released or dead-lettered."""
    if claimed.wire is None:
        return not isinstance(settlement, Complete)
    return claimed.id == settlement.claim.id


def outcomes(answer: bytes) -> tuple[Outcome, ...]:
    """The script's answer."""
    return tuple([_OUTCOMES[letter] for letter in answer])
