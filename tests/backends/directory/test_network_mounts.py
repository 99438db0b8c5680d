"""A directory that other hosts have too, as on NFS: what is asked of its mount, and what is allowed for."""

from __future__ import annotations

import errno
import fcntl
import os
from datetime import timedelta
from pathlib import Path

import pytest

from wrasse.backends.directory.connect import Directory
from wrasse.backends.directory.files import Files, Mount, mount_of
from wrasse.clock import ManualClock, SystemClock
from wrasse.errors import Refused
from wrasse.runtime.backends import RecordsAlone

OPTIONS = frozenset(("rw", "vers=4.2", "hard", "local_lock=none"))
TABLE = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
90 27 0:55 / /srv rw,noatime shared:7 - nfs4 files:/export rw,vers=4.2,hard,local_lock=none
"""


class Nfs(Files):
    """A local disk that says it is NFS, and can no more than that."""

    options = OPTIONS

    def mount(self) -> Mount:
        return Mount("nfs4", self.options)

    def blank(self, folder: bytes) -> int:
        raise OSError(errno.EOPNOTSUPP, "no files without a name")

    def exchange(self, one: bytes, other: bytes) -> bool:
        return False

    def try_lock(self, file: int, *, shared: bool = False) -> bool:
        if not shared and fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "open for reading only")
        return super().try_lock(file, shared=shared)


class OwnLocks(Nfs):
    options = OPTIONS - {"local_lock=none"} | {"local_lock=flock"}


class Forgetful(Nfs):
    options = OPTIONS | {"noac"}


class NoLocks(Files):
    def try_lock(self, file: int, *, shared: bool = False) -> bool:
        raise OSError(errno.ENOLCK, "no locks available")


class EverybodysLocks(Files):
    def try_lock(self, file: int, *, shared: bool = False) -> bool:
        return True


@pytest.mark.parametrize(
    ("device", "found"),
    [
        ((254, 0), Mount("ext4", frozenset(("rw", "relatime", "discard")))),
        ((0, 55), Mount("nfs4", OPTIONS | {"noatime"})),
        ((0, 99), Mount()),
    ],
)
def test_a_mount_is_found_by_its_device(device: tuple[int, int], found: Mount) -> None:
    assert mount_of(device, TABLE) == found


@pytest.mark.parametrize(("files", "margin"), [(Nfs, timedelta(seconds=1)), (Files, timedelta(0))])
async def test_clocks_of_other_hosts_are_allowed_for(tmp_path: Path, files: type[Files], margin: timedelta) -> None:
    directory = await Directory.open(tmp_path, files=files)
    store = RecordsAlone(directory, SystemClock(), 0)
    await directory.close()
    assert store.margin == margin


@pytest.mark.parametrize(
    ("files", "says"), [(OwnLocks, "do not see"), (NoLocks, "no locks"), (EverybodysLocks, "no locks between")]
)
async def test_locks_that_others_do_not_see_are_refused(tmp_path: Path, files: type[Files], says: str) -> None:
    with pytest.raises(Refused, match=says):
        await Directory.open(tmp_path, files=files)


async def test_what_a_dead_writer_left_is_cleaned_on_nfs_too(tmp_path: Path) -> None:
    clock = ManualClock()
    directory = await Directory.open(tmp_path, clock, files=Nfs)
    dead = directory._temp_files.begin()
    directory._files.close(dead.file)
    await directory.close()
    clock.advance(timedelta(hours=1, seconds=1))
    await (await Directory.open(tmp_path, clock, files=Nfs)).close()
    assert os.listdir(tmp_path / "%w/temp") == []


@pytest.mark.parametrize(("files", "told"), [(Nfs, 1), (Forgetful, 0), (Files, 0)])
async def test_the_doctor_warns_of_a_mount_that_remembers(tmp_path: Path, files: type[Files], told: int) -> None:
    directory = await Directory.open(tmp_path, files=files)
    found = await directory.examine()
    await directory.close()
    assert ["noac" in each.do for each in found] == [True] * told
