"""Groups of jobs: members are counted as they finish, and the last one makes the callback ready. For the writer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from wrasse.backends.sqlite.bulk import numbers
from wrasse.backends.sqlite.rows import Fact, span
from wrasse.backends.sqlite.write_transaction import WriteTransaction
from wrasse.ports.jobs import GROUP_DEAD_HEADER, GROUP_DONE_HEADER, GROUP_HEADER, GROUPS_KEPT, Job, JobGroup

_OPEN = """
    INSERT INTO teams (id, seen_at, size, callback) VALUES (?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET size = excluded.size, callback = excluded.callback WHERE size IS NULL
"""
_COUNT = """
    INSERT INTO teams (id, seen_at, done, dead) VALUES (?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET done = done + excluded.done, dead = dead + excluded.dead
"""
_FIRE = """
    UPDATE teams SET fired = 1 WHERE id = ? AND NOT fired AND size IS NOT NULL AND done + dead >= size
    RETURNING callback, done, dead
"""
_FORGET = """
    DELETE FROM teams WHERE id IN (
      SELECT id FROM teams WHERE seen_at < ? AND (fired OR size IS NULL) ORDER BY seen_at LIMIT 2)
"""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Job).decode

Enqueue = Callable[[WriteTransaction, Sequence[Job], int], object]


def open_all(tx: WriteTransaction, groups: Sequence[JobGroup], now: int, enqueue: Enqueue) -> None:
    """Opens groups that are not known, and enqueues the callback if all members have finished already."""
    for group in groups:
        tx.db.execute(_FORGET, (now - span(GROUPS_KEPT),))
        tx.db.execute(_OPEN, (group.id, now, group.size, _encode(group.callback)))
        _fire(tx, group.id, now, enqueue)


def count(tx: WriteTransaction, finished: Sequence[tuple[Fact, bool]], now: int, enqueue: Enqueue) -> None:
    """Counts members that finished (True: done), each once, and enqueues the callbacks of complete groups."""
    members = [(fact, done) for fact, done in finished if fact.member_of is not None]
    if not members:
        return
    tx.db.execute("UPDATE jobs SET member = 0 WHERE seq IN carray(?)", (numbers(fact.seq for fact, _ in members),))
    ends = Counter((fact.member_of, done) for fact, done in members)
    for member_of in dict.fromkeys(fact.member_of for fact, _ in members):
        assert member_of is not None, "only members are counted"
        tx.db.execute(_COUNT, (member_of, now, ends[member_of, True], ends[member_of, False]))
        _fire(tx, member_of, now, enqueue)


def _fire(tx: WriteTransaction, id: str, now: int, enqueue: Enqueue) -> None:
    found = list(tx.db.execute(_FIRE, (id,)))
    for callback, done, dead in found:
        job = _decode(callback)
        told = {GROUP_HEADER: id, GROUP_DONE_HEADER: str(done), GROUP_DEAD_HEADER: str(dead)}
        enqueue(tx, [replace(job, headers={**job.headers, **told})], now)
