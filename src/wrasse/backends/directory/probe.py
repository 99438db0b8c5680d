"""What the promises need of a file system, tried out before anything is promised.

Hard links give `create` one winner, exact times make versions, locks between processes keep a change and its condition
together, and a directory that was written by a later version of wrasse is not touched. Whether two names can be
exchanged decides only the way in which `a` comes to stand beside `a/b`, and whether files may go without a name for a
while only what a writer leaves that is killed.
"""

from __future__ import annotations

from contextlib import suppress

from wrasse.backends.directory import gone, locks, places, temps
from wrasse.backends.directory.files import Files
from wrasse.backends.directory.names import WORKPLACE
from wrasse.backends.directory.places import inside
from wrasse.backends.directory.temps import Temps
from wrasse.errors import Refused, StoreBroken

_FORMAT = WORKPLACE + b"/format"
_FORMAT_BYTES = b"wrasse directory 1\n"
_ODD = 1_234_567_891  # nanoseconds that only an exact file system gives back


def prepare(files: Files, temporary: Temps) -> bool:
    """Makes the workplace, and refuses a directory that will not do. Says whether names can be exchanged."""
    for folder in (WORKPLACE, temps.FOLDER, locks.FOLDER, gone.FOLDER):
        with suppress(FileExistsError):
            files.make_folder(folder)
    files.sync_folder(WORKPLACE)
    files.sync_folder(b"")
    _probe_locks(files, temporary.path())
    _check_format(files, temporary)
    exchanges = _probe(files, temporary)
    if not exchanges:
        with suppress(FileExistsError):
            files.make_folder(places.FOLDER)
    return exchanges


def _check_format(files: Files, temporary: Temps) -> None:
    found = files.load(_FORMAT)
    if found is None:
        with temporary.holding(_FORMAT_BYTES, renamed=True) as temp:
            files.rename(temp.path, _FORMAT)  # two who open at once write the same
    elif found != _FORMAT_BYTES:
        raise StoreBroken(
            f"{files.root} was written by another version of wrasse", do="use that version, or name another directory"
        )


def _probe(files: Files, temporary: Temps) -> bool:
    temporary.blanks = _names_blanks(files, temporary)
    with temporary.holding(b"") as temp:
        files.set_stamp(temp.file, _ODD)
        if files.state_of(temp.file).stamp != _ODD:
            raise _lacks(files, "times exact to the nanosecond")
        folder = temporary.path()
        files.make_folder(folder)
        try:
            try:
                files.link(temp.path, inside(folder))
            except OSError as why:
                raise _lacks(files, "hard links") from why
            # Where one process cannot exchange names, all who share the directory take turns.
            return files.state(places.FOLDER) is None and _exchanges(files, temp.path, folder)
        finally:
            files.unlink(inside(folder))
            files.remove_folder(folder)


def _probe_locks(files: Files, path: bytes) -> None:
    """What is locked is refused to whoever opens it again, here and on every host that has the file system too."""
    if files.mount().locks_apart:
        raise Refused(
            f"{files.root} is mounted so that other hosts do not see this one's locks",
            do="mount it without nolock, local_lock and nobrl",
        )
    first = files.open_lock(path)
    second = files.open_lock(path)
    try:
        if not files.try_lock(first) or files.try_lock(second):
            raise _lacks(files, "locks between processes")
    except OSError as why:
        raise _lacks(files, "locks") from why
    finally:
        files.close(second)
        files.close(first)
        files.unlink(path)


def _names_blanks(files: Files, temporary: Temps) -> bool:
    """Whether a file may come without a name and get one later. NFS cannot, and /proc may be hidden from us."""
    path = temporary.path()
    try:
        file = files.blank(temps.FOLDER)
    except OSError:
        return False
    try:
        files.name(file, path)
    except OSError:
        return False
    finally:
        files.close(file)
        files.unlink(path)
    return True


def _exchanges(files: Files, one: bytes, other: bytes) -> bool:
    return files.exchange(one, other) and files.exchange(one, other)  # there and back


def _lacks(files: Files, what: str) -> Refused:
    return Refused(
        f"the file system of {files.root} has no {what}", do="use a directory on ext4, xfs, btrfs, zfs, tmpfs or NFS"
    )
