"""One beat: everything on the board that still deserves one, and the worker itself.

A hold deserves a beat until its handler's time is up: a job whose worker hangs must fall silent. A hold that was taken
a moment ago does not need one yet, which spares a fast worker a write for each of its jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from wrasse.jobs.board import Board, Posted
from wrasse.ports.jobs import BATCH_MAX, JobQueue, WorkerInfo

BEATS_PER_SILENCE = 3
_YOUNG = 0.1  # of a silence: beaten at the next look at the latest, when more than half of it is left


def deserving(posted: Sequence[Posted], silence: timedelta, now: float) -> list[Posted]:
    """Which postings get a beat; pure."""
    young = silence.total_seconds() * _YOUNG
    return [p for p in posted if now < p.deadline and now - p.since >= young]


async def beat_once(jobs: JobQueue, board: Board, worker: WorkerInfo, silence: timedelta, now: float) -> list[Posted]:
    """Beats for what deserves it; gives the postings whose hold is no longer current."""
    posted = deserving(board.read(), silence, now)
    gone: list[Posted] = []
    for start in range(0, max(len(posted), 1), BATCH_MAX):
        batch = posted[start : start + BATCH_MAX]
        beaten = await jobs.beat(worker, [p.hold for p in batch], silence=silence)
        gone += [p for p, mine in zip(batch, beaten.mine, strict=True) if not mine]
    return gone
