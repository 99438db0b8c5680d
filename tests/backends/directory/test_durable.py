"""What is answered `done` is on the disk: a file layer watches what was written and not yet synced."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from wrasse.backends.directory.connect import Directory
from wrasse.backends.directory.files import Files
from wrasse.backends.directory.object_paths import parent
from wrasse.clock import ManualClock
from wrasse.ports.objects import ObjectDelete
from wrasse.ports.records import Collection

THINGS = Collection.named("things")


class WatchedFiles(Files):
    """Knows which files and which directories hold something that a power failure would take."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.files: set[int] = set()
        self.folders: set[bytes] = set()
        self.gone: dict[bytes, bytes] = {}  # what was removed, and from where
        self.named_too_early: list[bytes] = []

    def at_risk(self) -> set[bytes]:
        """Directories outside the workplace with new names that are not on the disk."""
        return {folder for folder in self.folders if not folder.startswith(b"%w")}

    def create(self, path: bytes) -> int:
        file = super().create(path)
        self.folders.add(parent(path))
        return file

    def write(self, file: int, data: bytes | memoryview) -> None:
        super().write(file, data)
        self.files.add(self.state_of(file).inode)

    def set_timestamp(self, file: int, stamp: int) -> None:
        super().set_timestamp(file, stamp)
        self.files.add(self.state_of(file).inode)

    def sync(self, file: int) -> None:
        super().sync(file)
        self.files.discard(self.state_of(file).inode)

    def sync_folder(self, path: bytes) -> None:
        super().sync_folder(path)
        self.folders.discard(path)
        self.gone = {name: folder for name, folder in self.gone.items() if folder != path}

    def link(self, source: bytes, target: bytes) -> None:
        super().link(source, target)
        self._named(target)

    def name(self, file: int, target: bytes) -> None:
        super().name(file, target)
        self._named(target)

    def rename(self, source: bytes, target: bytes) -> None:
        super().rename(source, target)
        self._named(target)

    def exchange(self, one: bytes, other: bytes) -> bool:
        self.folders.add(parent(one))
        return super().exchange(one, other)

    def unlink(self, path: bytes) -> None:
        if self.state(path) is not None:
            self.gone[path] = parent(path)
        super().unlink(path)

    def make_folder(self, path: bytes) -> None:
        super().make_folder(path)
        self.folders.add(parent(path))

    def _named(self, target: bytes) -> None:
        state = self.state(target)
        if state is not None and state.inode in self.files and not target.startswith(b"%w/temp"):
            self.named_too_early.append(target)
        self.folders.add(parent(target))


Act = Callable[[Directory], Awaitable[object]]


async def version(directory: Directory, key: str) -> str:
    head = await directory.objects.head(key)
    assert head is not None
    return head.info.version


async def replace(directory: Directory) -> None:
    at = await version(directory, "old/a")
    assert await directory.objects.replace("old/a", b"new", at=at, metadata={"m": "2"})


async def put(directory: Directory) -> None:
    record = await directory.records(THINGS).get("old")
    assert record is not None
    due_at = record.due_at and record.due_at + timedelta(hours=5)
    assert await directory.records(THINGS).put("old", b"new", at=record.version, due_at=due_at)


ACTS: dict[str, Act] = {
    "create": lambda directory: directory.objects.create("some/where/new", b"x"),
    "create with metadata": lambda directory: directory.objects.create("some/new", b"x", metadata={"m": "1"}),
    "create below an object": lambda directory: directory.objects.create("old/a/below", b"x"),
    "replace": replace,
    "create a record": lambda directory: directory.records(Collection.named("more")).create(
        "new", b"x", due_at=ManualClock().now()
    ),
    "put a record": put,
}


async def opened(place: Path) -> tuple[Directory, WatchedFiles]:
    watched: list[WatchedFiles] = []

    def files(root: str) -> WatchedFiles:
        watched.append(WatchedFiles(root))
        return watched[-1]

    clock = ManualClock()
    directory = await Directory.open(place, clock, files=files)
    for key in ("old/a", "old/b", "old/c"):
        await directory.objects.create(key, b"old", metadata={"m": "1"})
    await directory.objects.create("plain/a", b"old")
    await directory.records(THINGS).create("old", b"old", due_at=clock.now())
    assert watched[0].at_risk() == set()
    return directory, watched[0]


@pytest.mark.parametrize("name", ACTS)
async def test_what_is_done_survives_a_power_failure(tmp_path: Path, name: str) -> None:
    directory, files = await opened(tmp_path)
    await ACTS[name](directory)
    await directory.close()
    assert (files.at_risk(), files.named_too_early) == (set(), [])


async def test_a_delete_that_is_done_survives_a_power_failure(tmp_path: Path) -> None:
    directory, files = await opened(tmp_path)
    deletes = [ObjectDelete(key, await version(directory, key)) for key in ("old/a", "old/b", "plain/a")]
    await directory.objects.delete(deletes)
    record = await directory.records(THINGS).get("old")
    assert record is not None
    await directory.records(THINGS).delete("old", at=record.version)
    await directory.close()
    assert not {b"old/a", b"old/b", b"plain/a", b"things/r/old.json"} & files.gone.keys()


def entry_of_old(place: Path, *, anew: bool) -> bytes:
    """The directory of the entry, which another process may have made anew before it died."""
    (entry,) = place.glob("things/due/2*/old")
    if anew:
        entry.unlink()
        entry.write_bytes(b"{}")
        os.utime(entry, ns=(1, 1))
    return os.fsencode(entry.parent.relative_to(place))


@pytest.mark.parametrize("anew", [False, True])
async def test_an_entry_that_stayed_is_synced_again_only_if_it_was_made_anew(tmp_path: Path, anew: bool) -> None:
    directory, files = await opened(tmp_path)
    records = directory.records(THINGS)
    before = await records.get("old")
    assert before is not None
    given_back = await records.put("old", b"free", at=before.version, entry_stays=True)
    assert given_back.version is not None
    folder = entry_of_old(tmp_path, anew=anew)
    files.folders.add(folder)  # how we see whether it was put there
    await records.put("old", b"held", at=given_back.version, due_at=before.due_at)
    await directory.close()
    assert (folder in files.at_risk()) is not anew
