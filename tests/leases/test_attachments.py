"""Files that ride along with a key's state: staged, committed, collected, and never seen before their time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from faults import CRASH, Crashed, Script
from leases.faulty_store import faulty
from leases.places import HOURS, HOURS_PASS, NS, TTL, Place
from wrasse.errors import StoreBroken
from wrasse.leases.attachments import ATTACHMENTS_MAX, Attached, AttachmentTooLarge, Sent
from wrasse.leases.fsck import Fsck, Trouble
from wrasse.leases.lease import KeyRecord, KeyRefused, Lease, Refusal, public
from wrasse.leases.leases import Leases
from wrasse.ports.objects import ObjectDelete

KEY = "orders/42"
FEW = pytest.mark.parametrize("place", ["memory", "directory"], indirect=True)


async def acquire(leases: Leases, place: Place) -> KeyRecord:
    return await leases.acquire(KEY, "me", ttl=place.ttl)


async def attach(leases: Leases, held: Lease, name: str, data: bytes) -> Attached:
    return await leases.attachments.attach(held, Sent(name), data)


async def commit(leases: Leases, place: Place, name: str, data: bytes) -> KeyRecord:
    leased = await acquire(leases, place)
    await attach(leases, leased.granted, name, data)
    await leases.release(leased.granted)
    await leases.close()
    return leased


async def read(leases: Leases, whose: Lease | str, name: str) -> bytes:
    whose = public(NS, whose) if isinstance(whose, str) else whose
    fetched = await leases.attachments.fetch(whose, name=name)
    return b"".join([chunk async for chunk in fetched.chunks])


async def names(leases: Leases, whose: Lease | str) -> list[str]:
    whose = public(NS, whose) if isinstance(whose, str) else whose
    return [each.name for each in await leases.attachments.list(whose)]


async def test_an_attachment_is_seen_by_its_holder_at_once_and_by_others_after_the_commit(place: Place) -> None:
    leases, other = await place.process(), await place.process()
    leased = await acquire(leases, place)
    await attach(leases, leased.granted, "scan.pdf", b"pages")
    before = (await read(leases, leased.granted, "scan.pdf"), await names(other, KEY))
    await leases.release(leased.granted)
    assert (before, await read(other, KEY, "scan.pdf")) == ((b"pages", []), b"pages")


async def test_state_and_attachments_are_one_commit_and_one_version(place: Place) -> None:
    leases = await place.process()
    leased = await acquire(leases, place)
    await leases.update(leased.granted, b'{"n":1}')
    attached = await attach(leases, leased.granted, "a", b"a")
    await attach(leases, leased.granted, "b", b"b")
    meta = await leases.release(leased.granted)
    assert meta is not None
    seen = await leases.read_public(NS, KEY)
    assert (attached.version, meta.version, seen and seen.data, await names(leases, KEY)) == (
        1, 1, b'{"n":1}', ["a", "b"],
    )  # fmt: skip


@FEW
async def test_a_rollback_leaves_attachments_as_they_were_and_nothing_behind(place: Place) -> None:
    leases = await place.process()
    await commit(leases, place, "a", b"old")
    leased = await acquire(leases, place)
    await attach(leases, leased.granted, "a", b"new")
    await attach(leases, leased.granted, "b", b"b")
    await leases.attachments.remove(leased.granted, name="a")
    await leases.release(leased.granted, commit=False)
    await leases.close()
    assert (await read(leases, KEY, "a"), len(await place.states(KEY))) == (b"old", 1)


@pytest.mark.parametrize("place", ["memory", "directory", "s3"], indirect=True)
async def test_what_is_superseded_is_deleted_after_the_answer(place: Place) -> None:
    leases = await place.process()
    await commit(leases, place, "a", b"first")
    first = (await leases.attachments.list(public(NS, KEY)))[0]
    leased = await acquire(leases, place)
    for n in range(3):
        await attach(leases, leased.granted, "a", b"%d" % n)
    await leases.release(leased.granted)
    await leases.close()
    last = (await leases.attachments.list(public(NS, KEY)))[0]
    assert (await place.states(KEY), last.id, last.created_at) == ([last.object.name], first.id, first.created_at)


@FEW
async def test_a_removed_attachment_is_gone_with_the_commit(place: Place) -> None:
    leases = await place.process()
    await commit(leases, place, "a", b"a")
    leased = await acquire(leases, place)
    await attach(leases, leased.granted, "b", b"b")
    counts = [await leases.attachments.remove(leased.granted, name=name) for name in ("a", "nosuch")]
    committed = await names(leases, KEY)
    await leases.release(leased.granted)
    await leases.close()
    assert (counts, committed, await names(leases, KEY), len(await place.states(KEY))) == (
        [(1, 2), (0, 2)], ["a"], ["b"], 1,
    )  # fmt: skip


@FEW
async def test_all_attachments_can_be_removed_at_once(place: Place) -> None:
    leases = await place.process()
    leased = await acquire(leases, place)
    for name in "abc":
        await attach(leases, leased.granted, name, b"x")
    count, _ = await leases.attachments.remove(leased.granted, every=True)
    await leases.release(leased.granted)
    await leases.close()
    assert (count, await names(leases, KEY), await place.states(KEY)) == (3, [], [])


@FEW
async def test_one_that_is_to_stay_stays(place: Place) -> None:
    leases = await place.process()
    await commit(leases, place, "a", b"old")
    leased = await acquire(leases, place)
    attached = await leases.attachments.attach(leased.granted, Sent("a", keep=True), b"new")
    assert (attached.staged, await read(leases, leased.granted, "a")) == (False, b"old")


WRONG = {
    "too many bytes": (Sent("a", bytes_max=3), AttachmentTooLarge),
    "another size": (Sent("a", size=3), KeyRefused),
    "another checksum": (Sent("a", sha256="0" * 64), KeyRefused),
}


@FEW
@pytest.mark.parametrize("wrong", WRONG)
async def test_bytes_that_are_not_what_was_meant_stage_nothing_and_leave_nothing(place: Place, wrong: str) -> None:
    sent, error = WRONG[wrong]
    leases = await place.process()
    leased = await acquire(leases, place)
    with pytest.raises(error):
        await leases.attachments.attach(leased.granted, sent, b"four")
    assert (await names(leases, leased.granted), await place.states(KEY)) == ([], [])


@FEW
async def test_nothing_is_read_of_a_stream_whose_sender_does_not_hold_the_key(place: Place) -> None:
    leases = await place.process()
    leased = await acquire(leases, place)
    await place.expire()
    asked = []

    async def stream() -> AsyncIterator[bytes]:
        asked.append(1)
        yield b"x"

    with pytest.raises(KeyRefused) as refused:
        await leases.attachments.attach(leased.granted, Sent("a"), stream())
    assert (refused.value.code, asked) == (Refusal.LEASE_EXPIRED, [])


@FEW
async def test_a_lease_that_ends_while_its_bytes_come_stages_nothing(place: Place) -> None:
    leases = await place.process()
    leased = await acquire(leases, place)

    async def stream() -> AsyncIterator[bytes]:
        yield b"x"
        await place.expire()

    with pytest.raises(KeyRefused) as refused:
        await leases.attachments.attach(leased.granted, Sent("a"), stream())
    await leases.close()
    assert (refused.value.code, await place.states(KEY)) == (Refusal.LEASE_EXPIRED, [])


@FEW
async def test_an_attachment_that_is_not_there_is_refused_by_name(place: Place) -> None:
    leases = await place.process()
    with pytest.raises(KeyRefused) as refused:
        await leases.attachments.fetch(public(NS, KEY), name="nosuch")
    assert refused.value.code is Refusal.ATTACHMENT_NOT_FOUND


@HOURS_PASS
async def test_what_a_holder_that_died_attached_is_deleted_with_its_lease(place: Place) -> None:
    leases, other = await place.process(), await place.process()
    await commit(leases, place, "a", b"old")
    leased = await acquire(leases, place)
    await attach(leases, leased.granted, "a", b"new")
    await attach(leases, leased.granted, "b", b"b")
    await place.pass_time(TTL)
    for _ in range(3):
        await place.pass_time(HOURS)
        await place.sweep(other)
    assert (await read(other, KEY, "a"), len(await place.states(KEY))) == (b"old", 1)


@HOURS_PASS
async def test_what_a_crash_before_the_record_leaves_is_found_by_the_second_check(place: Place) -> None:
    await commit(await place.process(), place, "a", b"old")
    leases = await place.process(between=faulty(Script({1: CRASH}, "put")))
    leased = await acquire(leases, place)
    with pytest.raises(Crashed):
        await attach(leases, leased.granted, "a", b"new")
    left = len(await place.states(KEY))
    sweeper = await place.process()
    for _ in range(3):
        await place.pass_time(HOURS)
        await place.sweep(sweeper)
    assert (left, await read(sweeper, KEY, "a"), len(await place.states(KEY))) == (2, b"old", 1)


@FEW
async def test_a_reader_is_told_of_bytes_that_are_not_what_was_stored(place: Place) -> None:
    leases = await place.process()
    await commit(leases, place, "a", b"right")
    stored = (await leases.attachments.list(public(NS, KEY)))[0].object
    await place.opened[0].objects.replace(stored.name, b"wrong", at=stored.version)
    with pytest.raises(StoreBroken):
        await read(leases, KEY, "a")


@FEW
async def test_fsck_misses_an_attachment_whose_object_is_gone_and_takes_loose_ones_away(place: Place) -> None:
    leases = await place.process()
    await commit(leases, place, "a", b"a")
    await commit(leases, place, "b", b"b")
    kept = {each.name: each.object for each in await leases.attachments.list(public(NS, KEY))}
    objects = place.opened[0].objects
    await objects.create(kept["b"].name[:-1] + "~", b"loose")
    sound = [each.trouble async for each in Fsck(leases, NS, repair=True).run()]
    await objects.delete([ObjectDelete(kept["a"].name, kept["a"].version)])
    broken = [each.trouble async for each in Fsck(leases, NS, repair=True).run()]
    assert (sound, broken, await read(leases, KEY, "b")) == ([Trouble.LOOSE], [Trouble.MISSING], b"b")


@pytest.mark.parametrize("place", ["memory"], indirect=True)
async def test_a_key_has_a_bounded_number_of_attachments(place: Place) -> None:
    leases = await place.process()
    leased = await acquire(leases, place)
    for n in range(ATTACHMENTS_MAX):
        await attach(leases, leased.granted, f"{n}", b"")
    with pytest.raises(AttachmentTooLarge):
        await attach(leases, leased.granted, "one more", b"")
    again = await attach(leases, leased.granted, "0", b"again")
    assert again.attachment.object.size == 5


@FEW
async def test_attachments_of_several_keys_are_committed_together_or_not_at_all(place: Place) -> None:
    leases, other = await place.process(), await place.process()
    for commit_it in (False, True):
        first = await leases.acquire("a", "me", ttl=place.ttl)
        second = await leases.acquire("b", "me", ttl=place.ttl, transaction=first.granted.transaction)
        for each in (first, second):
            await attach(leases, each.granted, "file", b"bytes")
        await leases.release(second.granted, commit=commit_it)
        await leases.release(first.granted, commit=commit_it)
        await leases.close()
        seen = [[each.name for each in await other.attachments.list(public(NS, key))] for key in ("a", "b")]
        assert seen == ([["file"], ["file"]] if commit_it else [[], []])
