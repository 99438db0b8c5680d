"""Listings of large, busy and foreign directories: in order, complete, and at a cost that does not grow on the way."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from conformance.object_stores import listed
from wrasse.backends.directory import walk
from wrasse.backends.directory.connect import Directory
from wrasse.backends.directory.files import Files
from wrasse.clock import ManualClock
from wrasse.ports.objects import ObjectDelete, Objects

LONG_AGO = 1_000_000_000


class CountingFiles(Files):
    """Counts the names it reads from directories."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.read_names = 0

    def names(self, path: bytes) -> Iterator[tuple[bytes, bool]]:
        for entry in super().names(path):
            self.read_names += 1
            yield entry


class Store:
    """A directory whose file layer counts."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.files: CountingFiles
        self.directory: Directory

    async def open(self) -> None:
        self.directory = await Directory.open(self.place, ManualClock(), files=self._opened)

    def _opened(self, root: str) -> Files:
        self.files = CountingFiles(root)
        return self.files

    @property
    def objects(self) -> Objects:
        return self.directory.objects

    def fill(self, folder: str, count: int) -> list[str]:
        """Many plain files, as another tool would put there."""
        (self.place / folder).mkdir(parents=True, exist_ok=True)
        keys = [f"{folder}/{n:06}" for n in range(count)]
        for key in keys:
            (self.place / key).touch()
        return keys

    def rest(self, *folders: str) -> None:
        """As if nothing had changed in these directories for long."""
        for folder in ("", *folders):
            os.utime(self.place / folder, (LONG_AGO, LONG_AGO))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path)
    await store.open()
    yield store
    await store.directory.close()


async def test_a_directory_larger_than_the_window_is_listed_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "WINDOW", 7)
    keys = store.fill("d", 100) + store.fill("d/000050.d", 20) + store.fill("e", 3)
    for folder in range(30):  # empty ones must neither end a listing nor be shown
        (store.place / f"d/000060-{folder}").mkdir()
    assert [info.key for info in await listed(store.objects, limit=9)] == sorted(keys)


async def test_a_large_directory_at_rest_is_not_read_again_for_every_page(store: Store) -> None:
    store.fill("d", 1_000)
    store.rest("d")
    shown = await listed(store.objects, limit=50)
    assert len(shown) == 1_000
    assert store.files.read_names < 2 * 1_000


async def test_a_page_costs_the_same_however_many_were_read_before(store: Store) -> None:
    for folder in range(20):
        store.fill(f"d{folder:02}", 50)
    costs, after = [], None
    for _ in range(19):
        before = store.files.read_names
        after = (await store.objects.page("", after, 50)).cursor
        costs.append(store.files.read_names - before)
    assert max(costs) <= 2 * costs[0] + 50


@pytest.mark.parametrize("rested", [True, False])
async def test_what_changes_in_a_directory_between_two_pages_is_seen(store: Store, rested: bool) -> None:
    keys = store.fill("d", 20)
    if rested:
        store.rest("d")
    first = await store.objects.page("d/", None, 5)
    await store.objects.create("d/000010-new", b"")
    os.unlink(store.place / keys[15])
    rest = await store.objects.page("d/", first.cursor, 100)
    expected = sorted({*keys, "d/000010-new"} - {keys[15]})
    assert [info.key for info in (*first, *rest)] == expected


async def test_a_change_that_the_file_system_gives_no_later_time_is_seen(store: Store) -> None:
    keys = store.fill("d", 20)
    store.rest()
    state = os.stat(store.place / "d")  # changed just now: within one tick of its clock
    first = await store.objects.page("d/", None, 5)
    (store.place / "d/000010-new").touch()
    os.utime(store.place / "d", ns=(state.st_atime_ns, state.st_mtime_ns))
    rest = await store.objects.page("d/", first.cursor, 100)
    assert [info.key for info in (*first, *rest)] == sorted([*keys, "d/000010-new"])


async def test_a_name_that_is_replaced_while_its_directory_is_read_is_not_missed(store: Store) -> None:
    class Missing(CountingFiles):
        """Passes over a name that is replaced during the first scan, as some file systems do."""

        scans = 0

        def names(self, path: bytes) -> Iterator[tuple[bytes, bool]]:
            entries = list(super().names(path))
            if path != b"d":
                yield from entries
                return
            self.scans += 1
            if self.scans == 1:
                os.utime(store.place / "d", (LONG_AGO, LONG_AGO))
                os.rename(store.place / "new", store.place / keys[3])
            yield from (entry for entry in entries if self.scans > 1 or entry[0] != b"000003")

    keys = store.fill("d", 10)
    (store.place / "new").touch()
    directory = await Directory.open(store.place, ManualClock(), files=Missing)
    shown = [info.key for info in await listed(directory.objects, "d/", limit=100)]
    await directory.close()
    assert shown == keys


async def test_what_no_key_can_name_is_no_object(store: Store) -> None:
    keys = store.fill("d", 2)
    for name in ("%2Fetc", "%41", "%zz", "a%l", "%m00.x", "%o2", "tab\there", "%2e"):
        (store.place / "d" / name).touch()
    (store.place / "d/link").symlink_to(store.place / keys[0])
    (store.place / "d/loop").symlink_to(store.place)
    os.mkfifo(store.place / "d/pipe")
    shown = [info.key for info in await listed(store.objects)]
    heads = [await store.objects.head(f"d/{name}") for name in ("link", "loop", "pipe", "%41")]
    assert (shown, heads) == (keys, [None] * 4)


async def test_files_of_other_tools_are_objects(store: Store) -> None:
    (store.place / "notes").mkdir()
    (store.place / "notes/today.txt").write_text("hello")
    (info,) = await listed(store.objects)
    head = await store.objects.head("notes/today.txt")
    assert (info.key, info.size, head and head.info) == ("notes/today.txt", 5, info)
    assert await store.objects.replace("notes/today.txt", b"bye", at=info.version)
    assert (store.place / "notes/today.txt").read_text() == "bye"


async def test_an_object_that_another_tool_writes_into_is_not_given_out_mixed(store: Store) -> None:
    await store.objects.create("a", bytes(3_000_000))
    reading = store.objects.read("a")
    await anext(reading)
    with (store.place / "a").open("r+b") as file:
        file.seek(2_900_000)
        file.write(b"other")
    with pytest.raises(Exception, match="not there, or not in the version"):
        async for _ in reading:
            pass


async def test_listings_and_changes_by_many_at_once_agree(store: Store) -> None:
    steady = store.fill("d", 200)
    stop = threading.Event()

    def churn() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            (store.place / "d" / f"x{number % 50}").touch()
            (store.place / "d" / f"x{number % 50}").unlink()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        shown = [{info.key for info in await listed(store.objects, "d/0", limit=77)} for _ in range(10)]
    finally:
        stop.set()
        thread.join()
    assert shown == [set(steady)] * 10


async def test_a_glob_for_objects_matches_no_metadata(store: Store) -> None:
    await store.objects.create("archive/a.jsonl.gz", b"1", metadata={"entries": "1"})
    await store.objects.create("archive/b.jsonl.gz", b"2", metadata={"entries": "1"})
    files = sorted(path.name for path in (store.place / "archive").glob("*.jsonl.gz"))
    assert files == ["a.jsonl.gz", "b.jsonl.gz"]
    assert [info.key for info in await listed(store.objects)] == ["archive/a.jsonl.gz", "archive/b.jsonl.gz"]


@pytest.mark.parametrize("change", ["delete", "replace", "copy"])
async def test_metadata_under_the_name_of_earlier_versions_is_read_and_removed(store: Store, change: str) -> None:
    made = await store.objects.create("d/x.gz", b"1", metadata={"entries": "1"})
    assert made.version is not None
    (new,) = (store.place / "d").glob("%m*")
    new.rename(new.with_suffix(""))
    head = await store.objects.head("d/x.gz")
    assert head is not None
    assert head.metadata == {"entries": "1"}
    assert [info.key for info in await listed(store.objects)] == ["d/x.gz"]
    if change == "copy":
        await store.objects.copy("d/x.gz", "d/y.gz", at=made.version)
        copied = await store.objects.head("d/y.gz")
        assert copied is not None
        assert copied.metadata == {"entries": "1"}
    elif change == "replace":
        await store.objects.replace("d/x.gz", b"2", at=made.version)
    else:
        await store.objects.delete([ObjectDelete("d/x.gz", made.version)])
    left = {path.name.partition(".")[2] for path in store.place.glob("d/%m*")}
    assert left == ({"x.gz", "y.gz.meta"} if change == "copy" else set())
