"""Several keys in one transaction: what the origin got wrong, by the numbers of its list, and every race on the way."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from faults import CRASH, LOST_REPLY, Crashed, Script
from leases.faulty_store import Gate, behind, faulty
from leases.places import HOURS, NS, Place
from leases.transaction_scene import DAY, held_by_nobody, name_of, run
from wrasse.clock import EPOCH
from wrasse.engine.sweep import Action
from wrasse.errors import TooLarge, UsageError
from wrasse.leases.lease import KeyRecord, KeyRefused, Refusal
from wrasse.leases.leases import Leases
from wrasse.leases.transactions.states import DECISIONS, PARTICIPANTS_MAX, TRANSACTIONS, Decision, Participant, begun
from wrasse.ports.outcome import Outcome
from wrasse.sweeps.open_transactions import OpenTransactions
from wrasse.sweeps.spent_decisions import SpentDecisions

A, B = "accounts/a", "accounts/b"
OLD, NEW = b'{"n":1}', b'{"n":2}'
ID = name_of(7)
BUCKET = pytest.param("strict s3", marks=pytest.mark.full)
FEW = pytest.mark.parametrize("place", ["memory", "directory", BUCKET], indirect=True)
SEEN = pytest.mark.parametrize("place", ["memory", "directory", "s3"], indirect=True)
ROLLED_BACK, COMMITTED = Refusal.TRANSACTION_ROLLED_BACK, Refusal.TRANSACTION_COMMITTED


async def take(leases: Leases, place: Place, key: str, id: str = ID) -> KeyRecord:
    leased = await leases.acquire(key, "me", ttl=place.ttl, transaction=id)
    await leases.update(leased.granted, NEW)
    return leased


async def begin(leases: Leases, place: Place, other: Leases | None = None) -> tuple[KeyRecord, KeyRecord]:
    """Both keys have an old state, and a new one staged in one transaction."""
    for key in (A, B):
        leased = await leases.acquire(key, "me", ttl=place.ttl)
        await leases.update(leased.granted, OLD)
        await leases.release(leased.granted)
    return await take(leases, place, A), await take(other or leases, place, B)


async def states(leases: Leases) -> list[bytes | None]:
    seen = [await leases.read_public(NS, key) for key in (A, B)]
    return [None if each is None else each.data for each in seen]


async def code(release: object) -> Refusal | None:
    try:
        await release  # type: ignore[misc]
    except KeyRefused as refused:
        return refused.code
    return None


@SEEN
async def test_one_release_commits_every_key_through_whichever_process(place: Place) -> None:
    leases, other = await place.process(), await place.process()
    a, b = await begin(leases, place, other)
    before = await states(other)
    await leases.release(a.granted)
    assert (before, await states(other), await other.release(b.granted)) == ([OLD, OLD], [NEW, NEW], None)
    assert await held_by_nobody(await place.process(), (A, B))


@FEW
async def test_one_rollback_undoes_every_key_also_one_that_staged_nothing(place: Place) -> None:
    leases = await place.process()
    _, b = await begin(leases, place)
    bare = await leases.acquire("c", "me", ttl=place.ttl, transaction=ID)
    await leases.release(bare.granted, commit=False)
    assert (await states(leases), await code(leases.release(b.granted))) == ([OLD, OLD], ROLLED_BACK)


@FEW
async def test_a_key_that_staged_nothing_is_given_back_alone(place: Place) -> None:
    leases = await place.process()
    a, _ = await begin(leases, place)
    bare = await leases.acquire("c", "me", ttl=place.ttl, transaction=ID)
    await leases.release(bare.granted)
    await leases.release(bare.granted)  # asked again, as after a lost reply
    assert (await states(leases), await leases.transactions.transaction_log.outcome(ID)) == (
        [OLD, OLD],
        Decision.PENDING,
    )
    await leases.release(a.granted)
    assert await states(leases) == [NEW, NEW]


# D3: a commit after the transaction was rolled back was answered as if it had happened


@FEW
@pytest.mark.parametrize("by", ["who needs a key", "another process that decides", "a replay"])
async def test_a_commit_after_a_rollback_is_refused(place: Place, by: str) -> None:
    leases, other = await place.process(), await place.process()
    a, b = await begin(leases, place, other)
    if by == "another process that decides":
        await other.decide(ID, commit=False)
    else:
        await place.expire()
        if by == "who needs a key":
            await other.acquire(B, "next", ttl=place.ttl)
        else:
            assert await other.transactions.replay(ID) is Decision.ROLLBACK
    codes = {await code(leases.release(a.granted)), await code(other.release(b.granted))}
    assert (codes, await states(other)) == ({ROLLED_BACK}, [OLD, OLD])


@FEW
async def test_a_rollback_after_the_commit_is_refused_and_a_second_commit_is_not(place: Place) -> None:
    leases, other = await place.process(), await place.process()
    a, b = await begin(leases, place)
    await leases.release(a.granted)
    again = [await code(other.release(each.granted)) for each in (a, b)]
    assert (again, await code(other.release(b.granted, commit=False))) == ([None, None], COMMITTED)


# D4: a transaction kept the end of its first lease, and was rolled back under the hands of a living holder


@FEW
async def test_renewing_one_lease_keeps_the_transaction(place: Place) -> None:
    leases, other = await place.process(), await place.process()
    a, b = await begin(leases, place)
    for _ in range(4):
        await place.pass_time(place.ttl * 0.75)
        await leases.renew(b.granted, place.ttl)
        assert await other.transactions.replay(ID) is Decision.PENDING
        assert await run(OpenTransactions(other)) == 0
    await leases.release(b.granted)  # A's lease has ended meanwhile, and nobody needed A
    assert (await states(other), await code(leases.release(a.granted))) == ([NEW, NEW], None)


@FEW
async def test_a_pending_transaction_is_overdue_when_its_last_lease_has_ended(place: Place) -> None:
    leases, other = await place.process(), await place.process()
    await begin(leases, place)
    await place.expire()
    assert (await run(OpenTransactions(other)), await states(other)) == (1, [OLD, OLD])
    assert await held_by_nobody(other, (A, B))


# D6: of two keys that were enlisted first at the same time, one was lost


@SEEN
async def test_of_keys_that_are_enlisted_at_once_none_is_lost(place: Place) -> None:
    processes = [await place.process() for _ in range(4)]
    keys = [f"k/{n}" for n in range(4)]
    held = await asyncio.gather(
        *(leases.acquire(key, "me", ttl=timedelta(minutes=5), transaction=ID)
          for leases, key in zip(processes, keys, strict=True))
    )  # fmt: skip
    await asyncio.gather(*(leases.update(each.granted, NEW) for leases, each in zip(processes, held, strict=True)))
    await processes[0].release(held[0].granted)
    seen = [await processes[1].read_public(NS, key) for key in keys]
    assert [each and each.data for each in seen] == [NEW] * 4


# D8: a key that joined the transaction of another was left out of its commit


@FEW
@pytest.mark.parametrize("where", ["in the same process", "in another process"])
@pytest.mark.parametrize("staged", ["before", "after"])
async def test_joining_a_transaction_that_a_server_made_makes_it_one_for_both(
    place: Place, where: str, staged: str
) -> None:
    leases, other = await place.process(), await place.process()
    joiner = leases if where == "in the same process" else other
    a = await leases.acquire(A, "me", ttl=timedelta(minutes=5))
    if staged == "before":
        await leases.update(a.granted, NEW)
    b = await joiner.acquire(B, "me", ttl=timedelta(minutes=5), transaction=a.granted.transaction)
    if staged == "after":
        await leases.update(a.granted, NEW)
    await joiner.update(b.granted, NEW)
    await leases.release(a.granted)
    assert await states(other) == [NEW, NEW]


@FEW
async def test_a_transaction_is_decided_also_for_the_key_it_was_made_for(place: Place) -> None:
    leases, other = await place.process(), await place.process()
    a = await leases.acquire(A, "me", ttl=place.ttl)
    await leases.update(a.granted, NEW)
    await other.decide(a.granted.transaction, commit=False)
    assert (await code(leases.release(a.granted)), (await states(other))[0]) == (ROLLED_BACK, None)


@FEW
async def test_who_joins_while_the_first_key_is_given_back_begins_a_transaction_of_its_own(place: Place) -> None:
    gate = Gate("put")
    leases, other = await place.process(between=behind(records=gate)), await place.process()
    a = await leases.acquire(A, "me", ttl=place.ttl)
    await leases.update(a.granted, NEW)
    gate.shut()
    late = asyncio.create_task(leases.release(a.granted))
    await gate.reached.wait()
    b = await other.acquire(B, "me", ttl=place.ttl, transaction=a.granted.transaction)
    await other.update(b.granted, NEW)
    gate.open()
    await late  # its plain commit lost the race, so that it decides for both
    assert await states(other) == [NEW, NEW]


# The decision, and what is left of it


@FEW
@pytest.mark.parametrize("commit", [True, False])
async def test_a_decision_is_answered_for_a_day_and_then_forgotten(place: Place, commit: bool) -> None:
    leases, other = await place.process(), await place.process()
    await begin(leases, place)
    wanted = await leases.decide(ID, commit=commit)
    second = await other.decide(ID, commit=not commit)
    await leases.close()
    await other.close()  # it may still be carrying the decision out, and leave a younger record of it
    await place.pass_time(timedelta(hours=23))
    assert (second, await (await place.process()).transactions.transaction_log.outcome(ID)) == (wanted, wanted)
    await place.pass_time(HOURS)
    asked = await place.process()
    left = place.opened[0].records(DECISIONS)
    assert (await asked.transactions.transaction_log.outcome(ID), await left.get(ID)) == (None, None)
    assert (asked.tally.decisions_deleted, await leases.transactions.transaction_log.outcome(ID)) == (1, None)


@FEW
async def test_spent_decisions_are_swept_by_their_index(place: Place) -> None:
    leases = await place.process()
    await begin(leases, place)
    await leases.decide(ID, commit=True)
    await leases.close()
    records = place.opened[0].records(DECISIONS)
    young = await run(SpentDecisions(leases))
    await place.pass_time(DAY + HOURS)
    swept = await run(SpentDecisions(leases))
    entries = [record.key for record in await records.due(None, None, 10)]
    assert (young, swept, await records.get(ID), entries) == (0, 1, None, [])


@FEW
async def test_an_id_that_was_decided_takes_no_further_key(place: Place) -> None:
    leases, other = await place.process(), await place.process()
    a, _ = await begin(leases, place)
    await leases.release(a.granted)
    await leases.close()
    late = await other.acquire("c", "me", ttl=place.ttl, transaction=ID)
    refused = await code(other.update(late.granted, NEW))
    await other.release(late.granted)
    records = place.opened[0].records(TRANSACTIONS)
    assert (refused, await other.read_public(NS, "c"), await records.get(ID)) == (COMMITTED, None, None)


@FEW
async def test_a_record_made_after_the_decision_by_a_process_that_died_decides_nothing(place: Place) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    leases, other = await place.process(), await place.process()
    a, _ = await begin(leases, place)
    await leases.release(a.granted)
    await leases.close()
    dying = await place.process(between=faulty(Script({1: CRASH}, "get")))  # between its record and the read
    late = await other.acquire("c", "me", ttl=place.ttl, transaction=ID)
    with pytest.raises(Crashed):
        await dying.update(late.granted, NEW)
    records = place.opened[0].records(TRANSACTIONS)
    made = await records.get(ID)
    told = await (await place.process()).transactions.transaction_log.outcome(ID)
    await place.expire()
    await run(OpenTransactions(other))
    assert (made is not None, told, await records.get(ID)) == (True, Decision.COMMIT, None)
    assert await (await place.process()).transactions.transaction_log.outcome(ID) is Decision.COMMIT


@FEW
async def test_a_lost_reply_to_the_decision_changes_nothing(place: Place) -> None:
    leases = await place.process()
    a, _ = await begin(leases, place)
    hard = await place.process(between=faulty(Script({0: LOST_REPLY}, "put")))
    await hard.release(a.granted)
    assert await states(leases) == [NEW, NEW]


# Two at once


@FEW
@pytest.mark.parametrize("first", ["commit", "end"])
async def test_of_a_commit_and_the_end_of_a_lease_one_wins_everywhere(place: Place, first: str) -> None:
    gate = Gate("put")
    leases, other = await place.process(between=behind(records=gate)), await place.process()
    a, b = await begin(other, place)
    await leases.renew(a.granted, timedelta(minutes=20))
    await place.expire()  # B's lease is over, A's is not
    gate.shut()
    committing = asyncio.create_task(code(leases.release(a.granted)))
    await gate.reached.wait()  # on its way to the decision
    if first == "commit":
        gate.open()
        answers = [await committing, None]
        await other.acquire(B, "next", ttl=place.ttl)
    else:
        await other.acquire(B, "next", ttl=place.ttl)
        gate.open()
        answers = [await committing, None]
    wanted = [NEW, NEW] if first == "commit" else [OLD, OLD]
    told = None if first == "commit" else ROLLED_BACK
    assert (answers[0], await states(other), await code(other.release(b.granted))) == (told, wanted, told)


@FEW
async def test_who_needs_a_key_of_a_decided_commit_carries_it_out_first(place: Place) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    leases, other = await place.process(), await place.process()
    a, _ = await begin(leases, place)
    dying = await place.process(between=faulty(Script({1: CRASH}, "put")))  # decided, and nothing carried out
    with pytest.raises(Crashed):
        await dying.release(a.granted)
    await place.expire()
    following = await other.acquire(B, "next", ttl=place.ttl)
    seen = await other.read(following.granted)
    assert (seen and seen.data, following.granted.token > a.granted.token) == (NEW, True)
    assert await code(leases.release(a.granted)) is None
    await place.sweep(other) if place.name != "s3" else None
    assert await states(other) == [NEW, NEW]


@FEW
async def test_two_replays_at_once_do_what_one_does(place: Place) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    leases = await place.process()
    a, _ = await begin(leases, place)
    dying = await place.process(between=faulty(Script({1: CRASH}, "put")))
    with pytest.raises(Crashed):
        await dying.release(a.granted)
    others = [await place.process() for _ in range(3)]
    found = await asyncio.gather(*(other.transactions.replay(ID) for other in others))
    versions = [meta and meta.version for meta in [await leases.describe(NS, key) for key in (A, B)]]
    assert (set(found), await states(leases), versions) == ({Decision.COMMIT}, [NEW, NEW], [2, 2])


@FEW
async def test_a_sweep_that_comes_after_the_commit_takes_nothing_back(place: Place) -> None:
    leases, other = await place.process(), await place.process()
    await begin(leases, place)
    await place.expire()
    sweep = OpenTransactions(other)
    page = await sweep.find(None, 10)
    (verdict,) = [sweep.decide(suspect, page.at) for suspect in page]
    assert isinstance(verdict, Action)
    await leases.decide(ID, commit=True)
    assert (list(await sweep.apply([verdict])), await states(other)) == ([Outcome.CONFLICT], [NEW, NEW])


@FEW
async def test_a_holder_who_comes_too_late_stages_nothing_into_a_transaction_that_is_over(place: Place) -> None:
    gate = Gate("put")
    leases, other = await place.process(between=behind(records=gate)), await place.process()
    a, b = await begin(other, place)
    gate.shut()
    late = asyncio.create_task(code(leases.update(b.granted, b'{"n":3}')))
    await gate.reached.wait()
    await other.release(a.granted)
    gate.open()
    assert (await late, await states(other)) == (Refusal.LEASE_REQUIRED, [NEW, NEW])


# Bounds


async def test_a_transaction_has_so_many_keys_at_most() -> None:
    many = [Participant(NS, f"k{n}") for n in range(PARTICIPANTS_MAX + 1)]
    with pytest.raises(TooLarge):
        begun(ID, Decision.PENDING, many, EPOCH, EPOCH)


@pytest.mark.parametrize("place", ["memory"], indirect=True)
async def test_an_id_that_is_none_is_refused(place: Place) -> None:
    with pytest.raises(UsageError):
        await (await place.process()).acquire(A, "me", transaction="mine")


@pytest.mark.parametrize("place", ["memory", "strict s3"], indirect=True)
async def test_who_cannot_be_sure_to_find_the_first_key_refuses_to_join(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wrasse.leases.transactions.enlistment.SEARCHED_MAX", 3)
    monkeypatch.setattr("wrasse.leases.transactions.enlistment.PAGE", 3)
    leases, other = await place.process(), await place.process()
    for n in range(7):
        await leases.acquire(f"k/{n}", "me", ttl=timedelta(minutes=5))
    last = await leases.acquire("z", "me", ttl=timedelta(minutes=5))
    with pytest.raises(UsageError):
        await other.acquire(B, "me", transaction=last.granted.transaction)
