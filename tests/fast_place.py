"""Where the tests' files live: in memory if there is room: most of what they wait for otherwise is a flush.

Nothing that they prove needs a disk: processes are killed, machines are not. TMPDIR, where it is set, counts instead.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
ROOM = 6 << 30
NAME = "wrasse-tests-"


def settle() -> Path | None:
    """Makes a place in memory that every process of this run uses for its temporary files; None if there is none."""
    if "TMPDIR" in os.environ or not os.access(SHARED_MEMORY, os.W_OK):
        return None
    _sweep()
    if min(shutil.disk_usage(SHARED_MEMORY).free, _available()) < ROOM:
        return None
    place = SHARED_MEMORY / f"{NAME}{os.getpid()}"
    place.mkdir(mode=0o755)
    os.environ["TMPDIR"], tempfile.tempdir = str(place), None
    return place


def leave(place: Path) -> None:
    """Gives the memory back."""
    shutil.rmtree(place, ignore_errors=True)


def _sweep() -> None:
    """Takes away what runs left that were killed."""
    for left in SHARED_MEMORY.glob(f"{NAME}*"):
        if not Path("/proc", left.name.removeprefix(NAME)).exists():
            shutil.rmtree(left, ignore_errors=True)


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0
