"""Objects: raw keys, one winner, versions, the order of listings, streams of bytes. What every backend promises."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conformance.object_stores import FREE_OF_FOLDERS, OBJECT_BACKENDS, ObjectStore, listed, whole
from faults import LOST_REPLY, LOST_REQUEST, Network, Script
from object_faults import FaultyObjects
from wrasse.backends.s3.objects import PART_BYTES
from wrasse.errors import Gone, StoreUnavailable, TooLarge, UsageError
from wrasse.ports.objects import (
    CHUNK_BYTES,
    DELETES_MAX,
    METADATA_BYTES_MAX,
    OBJECT_KEY_BYTES_MAX,
    Copies,
    ObjectDelete,
    Objects,
    WriteResult,
)
from wrasse.ports.outcome import Outcome

ODD_KEYS = [
    "a",
    "a/b",
    "a//b",
    "a/",
    "/a",
    "./x",
    "../x",
    "a/../b",
    "a%2Fb",
    "%",
    "with space ",
    "é✓𝄞/ß",
    "\x01\x7f\n/\r",
    "x" * OBJECT_KEY_BYTES_MAX,
    "/" * 40,
    "\udcff/\udc80",
]
NEIGHBOURS = ["a", "a!", "a-b", "a/b", "a/b/c", "a/b-c", "a0", "a%", "a\x01", "b", "A", "a/", "aa/x"]
LONG = [
    *("n" * size + end for size in (195, 197, 198, 199, 200, 201, 400) for end in ("", "!", "%", "\x01", "é", "/x")),
]


def raw(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


@pytest.fixture(params=OBJECT_BACKENDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    server = request.getfixturevalue("s3") if request.param == "s3" else None
    store = ObjectStore(request.param, tmp_path / "data", server)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def objects(store: ObjectStore) -> Objects:
    return store.objects


def version(stored: WriteResult) -> str:
    """The version a write made; it must have been made."""
    assert stored.outcome is Outcome.DONE, stored
    assert stored.version is not None
    return stored.version


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


# Writing and reading


async def test_an_object_comes_back_as_it_was_written(objects: Objects, store: ObjectStore) -> None:
    made = version(await objects.create("a", bytes(range(256)), metadata={"origin": "é"}))
    head = await objects.head("a")
    assert head is not None
    assert (head.info.key, head.info.size, head.info.version) == ("a", 256, made)
    assert (dict(head.metadata), await whole(objects, "a")) == ({"origin": "é"}, bytes(range(256)))
    assert abs(head.info.modified_at - store.clock.now()) <= store.modified_within


@pytest.mark.parametrize("key", ODD_KEYS)
async def test_a_key_is_kept_as_given(objects: Objects, store: ObjectStore, key: str) -> None:
    if not store.keeps(key):
        with pytest.raises(UsageError):
            await objects.create(key, b"1")
        return
    first = version(await objects.create(key, b"1", metadata={"n": "1"}))
    second = version(await objects.replace(key, b"22", at=first, metadata={"n": "2"}))
    shown = [(info.key, info.size, info.version) for info in await listed(objects)]
    head = await objects.head(key)
    assert (shown, head and dict(head.metadata)) == ([(key, 2, second)], {"n": "2"})
    deleted = await objects.delete([ObjectDelete(key, second)])
    assert (list(deleted), await listed(objects), await objects.head(key)) == ([Outcome.DONE], [], None)


async def test_keys_that_look_alike_do_not_collide(objects: Objects, store: ObjectStore) -> None:
    keys = [key for key in dict.fromkeys([*ODD_KEYS, *NEIGHBOURS]) if store.keeps(key)]
    for key in keys:
        assert await objects.create(key, raw(key), metadata={"size": str(len(key))})
    assert [await whole(objects, key) for key in keys] == [raw(key) for key in keys]
    heads = [await objects.head(key) for key in keys]
    assert [head and head.metadata["size"] for head in heads] == [str(len(key)) for key in keys]


@pytest.mark.parametrize("store", FREE_OF_FOLDERS, indirect=True)
@pytest.mark.parametrize("first", [["a", "a/b"], ["a/b", "a"], ["a/b/c", "a", "a/b"], ["a", "a/b/c", "a/b"]])
async def test_an_object_may_stand_beside_what_is_below_it(objects: Objects, first: list[str]) -> None:
    versions = {key: version(await objects.create(key, key.encode(), metadata={"key": key})) for key in first}
    heads = {key: await objects.head(key) for key in first}
    assert {key: head and (head.info.version, dict(head.metadata)) for key, head in heads.items()} == {
        key: (versions[key], {"key": key}) for key in first
    }
    assert not await objects.create("a", b"other")
    replaced = version(await objects.replace("a", b"new", at=versions["a"]))
    assert await whole(objects, "a", at=replaced) == b"new"
    below = [ObjectDelete(key, versions[key]) for key in first if key != "a"]
    assert set(await objects.delete(below)) == {Outcome.DONE}
    assert [info.key for info in await listed(objects)] == ["a"]


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 1])
async def test_bytes_may_be_streamed_in_and_out(objects: Objects, size: int) -> None:
    data = os.urandom(size)
    made = version(await objects.create("a", pieces(data, 100_003)))
    chunks = [chunk async for chunk in objects.read("a", at=made)]
    assert b"".join(chunks) == data
    assert max(map(len, chunks), default=0) <= CHUNK_BYTES


_FULL = pytest.mark.full


@pytest.mark.parametrize(
    "size", [PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, pytest.param(9 * PART_BYTES + 1, marks=_FULL)]
)
@pytest.mark.parametrize("streamed", [True, False])
async def test_objects_around_the_size_of_a_part_come_back_whole(objects: Objects, size: int, streamed: bool) -> None:
    data = random.Random(size).randbytes(size)
    made = version(await objects.create("a", pieces(data, 1_000_003) if streamed else data))
    head = await objects.head("a")
    assert head is not None
    assert (head.info.size, await whole(objects, "a", at=made) == data) == (size, True)
    other = data[::-1]
    replaced = version(await objects.replace("a", pieces(other, 1_000_003) if streamed else other, at=made))
    assert await whole(objects, "a", at=replaced) == other


async def test_as_much_metadata_as_is_allowed_comes_back(objects: Objects) -> None:
    for key, letter in (("a", "x"), ("b", "é")):
        metadata = {"m": letter * ((METADATA_BYTES_MAX - 1) // len(letter.encode()))}
        made = version(await objects.create(key, b"", metadata=metadata))
        head = await objects.head(key)
        assert head is not None
        assert (head.info.version, dict(head.metadata)) == (made, metadata)


async def test_as_many_objects_as_are_allowed_are_deleted_at_once(objects: Objects) -> None:
    assert set(await objects.delete([ObjectDelete(f"gone/{n}", "v") for n in range(DELETES_MAX)])) == {Outcome.CONFLICT}


async def test_a_stream_that_breaks_off_writes_nothing(objects: Objects) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise RuntimeError("the source broke")

    made = version(await objects.create("b", b"old"))
    with pytest.raises(RuntimeError, match="the source broke"):
        await objects.create("a", broken())
    with pytest.raises(RuntimeError, match="the source broke"):
        await objects.replace("b", broken(), at=made)
    assert ([info.key for info in await listed(objects)], await whole(objects, "b")) == (["b"], b"old")


async def test_what_no_store_could_keep_is_refused(objects: Objects) -> None:
    for key in ("", "x" * (OBJECT_KEY_BYTES_MAX + 1), "a\0b", "\ud800"):
        with pytest.raises(UsageError):
            await objects.create(key, b"")
    with pytest.raises(TooLarge):
        await objects.create("a", b"", metadata={"m": "x" * METADATA_BYTES_MAX})
    with pytest.raises(UsageError):
        await objects.delete([ObjectDelete("a", "v")] * (DELETES_MAX + 1))
    with pytest.raises(UsageError):
        await objects.page("", None, 0)
    assert await listed(objects) == []


async def test_a_missing_object_is_none_and_cannot_be_read(objects: Objects) -> None:
    await objects.create("a/b", b"")
    for key in ("a", "a/b/c", "x"):
        assert await objects.head(key) is None
        with pytest.raises(Gone):
            await whole(objects, key)


async def test_objects_survive_a_restart(store: ObjectStore) -> None:
    for key in ("a", "a/b", "c"):
        await store.objects.create(key, key.encode(), metadata={"key": key})
    before = await listed(store.objects)
    await store.reopen()
    after, head = await listed(store.objects), await store.objects.head("a")
    assert (after, head and dict(head.metadata), await whole(store.objects, "c")) == (before, {"key": "a"}, b"c")


# Conditions


async def test_an_object_is_created_once(objects: Objects) -> None:
    first, second = await objects.create("a", b"1", metadata={"n": "1"}), await objects.create("a", b"2")
    head = await objects.head("a")
    assert (bool(first), second.outcome, head and dict(head.metadata)) == (True, Outcome.CONFLICT, {"n": "1"})
    assert await whole(objects, "a") == b"1"


async def test_a_write_that_names_an_old_version_is_a_conflict(objects: Objects) -> None:
    old = version(await objects.create("a", b"1"))
    new = version(await objects.replace("a", b"2", at=old))
    stale = [await objects.replace("a", b"3", at=at) for at in (old, "", "never", "zz.zz", f"{new}0")]
    assert {stored.outcome for stored in stale} == {Outcome.CONFLICT}
    assert list(await objects.delete([ObjectDelete("a", old)])) == [Outcome.CONFLICT]
    assert (old != new, await whole(objects, "a")) == (True, b"2")


async def test_metadata_goes_with_the_bytes_it_was_written_with(objects: Objects) -> None:
    shown = []
    at = version(await objects.create("a", b"1", metadata={"n": "1"}))
    for metadata in ({}, {"n": "3"}):
        at = version(await objects.replace("a", b"x", at=at, metadata=metadata))
        head = await objects.head("a")
        shown.append(head and dict(head.metadata))
    assert shown == [{}, {"n": "3"}]


async def test_no_two_writes_make_one_version(objects: Objects, store: ObjectStore) -> None:
    versions = []
    for n in range(20):
        one, other = (b"%d" % n, b"other %d" % n) if store.versions_name_bytes else (b"same", b"same")
        versions.append(version(await objects.create("a", one)))
        versions.append(version(await objects.replace("a", other, at=versions[-1])))
        await objects.delete([ObjectDelete("a", versions[-1])])
    assert len(set(versions)) == 40


async def test_deletes_end_each_in_their_own_way(objects: Objects) -> None:
    a, b, c = [version(await objects.create(key, b"")) for key in ("a", "a/b", "c")]
    newer = version(await objects.replace("c", b"new", at=c))
    deletes = [("a", a), ("a/b", b), ("c", c), ("missing", a), ("a", a), ("c/below", newer)]
    outcomes = await objects.delete([ObjectDelete(*each) for each in deletes])
    assert list(outcomes) == [Outcome.DONE, Outcome.DONE, *[Outcome.CONFLICT] * 4]
    assert [(info.key, info.version) for info in await listed(objects)] == [("c", newer)]


@pytest.mark.parametrize("key", ["a", "deep/er/a"])
async def test_of_eight_creators_of_one_key_one_wins(store: ObjectStore, key: str) -> None:
    sides = [store.objects, await store.another()]
    answers = await asyncio.gather(
        *(sides[n % 2].create(key, b"%d" % n * 1000, metadata={"n": str(n)}) for n in range(8))
    )
    (winner,) = [n for n, answer in enumerate(answers) if answer]
    head = await store.objects.head(key)
    assert (await whole(sides[1], key), head and dict(head.metadata)) == (b"%d" % winner * 1000, {"n": str(winner)})
    assert [info.version for info in await listed(store.objects)] == [answers[winner].version]


async def test_of_eight_writers_at_one_version_one_wins(store: ObjectStore) -> None:
    sides = [store.objects, await store.another()]
    first = version(await store.objects.create("a", b"first"))
    answers = await asyncio.gather(*(sides[n % 2].replace("a", b"%d" % n, at=first) for n in range(8)))
    (winner,) = [n for n, answer in enumerate(answers) if answer]
    assert await whole(store.objects, "a", at=answers[winner].version) == b"%d" % winner


@pytest.mark.parametrize("store", FREE_OF_FOLDERS, indirect=True)
async def test_a_key_and_what_is_below_it_may_be_made_at_the_same_time(store: ObjectStore) -> None:
    sides = [store.objects, await store.another()]
    keys = ["k", "k/a", "k/a/b", "k/c", "k", "k/a", "k/a/b", "k/c"]
    answers = await asyncio.gather(*(sides[n % 2].create(key, key.encode()) for n, key in enumerate(keys)))
    won = sorted(key for key, answer in zip(keys, answers, strict=True) if answer)
    assert won == ["k", "k/a", "k/a/b", "k/c"]
    assert [info.key for info in await listed(sides[1])] == won
    assert [await whole(sides[0], key) for key in won] == [key.encode() for key in won]


async def test_an_object_is_never_missed_while_something_is_put_below_it(store: ObjectStore) -> None:
    sides = [store.objects, await store.another()]
    seen = []
    for n in range(10):
        key = f"k{n}"
        made = version(await sides[0].create(key, b"whole"))
        _, head, shown, again, read = await asyncio.gather(
            sides[0].create(f"{key}/below", b""),
            sides[1].head(key),
            sides[1].page(key, None, 1),
            sides[1].create(key, b"other"),
            whole(sides[1], key),
        )
        seen.append((head and head.info.version == made, shown.items[0].version == made, bool(again), read))
    assert seen == [(True, True, False, b"whole")] * 10


async def test_a_reader_gets_one_version_whole_or_is_told(store: ObjectStore) -> None:
    size = 2 * CHUNK_BYTES
    data = [bytes([n]) * size for n in range(4)]
    at = version(await store.objects.create("a", data[0]))
    reading = store.objects.read("a")
    first = await anext(reading)
    for n in (1, 2, 3):
        at = version(await store.objects.replace("a", data[n], at=at))
    try:
        rest = b"".join([chunk async for chunk in reading])
        read = first + rest
    except Gone:
        read = b"gone"
    assert read in (data[0], b"gone")
    assert await whole(store.objects, "a") == data[3]


async def test_a_reader_that_names_a_version_gets_that_or_nothing(objects: Objects) -> None:
    old = version(await objects.create("a", b"old"))
    new = version(await objects.replace("a", b"new", at=old))
    with pytest.raises(Gone):
        await whole(objects, "a", at=old)
    assert await whole(objects, "a", at=new) == b"new"


# A network in between


async def test_after_a_lost_reply_the_object_at_the_key_tells_what_happened(objects: Objects) -> None:
    faulty = FaultyObjects(objects, Network(Script({0: LOST_REPLY, 2: LOST_REQUEST, 4: LOST_REPLY})))
    with pytest.raises(StoreUnavailable):
        await faulty.create("a", b"mine", metadata={"nonce": "n1"})
    again = await faulty.create("a", b"mine", metadata={"nonce": "n1"})
    with pytest.raises(StoreUnavailable):
        await faulty.replace("a", b"never", at="x")
    head = await faulty.head("a")
    assert head is not None
    assert (again.outcome, head.metadata["nonce"], await whole(objects, "a")) == (Outcome.CONFLICT, "n1", b"mine")
    with pytest.raises(StoreUnavailable):
        await faulty.delete([ObjectDelete("a", head.info.version)])
    assert (list(await faulty.delete([ObjectDelete("a", head.info.version)])), await listed(objects)) == (
        [Outcome.CONFLICT],
        [],
    )


async def test_a_read_that_breaks_off_is_an_error_and_not_the_end(objects: Objects) -> None:
    await objects.create("a", bytes(2 * CHUNK_BYTES + 1))
    faulty = FaultyObjects(objects, Network(Script({2: LOST_REPLY}, only="read")))
    with pytest.raises(StoreUnavailable):
        await whole(faulty, "a")
    assert len(await whole(faulty, "a")) == 2 * CHUNK_BYTES + 1


# Listings


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_a_listing_is_in_the_byte_order_of_the_keys(objects: Objects, store: ObjectStore, limit: int) -> None:
    keys = [key for key in dict.fromkeys([*ODD_KEYS, *NEIGHBOURS, *LONG]) if store.keeps(key)]
    for key in keys:
        assert await objects.create(key, b"")
    assert [info.key for info in await listed(objects, limit=limit)] == sorted(keys, key=raw)


@pytest.mark.parametrize(
    "prefix", ["a", "a/", "a/b", "a/b/", "aa/x/", "missing", "a%", "n" * 199, "n" * 198 + "!", "../"]
)
async def test_a_listing_shows_the_keys_that_start_with_the_prefix(
    objects: Objects, store: ObjectStore, prefix: str
) -> None:
    keys = [key for key in dict.fromkeys([*ODD_KEYS, *NEIGHBOURS, *LONG]) if store.keeps(key)]
    for key in keys:
        await objects.create(key, b"")
    expected = sorted((key for key in keys if key.startswith(prefix)), key=raw)
    assert [info.key for info in await listed(objects, prefix)] == expected


async def test_every_cursor_of_a_page_goes_on_exactly_there(objects: Objects, store: ObjectStore) -> None:
    for key in filter(store.keeps, NEIGHBOURS):
        await objects.create(key, b"")
    page = await objects.page("a", None, 100)
    rests = [await objects.page("a", cursor, 100) for cursor in page.cursors]
    assert [rest.items for rest in rests] == [page.items[n:] for n in range(1, len(page) + 1)]
    assert (page.more, [rest.more for rest in rests]) == (False, [False] * len(page))


async def test_a_listing_goes_on_after_what_it_showed_was_deleted(objects: Objects) -> None:
    for key in ("a/1", "a/2", "b", "c/1"):
        await objects.create(key, b"")
    first = await objects.page("", None, 2)
    await objects.delete([ObjectDelete(info.key, info.version) for info in first])
    rest = await objects.page("", first.cursor, 10)
    assert [info.key for info in rest] == ["b", "c/1"]


async def test_what_was_created_between_two_pages_is_in_the_second(objects: Objects) -> None:
    for key in ("a/1", "a/2", "b/1", "c"):
        await objects.create(key, b"")
    first = await objects.page("", None, 1)
    for key in ("a/11", "a/3", "aa", "b/0"):
        await objects.create(key, b"")
    rest = await objects.page("", first.cursor, 10)
    assert [info.key for info in rest] == ["a/11", "a/2", "a/3", "aa", "b/0", "b/1", "c"]


async def test_a_copy_has_the_bytes_and_the_metadata_and_lives_by_itself(store: ObjectStore) -> None:
    objects = store.objects
    made = await objects.create("a/one", b"bytes", metadata={"kind": "x"})
    assert made.version is not None
    assert await copies_of(objects).copy("a/one", "b/two/three", at=made.version) is Outcome.DONE
    assert await objects.delete([ObjectDelete("a/one", made.version)]) == [Outcome.DONE]
    head = await objects.head("b/two/three")
    assert head is not None
    assert (head.metadata, await whole(objects, "b/two/three")) == ({"kind": "x"}, b"bytes")
    assert [info.key for info in await listed(objects)] == ["b/two/three"]


async def test_a_copy_overwrites_nothing_and_names_its_version(store: ObjectStore) -> None:
    objects = store.objects
    made, other = await objects.create("one", b"bytes"), await objects.create("two", b"other")
    assert made.version is not None
    assert other.version is not None
    assert await copies_of(objects).copy("one", "two", at=made.version) is Outcome.CONFLICT
    assert await copies_of(objects).copy("one", "three", at=other.version) is Outcome.CONFLICT
    assert await copies_of(objects).copy("none", "three", at=made.version) is Outcome.CONFLICT
    assert await whole(objects, "two") == b"other"
    assert await objects.head("three") is None


async def test_writing_to_a_copy_leaves_the_original(store: ObjectStore) -> None:
    objects = store.objects
    made = await objects.create("one", b"bytes")
    assert made.version is not None
    await copies_of(objects).copy("one", "two", at=made.version)
    head = await objects.head("two")
    assert head is not None
    assert await objects.replace("two", b"changed", at=head.info.version)
    assert (await whole(objects, "one"), await whole(objects, "two")) == (b"bytes", b"changed")


def copies_of(objects: Objects) -> Copies:
    assert objects.copies is not None
    return objects.copies
