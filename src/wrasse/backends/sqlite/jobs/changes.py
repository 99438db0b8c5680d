"""What changes jobs after their claim: heartbeat, settle, move and delete. For the writer.

All facts are read first, in one statement; the changes are decided from them in the order of the batch; then they are
written, in a few statements. All of it is in one write transaction. Members of a group are counted as they finish, and
the last one makes the callback ready.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import apsw
import msgspec

from wrasse.backends.sqlite.jobs.enqueue import enqueue, promote
from wrasse.backends.sqlite.rows import (
    FACT,
    INLINE_BYTES_MAX,
    STATES,
    Fact,
    Invalid,
    decode_facts,
    flaw_of,
    span,
)
from wrasse.backends.sqlite.write_transaction import (
    DEAD,
    DONE,
    READY,
    RUNNING,
    SCHEDULED,
    WriteTransaction,
    decode_numbers,
    decode_texts,
    numbers,
    texts,
    write_rows,
)
from wrasse.bounded import UNREADABLE
from wrasse.clock import from_micros
from wrasse.ports.jobs import (
    BATCH_MAX,
    GROUP_DEAD_HEADER,
    GROUP_DONE_HEADER,
    GROUP_HEADER,
    GROUPS_KEPT,
    HISTORY_MAX,
    IDS_KEPT,
    Budget,
    Cancel,
    Claim,
    Complete,
    DeadLetterJob,
    Delete,
    HeartbeatAnswer,
    Job,
    JobGroup,
    JobState,
    Move,
    Progress,
    Reason,
    Requeue,
    RequeueDead,
    Settlement,
    WorkerInfo,
    error_text,
)
from wrasse.ports.outcome import Outcome

_OPEN_GROUP = """
    INSERT INTO teams (id, seen_at, size, callback) VALUES (?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET size = excluded.size, callback = excluded.callback WHERE size IS NULL
"""
_COUNT_MEMBERS = """
    INSERT INTO teams (id, seen_at, done, dead) VALUES (?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET done = done + excluded.done, dead = dead + excluded.dead
"""
_FIRE_GROUP = """
    UPDATE teams SET fired = 1 WHERE id = ? AND NOT fired AND size IS NOT NULL AND done + dead >= size
    RETURNING callback, done, dead
"""
_FORGET_GROUPS = """
    DELETE FROM teams WHERE id IN (
      SELECT id FROM teams WHERE seen_at < ? AND (fired OR size IS NULL) ORDER BY seen_at LIMIT 2)
"""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Job).decode

DEAD_WORKERS_KEPT = timedelta(hours=1)

_HEARTBEAT = "UPDATE jobs SET heartbeat_at = ?, deadline = ? WHERE seq IN carray(?)"
_WORKER = """
    INSERT INTO workers (id, host, pid, slots, heartbeat_at, deadline) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET
      host = excluded.host, pid = excluded.pid, slots = excluded.slots,
      heartbeat_at = excluded.heartbeat_at, deadline = excluded.deadline
"""


_FROM_OLDEST_DONE = """
    FROM (SELECT * FROM jobs WHERE state >= 3 AND state = 3 AND finished_at + keep <= ?
      ORDER BY finished_at + keep, seq LIMIT ?)
"""
SELECT_OLDEST_DONE = f"""
    SELECT json_group_array(seq), CAST(json_group_array(queue) AS BLOB), max(size), max(attempts), max(lasting)
    {_FROM_OLDEST_DONE}
"""
_FACTS = f"CAST(json_group_array({FACT}) AS BLOB)"
_OLDEST_DONE_FACTS = f"SELECT {_FACTS} {_FROM_OLDEST_DONE}"
_FORGET_IDS = "DELETE FROM ids WHERE id IN (SELECT id FROM ids WHERE forget_at <= ? ORDER BY forget_at LIMIT ?)"
SELECT_CURRENT = """
    SELECT json_group_array(seq), CAST(json_group_array(queue) AS BLOB), max(member) FROM jobs
    WHERE id IN carray(?) AND state = 2 AND token = ? AND nonce = ?
"""
_RUNNING_FACT = f"SELECT {_FACTS} FROM jobs WHERE seq = ? AND state = 2 AND token = ? AND nonce = ?"
_GRANTS_MAX = 8  # different claims in one batch; with more it is cheaper to read all jobs at once
UPDATE_DONE = "UPDATE jobs SET state = 3, deadline = NULL, finished_at = ? WHERE seq IN carray(?)"
_RESULTS = ") UPDATE jobs SET result = one.result FROM one WHERE jobs.seq = one.seq"
_CHANGES = (
    "WITH one (seq, state, rank, ready_at, token, failures, rescues, interruptions, finished_at, reason, error) AS ("
)
# A ready job has no worker; a dead job keeps its last one.
_CHANGED = """) UPDATE jobs SET
      state = one.state, rank = one.rank, ready_at = coalesce(one.ready_at, jobs.ready_at), deadline = NULL,
      token = one.token, failures = one.failures, rescues = one.rescues, interruptions = one.interruptions,
      finished_at = one.finished_at, reason = one.reason, error = one.error,
      worker = iif(one.state = 4, jobs.worker, ''),
      claimed_at = iif(one.state = 4, jobs.claimed_at, NULL),
      heartbeat_at = iif(one.state = 4, jobs.heartbeat_at, NULL)
    FROM one WHERE jobs.seq = one.seq"""
_NOTE_ATTEMPTS = "INSERT OR REPLACE INTO attempts (seq, number, worker, claimed_at, ended_at, reason, error)"
_FORGET_ATTEMPTS = """
    DELETE FROM attempts WHERE (seq, number) IN (
      SELECT seq, number FROM attempts WHERE seq = ?1 ORDER BY number DESC LIMIT -1 OFFSET ?2)
"""


@dataclass(frozen=True, slots=True)
class RowChange:
    """The new values of a row, except those that follow from its state."""

    fact: Fact
    state: int
    reason: Reason | None = None
    error: str = ""
    spends: Budget | None = None
    delay: int = 0
    front: bool = False
    token: int | None = None  # None: unchanged
    fresh: bool = False  # failures and rescues start again

    @property
    def noted(self) -> bool:
        """Whether an attempt ends with it."""
        return self.fact.state == RUNNING


def heartbeat(
    tx: WriteTransaction,
    worker: WorkerInfo,
    claims: Sequence[Claim],
    heartbeat_timeout: int,
    progress: Mapping[str, Progress],
) -> HeartbeatAnswer:
    """Extends the current claims, and the worker; or deregisters it."""
    now = tx.now()
    facts = facts_of(tx, [claim.id for claim in claims])
    found = [facts.get(claim.id) for claim in claims]
    mine = tuple(
        fact is not None and fact.state == RUNNING and fact.held_by(claim)
        for fact, claim in zip(found, claims, strict=True)
    )
    if heartbeat_timeout <= 0:
        tx.db.execute("DELETE FROM workers WHERE id = ?", (worker.id,))
        return HeartbeatAnswer(mine, from_micros(now))
    deadline = now + heartbeat_timeout
    if seqs := [fact.seq for fact, good in zip(found, mine, strict=True) if good and fact is not None]:
        tx.db.execute(_HEARTBEAT, (now, deadline, numbers(seqs)))
    for fact, good in zip(found, mine, strict=True) if progress else ():
        if good and fact is not None and (told := progress.get(fact.id)) is not None:
            text = msgspec.json.encode((told.fraction, told.note, now)).decode()
            tx.db.execute("UPDATE jobs SET progress = ? WHERE seq = ?", (text, fact.seq))
    tx.db.execute(_WORKER, (worker.id, worker.host, worker.pid, worker.slots, now, deadline))
    tx.db.execute("DELETE FROM workers WHERE deadline < ?", (now - span(DEAD_WORKERS_KEPT),))
    # Cleaned up here: queues that were used once must not stay for ever.
    tx.db.execute("DELETE FROM counts WHERE n = 0")
    return HeartbeatAnswer(mine, from_micros(now))


def facts_of(tx: WriteTransaction, ids: Sequence[str]) -> dict[str, Fact]:
    """The facts about these jobs, by id."""
    if not ids:
        return {}
    found = tx.db.execute(f"SELECT {_FACTS} FROM jobs WHERE id IN carray(?)", (texts(ids),)).get
    return {fact.id: fact for fact in decode_facts(found)}


def settle(tx: WriteTransaction, settlements: Sequence[Settlement], now: int, done_max: int) -> list[Outcome]:
    """Ends attempts, by their worker."""
    all_done = _finish_all(tx, settlements, now)
    outcomes = [Outcome.DONE] * len(settlements) if all_done else _settle_each(tx, settlements, now)
    trim_done(tx, done_max, now)
    return outcomes


def _finish_all(tx: WriteTransaction, settlements: Sequence[Settlement], now: int) -> bool:
    """The common case: all of them finish without a result, and every claim is current. False, and nothing done, in any
    other case."""
    held: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    for one in settlements:
        if type(one) is not Complete or one.result is not None or one.enqueues:
            return False
        claim = one.claim
        held[claim.token, claim.nonce].append(claim.id)
    if not 0 < len(held) <= _GRANTS_MAX:
        return False
    # All jobs of one claim have one token and one nonce, so there are few of these.
    seqs: list[int] = []
    queues: Counter[str] = Counter()
    for (token, nonce), ids in held.items():
        found, where, member = tx.db.execute(SELECT_CURRENT, (texts(ids), token, nonce)).get
        if member:
            return False
        seqs += decode_numbers(found)
        queues.update(decode_texts(where))
    if len(seqs) < len(settlements):
        return False
    tx.db.execute(UPDATE_DONE, (now, numbers(seqs)))
    for queue, count in queues.items():
        tx.moved(queue, RUNNING, DONE, count)
    return True


def _settle_each(tx: WriteTransaction, settlements: Sequence[Settlement], now: int) -> list[Outcome]:
    facts = facts_of(tx, [one.claim.id for one in settlements])
    outcomes: list[Outcome] = []
    finished: list[tuple[Fact, bytes | None]] = []
    changes: list[RowChange] = []
    puts: list[Job] = []
    for one in settlements:
        fact = facts.get(one.claim.id)
        if fact is None or fact.state != RUNNING or not fact.held_by(one.claim):
            outcomes.append(Outcome.CONFLICT)
            continue
        del facts[fact.id]  # a second settlement of the same claim comes too late
        outcomes.append(Outcome.DONE)
        match one:
            case Complete():
                finished.append((fact, one.result))
                puts += one.enqueues
            case Requeue():
                changes.append(_requeue(fact, one, None))
            case DeadLetterJob():
                changes.append(RowChange(fact, DEAD, one.reason, one.error, one.spends))
    _finish(tx, finished, now)
    _write(tx, changes, now)
    _count_members(tx, [(fact, True) for fact, _ in finished], now)
    enqueue(tx, puts, now)
    return outcomes


def dead_letter_invalid(tx: WriteTransaction, invalid: Sequence[Invalid], token: int, nonce: str) -> None:
    """Dead-letters rows that a claim found invalid. One whose id cannot be read stays running, and is not claimed
    again."""
    changes: list[RowChange] = []
    for one in invalid:
        try:
            facts = decode_facts(tx.db.execute(_RUNNING_FACT, (one.seq, token, nonce)).get)
        except UNREADABLE:
            continue
        changes += [RowChange(fact, DEAD, Reason.INVALID_PAYLOAD, flaw_of(one.seq, one.error)) for fact in facts]
    _write(tx, changes, tx.now())


def move(tx: WriteTransaction, moves: Sequence[Move]) -> list[Outcome]:
    """Moves jobs, by anyone but their worker."""
    now = tx.now()
    promote(tx, now)
    facts = facts_of(tx, [one.id if isinstance(one, Cancel) else one.claim.id for one in moves])
    outcomes: list[Outcome] = []
    changes: list[RowChange] = []
    for one in moves:
        change = _move(facts, one, now, tx)
        outcomes.append(Outcome.CONFLICT if change is None else Outcome.DONE)
        if change is not None:
            del facts[change.fact.id]
            changes.append(change)
    _write(tx, changes, now)
    return outcomes


def _move(facts: dict[str, Fact], one: Move, now: int, tx: WriteTransaction) -> RowChange | None:
    """The change, if the move's condition holds."""
    fact = facts.get(one.id if isinstance(one, Cancel) else one.claim.id)
    if fact is None:
        return None
    if isinstance(one, Cancel):
        return RowChange(fact, DEAD, Reason.CANCELLED, one.error, token=tx.draw()) if fact.state <= RUNNING else None
    if not fact.held_by(one.claim):
        return None
    if isinstance(one, RequeueDead):
        delay = span(one.delay)
        return RowChange(fact, READY, delay=delay, token=tx.draw(), fresh=True) if fact.state == DEAD else None
    if fact.state != RUNNING or fact.deadline is None or fact.deadline > now:
        return None
    if isinstance(one, Requeue):
        return _requeue(fact, one, tx.draw())
    return RowChange(fact, DEAD, one.reason, one.error, one.spends, token=tx.draw())


def _requeue(fact: Fact, one: Requeue, token: int | None) -> RowChange:
    delay = span(one.delay)
    return RowChange(fact, READY, one.reason, one.error, one.spends, delay, front=delay <= 0, token=token)


def _finish(tx: WriteTransaction, finished: Sequence[tuple[Fact, bytes | None]], now: int) -> None:
    if not finished:
        return
    tx.db.execute(UPDATE_DONE, (now, numbers(fact.seq for fact, _ in finished)))
    results = [(fact.seq, result) for fact, result in finished if result is not None]
    write_rows(tx.db, "WITH one (seq, result) AS (", results, _RESULTS)
    for queue, count in Counter(fact.queue for fact, _ in finished).items():
        tx.moved(queue, RUNNING, DONE, count)


def _write(tx: WriteTransaction, changes: Sequence[RowChange], now: int) -> None:
    """Writes the rows and the history of a batch of changes."""
    rows = [_row(tx, change, now) for change in changes]
    write_rows(tx.db, _CHANGES, rows, _CHANGED)
    noted = [change for change in changes if change.noted]
    write_rows(tx.db, _NOTE_ATTEMPTS, [_attempt(change, now) for change in noted])
    for change in noted:
        if change.fact.attempts > HISTORY_MAX:
            tx.db.execute(_FORGET_ATTEMPTS, (change.fact.seq, HISTORY_MAX))
    if changes:
        tx.due_changed()
    _count_members(tx, [(change.fact, False) for change in changes if change.state == DEAD], now)


def _row(tx: WriteTransaction, change: RowChange, now: int) -> tuple[apsw.SQLiteValue, ...]:
    fact, state = change.fact, change.state
    rank, ready_at = 0, None
    if state == READY:
        state = SCHEDULED if change.delay > 0 else READY
        rank = tx.draw_front() if change.front else tx.draw()
        ready_at = now + max(change.delay, 0)
    tx.moved(fact.queue, fact.state, state)
    dead = state == DEAD
    return (
        fact.seq,
        state,
        rank,
        ready_at,
        fact.token if change.token is None else change.token,
        0 if change.fresh else fact.failures + (change.spends is Budget.FAILURES),
        0 if change.fresh else fact.rescues + (change.spends is Budget.RESCUES),
        fact.interruptions + (change.spends is Budget.INTERRUPTIONS),
        now if dead else None,
        change.reason if dead else None,
        error_text(change.error) if dead else "",
    )


def _attempt(change: RowChange, now: int) -> tuple[apsw.SQLiteValue, ...]:
    fact = change.fact
    assert change.reason is not None, "an attempt that is noted ended for a reason"
    assert fact.claimed_at is not None, "an attempt begins with a claim"
    return fact.seq, fact.attempts, fact.worker, fact.claimed_at, now, change.reason, error_text(change.error)


def delete(tx: WriteTransaction, deletes: Sequence[Delete], ids_kept: int) -> list[Outcome]:
    """Removes the jobs whose state and token are still those the caller saw."""
    now = tx.now()
    facts = facts_of(tx, [one.claim.id for one in deletes])
    outcomes = []
    dropped = []
    for one in deletes:
        fact = facts.get(one.claim.id)
        if fact is None or not _deletable(fact, one, now):
            outcomes.append(Outcome.CONFLICT)
        else:
            outcomes.append(Outcome.DONE)
            dropped.append(facts.pop(fact.id))
    _drop(tx, dropped, now, ids_kept)
    _count_members(tx, [(fact, False) for fact in dropped], now)
    return outcomes


def _deletable(fact: Fact, one: Delete, now: int) -> bool:
    where_it_was = one.state is not JobState.RUNNING and STATES.get(fact.state) is one.state and fact.held_by(one.claim)
    return where_it_was and fact.kept_until <= now


def trim_done(tx: WriteTransaction, done_max: int, now: int) -> None:
    """Deletes the oldest done jobs beyond `done_max`; a backlog from a lower setting takes a few calls."""
    excess = min(tx.done() - done_max, 3 * BATCH_MAX)
    if excess <= 0:
        return
    seqs, queues, longest, tried, lasting = tx.db.execute(SELECT_OLDEST_DONE, (now, excess)).get
    if longest is None:
        return  # all results are to be kept
    if longest > INLINE_BYTES_MAX or tried > 1 or lasting:
        _drop(tx, decode_facts(tx.db.execute(_OLDEST_DONE_FACTS, (now, excess)).get), now, span(IDS_KEPT))
        return
    # The common case: these jobs have no rows in other tables.
    tx.db.execute("DELETE FROM jobs WHERE seq IN carray(?)", (numbers(decode_numbers(seqs)),))
    for queue, count in Counter(decode_texts(queues)).items():
        tx.moved(queue, DONE, None, count)


def _drop(tx: WriteTransaction, facts: Sequence[Fact], now: int, ids_kept: int) -> None:
    if not facts:
        return
    tx.db.execute("DELETE FROM jobs WHERE seq IN carray(?)", (numbers(fact.seq for fact in facts),))
    if long := [fact.seq for fact in facts if fact.size > INLINE_BYTES_MAX]:
        tx.db.execute("DELETE FROM payloads WHERE seq IN carray(?)", (numbers(long),))
    # A job that was done at its first attempt has no history.
    if tried := [fact.seq for fact in facts if fact.attempts > (fact.state == DONE)]:
        tx.db.execute("DELETE FROM attempts WHERE seq IN carray(?)", (numbers(tried),))
    for (queue, state), count in Counter((fact.queue, fact.state) for fact in facts).items():
        tx.moved(queue, state, None, count)
    if lasting := [(fact.id, now + ids_kept) for fact in facts if fact.lasting]:
        after = "ON CONFLICT DO UPDATE SET forget_at = excluded.forget_at"
        write_rows(tx.db, "INSERT INTO ids (id, forget_at)", lasting, after)
        tx.db.execute(_FORGET_IDS, (now, 2 * len(lasting)))
    tx.due_changed()


def open_groups(tx: WriteTransaction, groups: Sequence[JobGroup], now: int) -> None:
    """Opens groups that are not known, and enqueues the callback if all members have finished already."""
    for group in groups:
        tx.db.execute(_FORGET_GROUPS, (now - span(GROUPS_KEPT),))
        tx.db.execute(_OPEN_GROUP, (group.id, now, group.size, _encode(group.callback)))
        _fire(tx, group.id, now)


def _count_members(tx: WriteTransaction, finished: Sequence[tuple[Fact, bool]], now: int) -> None:
    """Counts members that finished (True: done), each once, and enqueues the callbacks of complete groups."""
    members = [(fact, done) for fact, done in finished if fact.member_of is not None]
    if not members:
        return
    tx.db.execute("UPDATE jobs SET member = 0 WHERE seq IN carray(?)", (numbers(fact.seq for fact, _ in members),))
    ends = Counter((fact.member_of, done) for fact, done in members)
    for member_of in dict.fromkeys(fact.member_of for fact, _ in members):
        assert member_of is not None, "only members are counted"
        tx.db.execute(_COUNT_MEMBERS, (member_of, now, ends[member_of, True], ends[member_of, False]))
        _fire(tx, member_of, now)


def _fire(tx: WriteTransaction, id: str, now: int) -> None:
    for callback, done, dead in list(tx.db.execute(_FIRE_GROUP, (id,))):
        job = _decode(callback)
        told = {GROUP_HEADER: id, GROUP_DONE_HEADER: str(done), GROUP_DEAD_HEADER: str(dead)}
        enqueue(tx, [replace(job, headers={**job.headers, **told})], now)
