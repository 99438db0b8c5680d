"""Beats: holds and workers live on to `silence` from now. For the writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import msgspec

from wrasse.backends.sqlite.bulk import numbers
from wrasse.backends.sqlite.drops import facts_of
from wrasse.backends.sqlite.rows import span
from wrasse.backends.sqlite.step import HELD, Step
from wrasse.clock import from_micros
from wrasse.ports.jobs import Beaten, Hold, Progress, WorkerInfo

SILENT_WORKERS_KEPT = timedelta(hours=1)

_BEAT = "UPDATE jobs SET beat_at = ?, until = ? WHERE seq IN carray(?)"
_WORKER = """
    INSERT INTO workers (id, host, pid, slots, beat_at, until) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET
      host = excluded.host, pid = excluded.pid, slots = excluded.slots,
      beat_at = excluded.beat_at, until = excluded.until
"""


def beat(
    step: Step, worker: WorkerInfo, holds: Sequence[Hold], silence: int, progress: Mapping[str, Progress]
) -> Beaten:
    """Extends the holds that are current, and the worker; or says goodbye."""
    now = step.now()
    facts = facts_of(step, [hold.id for hold in holds])
    found = [facts.get(hold.id) for hold in holds]
    mine = tuple(
        fact is not None and fact.place == HELD and fact.held_by(hold)
        for fact, hold in zip(found, holds, strict=True)
    )
    if silence <= 0:
        step.db.execute("DELETE FROM workers WHERE id = ?", (worker.id,))
        return Beaten(mine, from_micros(now))
    until = now + silence
    if seqs := [fact.seq for fact, good in zip(found, mine, strict=True) if good and fact is not None]:
        step.db.execute(_BEAT, (now, until, numbers(seqs)))
    for fact, good in zip(found, mine, strict=True) if progress else ():
        if good and fact is not None and (told := progress.get(fact.id)) is not None:
            text = msgspec.json.encode((told.fraction, told.note, now)).decode()
            step.db.execute("UPDATE jobs SET progress = ? WHERE seq = ?", (text, fact.seq))
    step.db.execute(_WORKER, (worker.id, worker.host, worker.pid, worker.slots, now, until))
    step.db.execute("DELETE FROM workers WHERE until < ?", (now - span(SILENT_WORKERS_KEPT),))
    # Somebody has to, now and then: queues that were used once must not stay for ever.
    step.db.execute("DELETE FROM counts WHERE n = 0")
    return Beaten(mine, from_micros(now))
