"""Maps SQLite's errors to ours. The only place that knows its exceptions.

Errors of our own code (misuse, bindings, constraints) are not mapped: they stop the program, and a retry would not
help.
"""

from __future__ import annotations

import errno
import os

import apsw

from wrasse.errors import StoreBroken, StoreFull, StoreUnavailable

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def ours(error: Exception, where: str, system: int = 0) -> Exception:
    """Our error for one of SQLite's. `where` names the database, `system` is the operating system's error number."""
    match error:
        case apsw.FullError() | apsw.IOError() if isinstance(error, apsw.FullError) or system in _NO_ROOM:
            return StoreFull(f"there is no room left for {where}", do="free some disk space; nothing was changed")
        case apsw.BusyError() | apsw.LockedError() | apsw.ProtocolError():
            return StoreUnavailable(
                f"{where} stayed locked by another process; nothing was changed",
                do="look for a program that keeps it open for writing, such as a shell or a backup",
            )
        case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError():
            return unwritable(where)
        case apsw.NotADBError() | apsw.FormatError():
            return StoreBroken(f"{where} is not a database", do="name another file, or move this one out of the way")
        case apsw.CorruptError() | apsw.SQLError() | apsw.SchemaChangeError():
            return StoreBroken(
                f"{where} is corrupt: {error}",
                do="stop everything that uses it, keep a copy of it with its -wal file, and restore a backup",
            )
        case apsw.CantOpenError():
            why = f": {os.strerror(system)}" if system else ""
            return StoreUnavailable(
                f"{where} cannot be opened{why}", do="check that its directory exists and this user may write there"
            )
        case apsw.IOError() | apsw.NoMemError() | apsw.InterruptError() | apsw.AbortError():
            why = os.strerror(system) if system else str(error)
            return StoreUnavailable(f"{where} could not be read or written: {why}", do="check its disk")
        case _:
            return error


def unwritable(where: str) -> StoreUnavailable:
    """The database or its directory is read-only."""
    return StoreUnavailable(
        f"{where} cannot be written", do="let this user write the file and its directory, or name another file"
    )


def moved(where: str) -> StoreUnavailable:
    """The file at the path is no longer the open one: later writes would be lost."""
    return StoreUnavailable(
        f"{where} was moved, replaced or deleted while it was open; nothing was changed",
        do="put the file back, or start again to begin a new one",
    )


def closed(where: str) -> StoreUnavailable:
    """A call after close."""
    return StoreUnavailable(f"{where} is closed", do="open it again; a store serves until its close() and not after")
