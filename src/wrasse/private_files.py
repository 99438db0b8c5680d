"""Files and directories for their owner alone: 0600 and 0700 under any umask, since payloads and tokens are in them.

The modes of what is already there are never changed: `wrasse doctor` names what others may read, and the chmod for it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

FILE_MODE = 0o600
FOLDER_MODE = 0o700


def open_private(path: str, flags: int) -> int:
    """The `opener` of `open` for a file that may be new."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def make_private_file(path: str) -> None:
    """An empty file, unless there is one. It is not opened: closing it would end the locks of SQLite on the file."""
    with suppress(OSError):  # SQLite says why, when it opens the file
        os.mknod(os.path.realpath(path), FILE_MODE | stat.S_IFREG)


def make_private_folders(path: str | os.PathLike[str]) -> None:
    """The directory and those above it, as far as they are not there. FileExistsError if a file is in the way."""
    try:
        os.mkdir(path, FOLDER_MODE)
    except FileNotFoundError:
        above = os.path.dirname(os.path.abspath(path))
        make_private_folders(above)
        make_private_folders(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
