"""Opening a directory, what it looks like to other tools, and what goes wrong in it."""

from __future__ import annotations

import asyncio
import errno
import gzip
import json
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from conformance.object_stores import listed
from wrasse.backends.directory.connect import Directory
from wrasse.backends.directory.files import Files
from wrasse.clock import ManualClock
from wrasse.errors import Refused, StoreBroken, StoreFull, StoreUnavailable, UsageError
from wrasse.ports.objects import ObjectDelete
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection

LEASES = Collection(data="default/meta", index="default/.lease-index", buckets="default/.lease-index/buckets.json")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def directory(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Directory]:
    directory = await Directory.open(tmp_path / "data", clock)
    yield directory
    await directory.close()


# What other tools see


async def test_an_archive_is_a_plain_file_at_its_natural_path(directory: Directory, tmp_path: Path) -> None:
    await directory.objects.create("archive/audit/2026/02/14/x.jsonl.gz", gzip.compress(b"{}\n"), metadata={"n": "1"})
    assert gzip.decompress((tmp_path / "data/archive/audit/2026/02/14/x.jsonl.gz").read_bytes()) == b"{}\n"


async def test_a_record_is_a_json_file_that_shows_its_value(
    directory: Directory, tmp_path: Path, clock: ManualClock
) -> None:
    await directory.records(LEASES).create(
        "orders/42", b'{"owner": "w1",  "token": 7}', due_at=clock.now() + timedelta(hours=1, minutes=59)
    )
    root = tmp_path / "data/default"
    assert json.loads((root / "meta/orders%2F42.json").read_text())["value"] == {"owner": "w1", "token": 7}
    assert json.loads((root / ".lease-index/buckets.json").read_text()) == ["2026010101"]
    assert (root / ".lease-index/2026010101/orders%2F42").read_text() == "{}"


VALUES = [b'{"a":1}', b' {"a":1}', b"1\n", b'"\\u00e9"', b'"\xff"', b"NaN", b"1e999", b"", b"null", b'{"a":1,"a":2}']


@pytest.mark.parametrize("value", VALUES)
async def test_a_value_comes_back_byte_for_byte(directory: Directory, value: bytes) -> None:
    await directory.records(LEASES).create("a", value)
    record = await directory.records(LEASES).get("a")
    assert record is not None
    assert record.value == value


@pytest.mark.parametrize(
    ("width", "bucket"),
    [(timedelta(hours=1), "2026010101"), (timedelta(minutes=1), "202601010105"), (timedelta(hours=6), "2026010100")],
)
async def test_buckets_are_as_wide_as_the_collection_says(
    directory: Directory, tmp_path: Path, clock: ManualClock, width: timedelta, bucket: str
) -> None:
    records = directory.records(Collection("d", "i", "i/buckets.json", width))
    await records.create("a", b"", due_at=clock.now() + timedelta(minutes=65, seconds=30))
    early = len(await records.due(clock.now() + timedelta(minutes=65, seconds=29), None, 10))
    late = len(await records.due(clock.now() + timedelta(minutes=65, seconds=30) + width, None, 10))
    assert (sorted(os.listdir(tmp_path / "data/i")), early, late) == ([bucket, "buckets.json"], 0, 1)


async def test_buckets_of_no_whole_unit_are_refused(directory: Directory) -> None:
    with pytest.raises(UsageError, match=r"buckets of 0\.5 s"):
        directory.records(Collection.named("x", width=timedelta(seconds=0.5)))


async def test_an_empty_bucket_leaves_the_list_once_it_is_over(
    directory: Directory, tmp_path: Path, clock: ManualClock
) -> None:
    records = directory.records(LEASES)
    written = await records.create("a", b"", due_at=clock.now())
    await records.create("b", b"", due_at=clock.now() + timedelta(hours=5))
    assert written.version is not None
    await records.delete("a", at=written.version)
    await records.due(clock.now() + timedelta(hours=1), None, 10)
    assert json.loads((tmp_path / "data/default/.lease-index/buckets.json").read_text()) == ["2026010105"]


async def test_finding_what_is_due_does_not_read_what_is_not(tmp_path: Path, clock: ManualClock) -> None:
    looked: list[bytes] = []

    class Noting(Files):
        def load(self, path: bytes) -> bytes | None:
            looked.append(path)
            return super().load(path)

    directory = await Directory.open(tmp_path, clock, files=Noting)
    records = directory.records(LEASES)
    for n in range(20):
        await records.create(f"later{n}", b"", due_at=clock.now() + timedelta(hours=5))
    looked.clear()
    await records.due(None, None, 10)
    await directory.close()
    assert looked == [b"default/.lease-index/buckets.json"]


async def test_directories_that_became_empty_go_with_their_last_object(directory: Directory, tmp_path: Path) -> None:
    for key in ("a/b/c/1", "a/b/c/2", "a/2", "b"):
        await directory.objects.create(key, b"", metadata={"m": "1"})
    (tmp_path / "data/kept").mkdir()
    everything = {info.key: info.version for info in await listed(directory.objects)}
    left = []
    for keys in (["a/b/c/1"], ["a/b/c/2"], ["a/2", "b"]):
        await directory.objects.delete([ObjectDelete(key, everything[key]) for key in keys])
        folders = [path for path in (tmp_path / "data").glob("[!%]*/**") if path.is_dir()]
        left.append({str(path.relative_to(tmp_path / "data")) for path in folders})
    assert left == [{"a", "a/b", "a/b/c", "kept"}, {"a", "kept"}, {"kept"}]


# Opening


async def test_a_second_open_finds_what_the_first_one_wrote(tmp_path: Path) -> None:
    first = await Directory.open(tmp_path)
    second = await Directory.open(str(tmp_path))
    await first.objects.create("a", b"1")
    seen = await second.objects.head("a")
    pulses = [(await each.health_sample()).identity for each in (first, second)]
    await first.close()
    await first.close()
    await second.close()
    assert (seen is not None, len(set(pulses))) == (True, 1)


async def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file/below", ""):
        with pytest.raises(UsageError):
            await Directory.open(path)


async def test_a_directory_of_a_later_version_is_not_touched(tmp_path: Path) -> None:
    await (await Directory.open(tmp_path)).close()
    (tmp_path / "%w/format").write_text("wrasse directory 2\n")
    with pytest.raises(StoreBroken, match="another version"):
        await Directory.open(tmp_path)


async def test_a_file_system_without_hard_links_is_refused(tmp_path: Path) -> None:
    class NoLinks(Files):
        def link(self, source: bytes, target: bytes) -> None:
            raise PermissionError(errno.EPERM, "no links here")

    with pytest.raises(Refused, match="no hard links"):
        await Directory.open(tmp_path, files=NoLinks)


async def test_a_file_system_with_coarse_times_is_refused(tmp_path: Path) -> None:
    class Coarse(Files):
        def set_timestamp(self, file: int, stamp: int) -> None:
            super().set_timestamp(file, stamp // 10**9 * 10**9)

    with pytest.raises(Refused, match="exact to the nanosecond"):
        await Directory.open(tmp_path, files=Coarse)


async def test_only_what_was_left_for_an_hour_is_cleaned_at_open(tmp_path: Path, clock: ManualClock) -> None:
    directory = await Directory.open(tmp_path, clock)
    live = directory._temp_files.begin()  # its writer is alive and only takes long
    dead = directory._temp_files.begin()
    directory._files.close(dead.file)
    await (await Directory.open(tmp_path, clock)).close()
    young = sorted(os.listdir(tmp_path / "%w/temp"))
    clock.advance(timedelta(hours=1, seconds=1))
    recent = directory._temp_files.begin()
    directory._files.close(recent.file)
    await (await Directory.open(tmp_path, clock)).close()
    old = sorted(os.listdir(tmp_path / "%w/temp"))
    directory._files.close(live.file)
    await directory.close()
    names = [os.path.basename(temp.path).decode() for temp in (live, dead, recent)]
    assert (young, old) == (sorted(names[:2]), sorted([names[0], names[2]]))


async def test_a_closed_directory_says_so(tmp_path: Path) -> None:
    directory = await Directory.open(tmp_path)
    await directory.close()
    with pytest.raises(StoreUnavailable, match="is closed"):
        await directory.objects.head("a")


async def test_a_directory_that_was_deleted_has_no_pulse(tmp_path: Path) -> None:
    directory = await Directory.open(tmp_path / "data")
    os.rename(tmp_path / "data/%w", tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable, match="moved or deleted"):
        await directory.health_sample()
    await directory.close()


# What goes wrong


class FailingFiles(Files):
    """Fails every sync of a file with this error."""

    number = 0

    def sync(self, file: int) -> None:
        if self.number:
            raise OSError(self.number, os.strerror(self.number))
        super().sync(file)


@pytest.mark.parametrize(
    ("number", "error", "text"),
    [
        (errno.ENOSPC, StoreFull, "no room left"),
        (errno.EDQUOT, StoreFull, "no room left"),
        (errno.EROFS, StoreUnavailable, "refuses"),
        (errno.EIO, StoreUnavailable, "could not be read or written"),
        (errno.EXDEV, StoreUnavailable, "another file system"),
        (errno.EMFILE, StoreUnavailable, "no more files"),
    ],
)
async def test_a_write_that_the_system_refuses_changes_nothing_and_says_why(
    tmp_path: Path, number: int, error: type[Exception], text: str
) -> None:
    directory = await Directory.open(tmp_path, files=FailingFiles)
    try:
        old = await directory.objects.create("a", b"old")
        FailingFiles.number = number
        assert old.version is not None
        for write in (
            lambda: directory.objects.create("b", b"new", metadata={"m": "1"}),
            lambda: directory.objects.replace("a", b"new", at=old.version or ""),
            lambda: directory.records(LEASES).create("r", b"new"),
        ):
            with pytest.raises(error, match=text):
                await write()
    finally:
        FailingFiles.number = 0
    state = [(info.key, info.version) for info in await listed(directory.objects)], os.listdir(tmp_path / "%w/temp")
    await directory.close()
    assert state == ([("a", old.version)], [])


async def test_a_corrupt_record_is_an_error_and_not_an_absence(directory: Directory, tmp_path: Path) -> None:
    records = directory.records(LEASES)
    await records.create("a", b"1")
    await records.create("b", b"2")
    path = tmp_path / "data/default/meta/a.json"
    for damage in ("", "{", "[]", '{"version": "x"}'):
        path.write_text(damage)
        with pytest.raises(StoreBroken, match="corrupt"):
            await records.get("a")
        # A listing goes past it and shows its bytes as they are, so that one bad file costs one key.
        listed = await records.page("", None, 10)
        assert [(record.key, record.value) for record in listed] == [("a", damage.encode()), ("b", b"2")]


async def test_a_list_of_buckets_of_another_width_is_an_error_and_not_an_absence(
    directory: Directory, tmp_path: Path, clock: ManualClock
) -> None:
    records = directory.records(LEASES)
    await records.create("a", b"1", due_at=clock.now())
    (tmp_path / "data/default/.lease-index/buckets.json").write_text('["202601010100"]')
    with pytest.raises(StoreBroken, match=r"list of buckets .* another width"):
        await records.due(None, None, 10)


async def test_a_symbolic_link_in_the_way_is_an_error(directory: Directory, tmp_path: Path) -> None:
    (tmp_path / "data/link").symlink_to(tmp_path)
    (tmp_path / "data/dead").symlink_to(tmp_path / "nothing")
    for key in ("link", "dead", "dead/below"):
        with pytest.raises(StoreBroken, match="neither file nor directory"):
            await directory.objects.create(key, b"")
    assert await listed(directory.objects) == []


async def test_a_cancelled_upload_leaves_nothing_behind(directory: Directory, tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 20)
            begun.set()

    upload = asyncio.ensure_future(directory.objects.create("a", endless()))
    await asyncio.wait_for(begun.wait(), 30)
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert (os.listdir(tmp_path / "data/%w/temp"), await listed(directory.objects)) == ([], [])


class CountedFiles(Files):
    """Knows which files without a name were made, and how many of them are open at most."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.blanks: set[int] = set()

    def blank(self, folder: bytes) -> int:
        file = super().blank(folder)
        self.blanks.add(file)
        return file

    def close(self, file: int) -> None:
        self.blanks.discard(file)
        super().close(file)


async def test_one_file_is_kept_ready_for_the_next_create_and_let_go_at_the_end(tmp_path: Path) -> None:
    opened: list[CountedFiles] = []

    def files(root: str) -> CountedFiles:
        opened.append(CountedFiles(root))
        return opened[-1]

    directory = await Directory.open(tmp_path, files=files)
    ready = []
    for n in range(3):
        await directory.objects.create(f"k{n}", b"x")
        await directory.health_sample()
        ready.append(len(opened[0].blanks))
    await directory.close()
    assert (ready, opened[0].blanks) == ([1, 1, 1], set())


async def test_a_file_on_its_way_has_no_name_that_a_crash_could_leave(directory: Directory, tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield bytes(2 << 20)
        begun.set()
        await go_on.wait()

    upload = asyncio.ensure_future(directory.objects.create("a", slowly()))
    await asyncio.wait_for(begun.wait(), 30)
    named = os.listdir(tmp_path / "data/%w/temp")
    go_on.set()
    stored = await upload
    assert (named, stored.outcome) == ([], Outcome.DONE)


class HiddenProc(Files):
    """Files may come without a name here, but never get one."""

    def name(self, file: int, target: bytes) -> None:
        raise FileNotFoundError(errno.ENOENT, "no /proc")


async def test_where_files_cannot_be_named_later_they_have_names_from_the_start(tmp_path: Path) -> None:
    directory = await Directory.open(tmp_path, files=HiddenProc)
    stored = [await directory.objects.create("a/b", b"new") for _ in range(2)]
    left = os.listdir(tmp_path / "%w/temp")
    await directory.close()
    assert ([each.outcome for each in stored], left) == ([Outcome.DONE, Outcome.CONFLICT], [])
    assert (tmp_path / "a/b").read_bytes() == b"new"


async def test_calls_cancelled_at_any_moment_leave_no_file_open(directory: Directory) -> None:
    made = await directory.objects.create("a", b"x" * 100_000)

    async def read() -> None:
        async for _ in directory.objects.read("a"):
            pass

    await directory.health_sample()  # the file that is kept ready is there
    before = len(os.listdir("/proc/self/fd"))
    for turn in range(40):
        call = asyncio.ensure_future(read() if turn % 2 else directory.objects.create(f"b{turn}", b"x" * 1000))
        for _ in range(turn // 2 % 5):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
    await directory.health_sample()
    assert len(os.listdir("/proc/self/fd")) <= before
    outcomes = await directory.objects.delete([ObjectDelete("a", made.version or "")])
    assert list(outcomes) == [Outcome.DONE]
