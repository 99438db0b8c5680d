"""Jobs that go: deleted by somebody, or the oldest done ones beyond what is kept. For the writer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from wrasse.backends.sqlite import teams
from wrasse.backends.sqlite.bulk import numbers, texts, write_rows
from wrasse.backends.sqlite.puts import put
from wrasse.backends.sqlite.rows import (
    FACT,
    INLINE_BYTES_MAX,
    PLACES,
    Fact,
    decode_facts,
    decode_numbers,
    decode_texts,
    span,
)
from wrasse.backends.sqlite.step import DONE, Step
from wrasse.ports.jobs import BATCH_MAX, IDS_KEPT, Delete, Place
from wrasse.ports.outcome import Outcome

_FROM_OLDEST_DONE = """
    FROM (SELECT * FROM jobs WHERE place >= 3 AND place = 3 AND finished_at + keep <= ?
      ORDER BY finished_at + keep, seq LIMIT ?)
"""
SELECT_OLDEST_DONE = f"""
    SELECT json_group_array(seq), json_group_array(queue), max(size), max(attempts), max(lasting) {_FROM_OLDEST_DONE}
"""
_OLDEST_DONE_FACTS = f"SELECT json_group_array({FACT}) {_FROM_OLDEST_DONE}"
_FORGET = "DELETE FROM ids WHERE id IN (SELECT id FROM ids WHERE forget_at <= ? ORDER BY forget_at LIMIT ?)"


def facts_of(step: Step, ids: Sequence[str]) -> dict[str, Fact]:
    """What is known about these jobs, by id."""
    if not ids:
        return {}
    found = step.db.execute(f"SELECT json_group_array({FACT}) FROM jobs WHERE id IN carray(?)", (texts(ids),)).get
    return {fact.id: fact for fact in decode_facts(found)}


def delete(step: Step, deletes: Sequence[Delete], ids_kept: int) -> list[Outcome]:
    """Removes the jobs that are still where the caller saw them."""
    now = step.now()
    facts = facts_of(step, [one.hold.id for one in deletes])
    outcomes = []
    dropped = []
    for one in deletes:
        fact = facts.get(one.hold.id)
        if fact is None or not _deletable(fact, one, now):
            outcomes.append(Outcome.LOST)
        else:
            outcomes.append(Outcome.DONE)
            dropped.append(facts.pop(fact.id))
    _drop(step, dropped, now, ids_kept)
    teams.count(step, [(fact, False) for fact in dropped], now, put)
    return outcomes


def _deletable(fact: Fact, one: Delete, now: int) -> bool:
    where_it_was = one.place is not Place.HELD and PLACES[fact.place] is one.place and fact.held_by(one.hold)
    return where_it_was and fact.kept_until <= now


def trim_done(step: Step, done_max: int, now: int) -> None:
    """Drops the oldest done jobs beyond `done_max`; a backlog from a lower setting goes in a few steps."""
    excess = min(step.done() - done_max, 3 * BATCH_MAX)
    if excess <= 0:
        return
    seqs, queues, longest, tried, lasting = step.db.execute(SELECT_OLDEST_DONE, (now, excess)).get
    if longest is None:
        return  # all results are to be kept
    if longest > INLINE_BYTES_MAX or tried > 1 or lasting:
        _drop(step, decode_facts(step.db.execute(_OLDEST_DONE_FACTS, (now, excess)).get), now, span(IDS_KEPT))
        return
    # The common case: nothing is kept of them anywhere else.
    step.db.execute("DELETE FROM jobs WHERE seq IN carray(?)", (numbers(decode_numbers(seqs)),))
    for queue, count in Counter(decode_texts(queues)).items():
        step.moved(queue, DONE, None, count)


def _drop(step: Step, facts: Sequence[Fact], now: int, ids_kept: int) -> None:
    if not facts:
        return
    step.db.execute("DELETE FROM jobs WHERE seq IN carray(?)", (numbers(fact.seq for fact in facts),))
    if long := [fact.seq for fact in facts if fact.size > INLINE_BYTES_MAX]:
        step.db.execute("DELETE FROM payloads WHERE seq IN carray(?)", (numbers(long),))
    # A job that was done at its first attempt has no history.
    if tried := [fact.seq for fact in facts if fact.attempts > (fact.place == DONE)]:
        step.db.execute("DELETE FROM attempts WHERE seq IN carray(?)", (numbers(tried),))
    for (queue, place), count in Counter((fact.queue, fact.place) for fact in facts).items():
        step.moved(queue, place, None, count)
    if lasting := [(fact.id, now + ids_kept) for fact in facts if fact.lasting]:
        after = "ON CONFLICT DO UPDATE SET forget_at = excluded.forget_at"
        write_rows(step.db, "INSERT INTO ids (id, forget_at)", lasting, after)
        step.db.execute(_FORGET, (now, 2 * len(lasting)))
    step.due_changed()
