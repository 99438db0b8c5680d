"""The arguments and the answer of a heartbeat, and the row of a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from wrasse.backends.redis.client.transport import Word
from wrasse.backends.redis.jobs.enqueue import in_ms
from wrasse.backends.redis.jobs.job_json import from_ms
from wrasse.backends.redis.jobs.settle import claim_key_of
from wrasse.backends.redis.keys import RedisKeys
from wrasse.bounded import integer
from wrasse.ports.jobs import Claim, HeartbeatAnswer, Progress, WorkerInfo, WorkerState


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
