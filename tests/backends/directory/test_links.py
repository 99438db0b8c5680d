"""Symbolic links inside a directory store: nothing is written, read, listed or deleted behind one, at whatever moment
it takes the place of a directory. The root itself may be one."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conformance.object_stores import listed
from wrasse.backends.directory.connect import Directory
from wrasse.backends.directory.files import Files, open_by_steps
from wrasse.errors import StoreBroken
from wrasse.ports.objects import ObjectDelete
from wrasse.ports.outcome import Outcome
from wrasse.ports.records import Collection

RECORDS = Collection.named("records")


class SteppingFiles(Files):
    """As on a kernel without openat2."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._open = open_by_steps


class SwappingFiles(Files):
    """Puts a link in the place of a directory just before the call that gives an object its name."""

    def name(self, file: int, target: bytes) -> None:
        swap(Path(self.root))
        super().name(file, target)


def swap(root: Path) -> None:
    if (root / "a").exists() and not (root / "a").is_symlink():
        (root / "a").rename(root.parent / "moved")
        (root / "a").symlink_to(root.parent / "outside")


@pytest.fixture(params=[Files, SteppingFiles], ids=["openat2", "by steps"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Directory]:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("theirs")
    (tmp_path / "outside/deep").mkdir()
    (tmp_path / "outside/k.json").write_text("{}")
    directory = await Directory.open(tmp_path / "data", files=request.param)
    yield directory
    await directory.close()


def outside(tmp_path: Path) -> list[str]:
    return sorted(str(path.relative_to(tmp_path / "outside")) for path in (tmp_path / "outside").rglob("*"))


THEIRS = ["deep", "k.json", "secret"]


@pytest.mark.parametrize("key", ["a/b", "a/deep/b", "a/deep", "a/secret/b", "a/new/b"])
async def test_nothing_is_written_behind_a_link(store: Directory, tmp_path: Path, key: str) -> None:
    (tmp_path / "data/a").symlink_to(tmp_path / "outside")
    with pytest.raises(StoreBroken):
        await store.objects.create(key, b"ours", metadata={"m": "1"})
    with pytest.raises(StoreBroken):
        await store.objects.create(key, b"ours")
    assert outside(tmp_path) == THEIRS


async def test_nothing_is_read_listed_or_deleted_behind_a_link(store: Directory, tmp_path: Path) -> None:
    (tmp_path / "data/a").symlink_to(tmp_path / "outside")
    (tmp_path / "data/b").mkdir()
    (tmp_path / "data/b/c").symlink_to("../../outside")
    found = os.stat(tmp_path / "outside/secret")
    version = f"{found.st_mtime_ns:x}.{found.st_ino:x}"
    for key in ("a/secret", "b/c/secret"):
        assert await store.objects.head(key) is None
        assert list(await store.objects.delete([ObjectDelete(key, version)])) == [Outcome.CONFLICT]
    assert await listed(store.objects) == []
    assert await listed(store.objects, prefix="a/") == []
    assert outside(tmp_path) == THEIRS


async def test_no_record_is_kept_behind_a_link(store: Directory, tmp_path: Path) -> None:
    (tmp_path / "data/records").symlink_to(tmp_path / "outside")
    records = store.records(RECORDS)
    assert await records.get("k") is None
    with pytest.raises(StoreBroken):
        await records.create("k", b"ours")
    assert outside(tmp_path) == THEIRS


@pytest.mark.parametrize("kind", ["directory", "pipe", "socket"])
async def test_what_is_no_file_in_the_place_of_a_record_costs_that_record(
    store: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    records = store.records(RECORDS)
    for key in "abc":
        assert await records.create(key, b"{}")
    taken = tmp_path / "data/records/r/b.json"
    taken.unlink()
    if kind == "directory":
        (taken / "sub").mkdir(parents=True)
    elif kind == "pipe":
        os.mkfifo(taken)
    else:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("data/records/r/b.json")  # a longer path is none for a socket
    assert [each.key for each in await records.page("", None, 10)] == ["a", "c"]
    assert await records.get("b") is None


async def test_a_link_that_takes_a_directorys_place_during_a_write_gets_nothing(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    store = await Directory.open(tmp_path / "data", files=SwappingFiles)
    (tmp_path / "data/a").mkdir()
    with pytest.raises(StoreBroken, match="link"):
        await store.objects.create("a/b", b"ours")
    await store.close()
    assert outside(tmp_path) == []


async def test_a_workplace_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "data/%w").symlink_to(tmp_path / "outside")
    with pytest.raises(StoreBroken, match="links inside a store are not followed"):
        await Directory.open(tmp_path / "data")
    assert outside(tmp_path) == []


async def test_a_root_that_is_a_link_is_a_store_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "real")
    store = await Directory.open(tmp_path / "data")
    await store.objects.create("a/b", b"ours")
    await store.close()
    assert (tmp_path / "real/a/b").read_bytes() == b"ours"


async def test_no_directory_stays_open_after_a_call_that_asked_about_many_paths(
    store: Directory, tmp_path: Path
) -> None:
    for key in ("a/b", "a/c", "d/e"):
        await store.objects.create(key, b"ours", metadata={"m": "1"})
    found = await listed(store.objects)
    assert [await store.objects.head(each.key) is not None for each in found] == [True] * 3
    await store.objects.delete([ObjectDelete(each.key, each.version) for each in found])
    assert open_below(tmp_path / "data") == []


def open_below(root: Path) -> list[str]:
    """The directories below the root that this process has open."""
    opened = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    return [each for each in opened if each.startswith(f"{root}/") and Path(each).is_dir()]
