"""Where rounds keep their spools: a directory per root, and in it one per round that is under way.

Whoever works in a directory holds its lock; what nobody holds was left by a process that died, and is removed. Of the
last complete round one file stays: which units were protected, for the next round to compare with.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from wrasse.errors import UsageError
from wrasse.private_files import make_private_folders

_ROUND = re.compile(r"[0-9A-Z]{26}")
_PROTECTED = ".protected"
_PROTECTED_KEPT = 2  # that of the last round, and one more for a commit that another process won


class Workplace:
    """The directory of one root."""

    def __init__(self, spool: Path, root: str) -> None:
        self._place = spool / root

    @contextmanager
    def opened(self, round: str) -> Iterator[Path]:
        """A directory for one round, gone when it is over."""
        try:
            make_private_folders(self._place)
        except (FileExistsError, NotADirectoryError, PermissionError) as why:
            raise UsageError(
                f"{self._place} cannot be a directory for spools: {why.strerror}", do="set orphans_spool to one"
            ) from None
        self._clear()
        place = self._place / round
        make_private_folders(place)
        lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)
            os.close(lock)

    def keep_protected(self, path: Path, round: str) -> None:
        """Keeps the list of protected units of a round that is about to be committed."""
        os.rename(path, self._place / f"{round}{_PROTECTED}")

    def protected(self, round: str) -> Path | None:
        """The list of protected units of that round, if it was made on this machine and is still here."""
        path = self._place / f"{round}{_PROTECTED}"
        return path if path.exists() else None

    def _clear(self) -> None:
        kept = sorted(self._place.glob(f"*{_PROTECTED}"), reverse=True)[_PROTECTED_KEPT:]
        for path in kept:
            path.unlink(missing_ok=True)
        for place in self._place.iterdir():
            if _ROUND.fullmatch(place.name) and place.is_dir() and not _held(place):
                shutil.rmtree(place, ignore_errors=True)


def _held(place: Path) -> bool:
    """Whether somebody works there, or has only just begun to."""
    with suppress(OSError):
        lock = os.open(place / "lock", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
    return True
