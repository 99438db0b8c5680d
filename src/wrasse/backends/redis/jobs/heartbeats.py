"""What a beat sends, and what the worker's row says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.jobs.enqueue import in_ms
from wrasse.backends.redis.jobs.job_json import from_ms
from wrasse.backends.redis.jobs.settle import take_of
from wrasse.backends.redis.keys import RedisKeys
from wrasse.bounded import integer
from wrasse.ports.jobs import Claim, HeartbeatAnswer, Progress, WorkerInfo, WorkerState


def beat_keys(keys: RedisKeys, worker: str) -> list[str]:
    """KEYS of the script."""
    processing, heartbeat = keys.processing(worker), keys.heartbeat(worker)
    return [keys.held, keys.workers, keys.workers_info, processing, heartbeat, keys.progress]


def beat_args(
    worker: WorkerInfo, holds: Sequence[Claim], silence: timedelta, progress: Mapping[str, Progress]
) -> list[Word]:
    """ARGV of the script."""
    told: list[Word] = []
    for hold in holds if progress else ():
        found = progress.get(hold.id)
        if found is not None:
            told += (take_of(hold), hold.id, f"{found.fraction!r} {found.note}")
    known = f"{worker.pid} {worker.slots} {worker.host}"
    return [worker.id, in_ms(silence), known, len(told) // 3, *told, *map(take_of, holds)]


def beaten(answer: list[Any]) -> HeartbeatAnswer:
    """What the script answered."""
    now, mine = answer
    return HeartbeatAnswer(tuple([letter == 49 for letter in mine]), from_ms(now))


def read_worker(id: bytes, text: bytes) -> WorkerState | None:
    """A worker's row; None for one that something else wrote: nothing is decided by it."""
    try:
        beat_at, until, pid, slots, host = text.decode().split(" ", 4)
        info = WorkerInfo(id.decode(), host, integer(pid), integer(slots))
        return WorkerState(info, from_ms(integer(beat_at)), from_ms(integer(until)))
    except ValueError:
        return None


def read_progress(text: bytes) -> Progress | None:
    """What a handler told last; None for what something else wrote."""
    try:
        at, fraction, note = text.decode("utf-8", "replace").split(" ", 2)
        share = float(fraction)
        return Progress(share if 0 <= share <= 1 else 0.0, note, from_ms(integer(at)))
    except ValueError:
        return None
