"""What every backend's Streams promises: ordered logs that keep their bytes, and trims that stop at a floor."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from conformance.stores import Store
from nats_noticed import delivering
from wrasse.clock import ManualClock, to_micros
from wrasse.errors import TooLarge, UsageError
from wrasse.ports.groups import Ack, StartAt
from wrasse.ports.streams import (
    APPENDS_MAX,
    BODY_BYTES_MAX,
    FIELDS_BYTES_MAX,
    FIELDS_MAX,
    START,
    Draft,
    Entry,
    EntryId,
    Streams,
)

S = "gbe.events.audit.change"
SECOND = timedelta(seconds=1)
FIRST = StartAt(first=True)


@pytest.fixture
def streams(store: Store) -> Streams:
    return store.backend.streams


async def append(store: Store, *bodies: bytes, subject: str = S) -> list[EntryId]:
    return list(await store.backend.streams.append([Draft(subject, body) for body in bodies]))


async def whole(store: Store, subject: str = S) -> list[Entry]:
    entries: list[Entry] = []
    after: EntryId | None = START
    while after is not None:
        page = await store.backend.streams.read(subject, after, 100)
        entries += page.items
        after = EntryId.parse(page.cursor) if page.cursor else None
    return entries


async def bodies(store: Store, subject: str = S) -> list[bytes]:
    return [entry.body for entry in await whole(store, subject)]


async def trim(
    store: Store,
    *,
    age: timedelta | None = None,
    below: EntryId | None = None,
    protect: tuple[str, ...] = (),
    limit: int = 1_000,
    subject: str = S,
):
    return await store.backend.streams.trim(subject, age=age, below=below, protect=protect, limit=limit)


async def deliver(store: Store, group: str, limit: int = 100, wait: timedelta = timedelta(0)):
    return await delivering(store.backend.groups)([S], group, "c1", limit, ack_timeout=30 * SECOND, wait=wait)


async def ack(store: Store, group: str, *ids: EntryId) -> None:
    await store.backend.groups.answer([Ack(S, group, id) for id in ids])


# Appending and reading


async def test_entries_are_read_in_the_order_they_were_appended(store: Store) -> None:
    await append(store, b"1", b"2")
    await append(store, b"3")
    assert await bodies(store) == [b"1", b"2", b"3"]


async def test_ids_only_grow_while_the_clock_stands_still(store: Store) -> None:
    ids = [*await append(store, b"1", b"2"), *await append(store, b"3")]
    assert ids == sorted(set(ids))
    assert [entry.id for entry in await whole(store)] == ids


async def test_ids_only_grow_when_the_clock_steps_back(store: Store) -> None:
    assert isinstance(store.clock, ManualClock)
    before = await append(store, b"1")
    store.clock.step(-timedelta(hours=1))
    after = await append(store, b"2")
    assert before < after


async def test_ids_only_grow_across_a_restart_and_a_trim_of_everything(store: Store) -> None:
    before = await append(store, b"1")
    await trim(store)
    await store.reopen()
    after = await append(store, b"2")
    assert before < after


async def test_an_id_says_when_its_entry_was_appended(store: Store) -> None:
    at = to_micros(store.clock.now()) // 1_000
    (id,) = await append(store, b"1")
    assert id.ms == at


async def test_an_id_is_read_back_from_its_text() -> None:
    assert EntryId.parse(str(EntryId(1_700_000_000_000, 7))) == EntryId(1_700_000_000_000, 7)


@pytest.mark.parametrize("body", [b"", bytes(range(256)), b"\0" * 10, b"x" * BODY_BYTES_MAX], ids=len)
async def test_a_body_comes_back_byte_for_byte(store: Store, body: bytes) -> None:
    await append(store, body)
    assert await bodies(store) == [body]


async def test_fields_beside_a_body_come_back(store: Store) -> None:
    fields = {"reason": b"no such user", "raw": bytes(range(256)), "é": b""}
    await store.backend.streams.append([Draft(S, b"body", fields=fields), Draft(S, b"plain")])
    assert [(e.body, e.fields) for e in await whole(store)] == [(b"body", fields), (b"plain", None)]


@pytest.mark.parametrize("count", [1, FIELDS_MAX])
async def test_fields_are_kept_and_delivered_up_to_their_limits(store: Store, count: int) -> None:
    await store.backend.groups.join(S, "g", FIRST)
    # On NATS they are headers, with their names and signs.
    most = FIELDS_BYTES_MAX // (2 if store.name.startswith("nats") else 1)
    count = min(count, 1_000) if store.name.startswith("nats") else count
    fields = {f"{n:04}": b"x" * (most // count - 4) for n in range(count)}
    await store.backend.streams.append([Draft(S, b"body", fields=fields)])
    (read,), (given,) = await whole(store), await deliver(store, "g", wait=30 * SECOND)
    assert (read.fields, given.entry.fields, given.entry.body) == (fields, fields, b"body")
    too_long = {"x": b"\xff" * (FIELDS_BYTES_MAX // 3)}
    if store.name.startswith("nats"):
        with pytest.raises(TooLarge, match=f"a NATS server keeps {FIELDS_BYTES_MAX}"):
            await store.backend.streams.append([Draft(S, b"", fields=too_long)])
    with pytest.raises(TooLarge, match=f"{FIELDS_MAX + 1} fields"):
        await store.backend.streams.append([Draft(S, b"", fields={f"{n}": b"" for n in range(FIELDS_MAX + 1)})])


async def test_a_body_beyond_the_limit_is_refused_with_its_whole_batch(store: Store) -> None:
    with pytest.raises(TooLarge, match=str(BODY_BYTES_MAX + 1)):
        await append(store, b"small", b"x" * (BODY_BYTES_MAX + 1))
    assert await bodies(store) == []


async def test_a_batch_may_name_several_streams(store: Store) -> None:
    ids = await store.backend.streams.append([Draft("a", b"1"), Draft("b", b"2"), Draft("a", b"3")])
    assert (await bodies(store, "a"), await bodies(store, "b")) == ([b"1", b"3"], [b"2"])
    assert [e.id for e in await whole(store, "a")] == [ids[0], ids[2]]


async def test_an_append_of_nothing_changes_nothing(store: Store) -> None:
    assert list(await store.backend.streams.append([])) == []


async def test_the_largest_batch_is_stored_and_one_more_is_refused(store: Store) -> None:
    batch = [Draft(S, b"%d" % n) for n in range(APPENDS_MAX)]
    await store.backend.streams.append(batch)
    with pytest.raises(UsageError, match=str(APPENDS_MAX + 1)):
        await store.backend.streams.append([*batch, Draft(S, b"")])
    assert await bodies(store) == [draft.body for draft in batch]


async def test_what_was_appended_is_there_after_a_restart(store: Store) -> None:
    await append(store, b"1", b"2")
    await store.reopen()
    assert await bodies(store) == [b"1", b"2"]


async def test_many_appends_at_once_are_all_stored_with_ids_of_their_own(store: Store) -> None:
    answers = await asyncio.gather(*(append(store, b"%d" % n) for n in range(50)))
    assert len({id for ids in answers for id in ids}) == 50
    assert sorted(await bodies(store)) == sorted(b"%d" % n for n in range(50))


async def test_two_connections_append_to_one_stream(store: Store) -> None:
    other = await store.another()
    await append(store, b"1")
    await other.streams.append([Draft(S, b"2")])
    await append(store, b"3")
    assert await bodies(store) == [b"1", b"2", b"3"]
    if other is not store.backend:
        await other.close()


async def test_a_page_goes_on_exactly_after_any_of_its_entries(store: Store) -> None:
    await append(store, b"1", b"2", b"3")
    page = await store.backend.streams.read(S, START, 2)
    rest = [await store.backend.streams.read(S, EntryId.parse(cursor), 2) for cursor in page.cursors]
    assert (page.more, [[e.body for e in r] for r in rest]) == (True, [[b"2", b"3"], [b"3"]])


async def test_a_page_says_when_there_is_no_more(store: Store) -> None:
    await append(store, b"1", b"2")
    page = await store.backend.streams.read(S, START, 2)
    assert (page.more, page.cursor, page.at) == (False, None, store.clock.now())


async def test_reading_an_unknown_stream_gives_nothing(streams: Streams) -> None:
    page = await streams.read("nobody.wrote.here", START, 10)
    assert not page.items
    assert await streams.info("nobody.wrote.here") is None


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_page_of_nothing_is_refused(streams: Streams, limit: int) -> None:
    with pytest.raises(UsageError, match="a page of"):
        await streams.read(S, START, limit)
    with pytest.raises(UsageError, match="a page of"):
        await streams.subjects(">", None, limit)


# Subjects

BAD = ("", "a:b", "a*", "*", "a.*", "a.>", "a b", "a.", ".a", "a..b", "a\n", "é" * 128, "\ud800")


@pytest.mark.parametrize("subject", BAD)
async def test_what_is_no_subject_is_refused(streams: Streams, subject: str) -> None:
    with pytest.raises(UsageError, match=r"subject"):
        await streams.append([Draft(subject, b"")])


@pytest.mark.parametrize("subject", ["a", "x" * 255, "é" * 127, "a-b_c.D.9", 'q"\\.b'])
async def test_a_subject_names_its_stream(store: Store, subject: str) -> None:
    await append(store, b"1", subject=subject)
    assert [e.subject for e in await whole(store, subject)] == [subject]


NAMES = ("a", "a.b", "a.b.c", "a.c.c", "a-b", "ab.b", "b.b.c")
PATTERNS = {
    ">": NAMES,
    "a": ("a",),
    "*": ("a", "a-b"),
    "a.*": ("a.b",),
    "a.>": ("a.b", "a.b.c", "a.c.c"),
    "*.b": ("a.b", "ab.b"),
    "a.*.c": ("a.b.c", "a.c.c"),
    "*.b.c": ("a.b.c", "b.b.c"),
    "*.*.>": ("a.b.c", "a.c.c", "b.b.c"),
    "a.b.c.>": (),
    "no.such": (),
}


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize("pattern", PATTERNS)
async def test_a_pattern_finds_its_subjects_in_byte_order(store: Store, pattern: str, size: int) -> None:
    await store.backend.streams.append([Draft(name, b"") for name in NAMES])
    found: list[str] = []
    after: str | None = None
    while True:
        page = await store.backend.streams.subjects(pattern, after, size)
        found += page.items
        after = page.cursor
        if after is None:
            break
    assert found == sorted(PATTERNS[pattern], key=str.encode)


@pytest.mark.parametrize("pattern", ["a.>.b", "a>", ">b", "a*", "a..b", "", "a b", "a:b"])
async def test_what_is_no_pattern_is_refused(streams: Streams, pattern: str) -> None:
    with pytest.raises(UsageError, match=r"pattern"):
        await streams.subjects(pattern, None, 10)


# Keys


def test_a_backend_says_how_long_it_remembers_keys(streams: Streams) -> None:
    assert streams.dedup_window == timedelta(minutes=2)


async def test_two_drafts_with_one_key_make_one_entry(store: Store) -> None:
    first = await store.backend.streams.append([Draft(S, b"1", "k")])
    again = await store.backend.streams.append([Draft(S, b"2", "k")])
    assert (again, await bodies(store)) == (first, [b"1"])


async def test_one_key_twice_in_a_batch_makes_one_entry(store: Store) -> None:
    ids = await store.backend.streams.append([Draft(S, b"1", "k"), Draft(S, b"2"), Draft(S, b"3", "k")])
    assert (ids[0] == ids[2], await bodies(store)) == (True, [b"1", b"2"])


async def test_a_key_is_its_stream_s_own(store: Store) -> None:
    await store.backend.streams.append([Draft(S, b"1", "k"), Draft("other", b"2", "k")])
    assert (await bodies(store), await bodies(store, "other")) == ([b"1"], [b"2"])


async def test_a_key_is_remembered_for_its_window_and_across_a_restart(store: Store) -> None:
    await store.backend.streams.append([Draft(S, b"1", "k")])
    await store.pass_time(timedelta(seconds=119))
    await store.reopen()
    await store.backend.streams.append([Draft(S, b"2", "k")])
    assert await bodies(store) == [b"1"]


async def test_a_key_is_forgotten_after_its_window(store: Store) -> None:
    await store.backend.streams.append([Draft(S, b"1", "k")])
    await store.pass_time(timedelta(minutes=2))
    await store.backend.streams.append([Draft(S, b"2", "k")])
    await store.pass_time(timedelta(seconds=119))
    await store.backend.streams.append([Draft(S, b"3", "k")])
    assert await bodies(store) == [b"1", b"2"]


async def test_a_key_that_is_too_long_is_refused(streams: Streams) -> None:
    with pytest.raises(UsageError, match="256 bytes"):
        await streams.append([Draft(S, b"", "k" * 256)])


# Numbers


async def test_info_gives_the_stream_in_numbers(store: Store) -> None:
    ids = await append(store, b"12", b"3")
    await store.backend.streams.append([Draft(S, b"4", fields={"ab": b"c"})])
    state = await store.backend.streams.info(S)
    assert (state.length, state.bytes, state.appended, state.first) == (3, 7, 3, ids[0])
    assert (state.subject, state.groups, state.at) == (S, (), store.clock.now())
    assert state.last == (await whole(store))[-1].id


async def test_a_trim_lowers_length_and_bytes_and_leaves_what_was_ever_appended(store: Store) -> None:
    ids = await append(store, b"1", b"22", b"333")
    await trim(store, below=ids[2])
    state = await store.backend.streams.info(S)
    assert (state.length, state.bytes, state.appended, state.first, state.last) == (1, 3, 3, ids[2], ids[2])


async def test_an_empty_stream_keeps_its_last_id(store: Store) -> None:
    ids = await append(store, b"1")
    await trim(store)
    state = await store.backend.streams.info(S)
    assert (state.length, state.bytes, state.first, state.last) == (0, 0, None, ids[0])


async def test_info_lists_groups_by_name_with_floor_pending_and_lag(store: Store) -> None:
    ids = await append(store, b"1", b"2", b"3", b"4")
    for group in ("b", "a"):
        await store.backend.groups.join(S, group, FIRST)
    await deliver(store, "b", 3)
    await ack(store, "b", ids[0], ids[2])
    a, b = (await store.backend.streams.info(S)).groups
    assert (a.name, a.floor, a.delivered, a.pending, a.oldest_pending_at, a.lag) == ("a", START, START, 0, None, 4)
    assert (b.name, b.delivered, b.pending, b.lag) == ("b", ids[2], 1, 1)
    assert ids[0] <= b.floor < ids[1]
    assert to_micros(b.oldest_pending_at) // 1_000 == ids[1].ms


@pytest.mark.needs("knows_holders")
async def test_info_counts_the_consumers_of_a_group(store: Store) -> None:
    await append(store, b"1")
    for group in ("a", "b"):
        await store.backend.groups.join(S, group, FIRST)
    await deliver(store, "b", 1)
    assert [group.consumers for group in (await store.backend.streams.info(S)).groups] == [0, 1]


# Trimming


async def test_trimming_a_missing_stream_removes_nothing(store: Store) -> None:
    trimmed = await trim(store, subject="nobody.wrote.here")
    assert (trimmed.count, trimmed.more) == (0, False)


async def test_a_trim_removes_what_is_older_than_its_age(store: Store) -> None:
    await append(store, b"old")
    await store.pass_time(SECOND)
    await append(store, b"young")
    await store.pass_time(SECOND)
    assert (await trim(store, age=SECOND * 1.5)).count == 1
    assert await bodies(store) == [b"young"]


async def test_a_trim_keeps_what_is_just_as_old_as_its_age(store: Store) -> None:
    await append(store, b"1")
    await store.pass_time(SECOND)
    assert (await trim(store, age=SECOND)).count == 0


async def test_a_trim_removes_what_is_below_an_id(store: Store) -> None:
    ids = await append(store, b"1", b"2", b"3")
    trimmed = await trim(store, below=ids[2])
    assert (trimmed.count, trimmed.held_by, trimmed.more, await bodies(store)) == (2, "", False, [b"3"])


async def test_a_trim_needs_both_age_and_bound_where_both_are_given(store: Store) -> None:
    old = await append(store, b"1", b"2")
    await store.pass_time(SECOND * 2)
    new = await append(store, b"3")
    assert (await trim(store, age=SECOND, below=old[1])).count == 1
    assert (await trim(store, age=SECOND, below=new[0])).count == 1
    assert await bodies(store) == [b"3"]


async def test_a_trim_goes_in_steps_and_says_that_there_is_more(store: Store) -> None:
    await append(store, b"1", b"2", b"3")
    steps = [await trim(store, limit=2), await trim(store, limit=2)]
    assert [(step.count, step.more) for step in steps] == [(2, True), (1, False)]


async def test_a_missing_protecting_group_trims_nothing_and_is_named(store: Store) -> None:
    await append(store, b"1")
    await store.backend.groups.join(S, "there", StartAt())
    trimmed = await trim(store, protect=("there", "archiver"))
    assert (trimmed.count, trimmed.held_by, trimmed.floor, trimmed.more) == (0, "archiver", START, False)


async def test_what_a_protecting_group_has_not_read_is_kept(store: Store) -> None:
    ids = await append(store, b"1", b"2")
    await store.backend.groups.join(S, "archiver", StartAt(after=ids[0]))
    trimmed = await trim(store, protect=("archiver",))
    assert (trimmed.count, trimmed.held_by, await bodies(store)) == (1, "archiver", [b"2"])


async def test_what_a_protecting_group_has_not_acked_is_kept(store: Store) -> None:
    ids = await append(store, b"1", b"2", b"3")
    await store.backend.groups.join(S, "archiver", FIRST)
    await deliver(store, "archiver")
    await ack(store, "archiver", ids[0], ids[2])
    trimmed = await trim(store, protect=("archiver",))
    assert (trimmed.count, trimmed.held_by, await bodies(store)) == (1, "archiver", [b"2", b"3"])


async def test_the_slowest_of_several_protecting_groups_holds_a_trim(store: Store) -> None:
    ids = await append(store, b"1", b"2", b"3")
    for group, after in (("fast", ids[2]), ("slow", ids[0]), ("middle", ids[1])):
        await store.backend.groups.join(S, group, StartAt(after=after))
    trimmed = await trim(store, protect=("fast", "slow", "middle"))
    assert (trimmed.count, trimmed.held_by, trimmed.floor) == (1, "slow", ids[0])


async def test_no_group_holds_a_trim_that_its_age_holds(store: Store) -> None:
    ids = await append(store, b"1")
    await store.backend.groups.join(S, "archiver", StartAt(after=ids[0]))
    trimmed = await trim(store, age=SECOND, protect=("archiver",))
    assert (trimmed.count, trimmed.held_by) == (0, "")


async def test_a_group_that_does_not_protect_loses_what_is_trimmed_and_goes_on(store: Store) -> None:
    ids = await append(store, b"1", b"2", b"3")
    await store.backend.groups.join(S, "readers", FIRST)
    await deliver(store, "readers", 1)
    await trim(store, below=ids[2])
    (group,) = (await store.backend.streams.info(S)).groups
    assert (group.pending, group.lag) == (0, 1)
    assert [d.entry.body for d in await deliver(store, "readers")] == [b"3"]


async def test_a_trim_and_a_reader_race_and_nothing_unacked_is_lost(store: Store) -> None:
    await store.backend.groups.join(S, "archiver", FIRST)
    read: list[bytes] = []

    async def write() -> None:
        for n in range(60):
            await append(store, b"%d" % n)

    async def archive() -> None:
        while len(read) < 60:
            for delivery in await deliver(store, "archiver", 7):
                read.append(delivery.entry.body)
                await ack(store, "archiver", delivery.entry.id)

    async def sweep() -> None:
        while len(read) < 60:
            await trim(store, protect=("archiver",), limit=5)

    await asyncio.gather(write(), archive(), sweep())
    assert read == [b"%d" % n for n in range(60)]


async def test_a_stretch_is_what_a_read_gives_in_columns(streams: Streams) -> None:
    drafts = [Draft("a.b", b"\x00\n%d" % number) for number in range(5)] + [Draft("a.b", b"", fields={"x": b"\xff"})]
    await streams.append([*drafts, Draft("a.b", b"last")])
    whole = await streams.chunk("a.b", START, 100)
    page = await streams.read("a.b", START, 100)
    assert tuple(whole.entries(len(whole))) == page.items
    assert not whole.more
    some = await streams.chunk("a.b", page.items[1].id, 2)
    assert (tuple(some.entries(2)), some.more) == (page.items[2:4], True)
    assert len(await streams.chunk("no.such", START, 2)) == 0
