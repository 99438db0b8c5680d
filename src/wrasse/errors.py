"""Every error a user can meet, each with what happened, where, and what to do.

Three kinds. The world failed (`StoreUnavailable` and its like): counted, and tried again by whoever waits. The user
made a mistake (`UsageError` and its like): said once, clearly, with a way out. We made a mistake: an assertion, which
stops the process; a restart is safe, going on is not.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Iterable
from typing import TypeVar

KNOWN_MAX = 40  # names that one message lists; nobody reads more
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT})
_CAUSES_MAX = 8  # followed from one error


class WrasseError(Exception):
    """Anything wrasse raises on purpose."""

    exit_code = 1

    def __init__(self, message: str, *, do: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.do = do

    def __str__(self) -> str:
        return f"{self.message}\ndo: {self.do}" if self.do else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword arguments do not survive the default, and errors travel between processes.
        return (_rebuild, (type(self), self.message, self.do))


def _rebuild(kind: type[WrasseError], message: str, do: str) -> WrasseError:
    error = kind.__new__(kind)
    WrasseError.__init__(error, message, do=do)
    return error


class StoreUnavailable(WrasseError):
    """A backend did not answer, or answered that it cannot serve now. Tried again later."""


class OnlyReads(StoreUnavailable):
    """A backend does not let this user change anything there. Nothing was changed."""


class StoreFull(StoreUnavailable):
    """A backend has no room left. Nothing was changed."""


class StoreBroken(WrasseError):
    """What a backend holds is not what wrasse wrote there: damaged, foreign, or of another version."""


class UsageError(WrasseError):
    """The call or the command line is wrong."""

    exit_code = 2


class ConfigError(UsageError):
    """A setting is wrong. The message names its path and where it came from."""


class BadDuration(ConfigError):
    """A text that is not a duration."""


class UnknownName(UsageError):
    """A setting, command, sweep, queue or handler that does not exist; suggests the nearest that does."""

    def __init__(
        self, name: str, known: Iterable[str], *, what: str = "setting", where: str = "", do: str = "see what there is"
    ) -> None:
        """`do` is said where there are none to name, or too many."""
        known = sorted(known)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        place = f" in {where}" if where else ""
        few = f"use one of: {', '.join(known)}" if 0 < len(known) <= KNOWN_MAX else do
        super().__init__(f"there is no {what} {name!r}{place}", do=f"write {near[0]!r}" if near else few)


class TooLarge(UsageError):
    """A payload, a key or a record beyond its limit. Nothing was written."""


class Refused(WrasseError):
    """Wrasse will not do this because it would not be safe."""

    exit_code = 3


class Gone(WrasseError):
    """An object that was there is not there any more, or is another version."""


class LeaseLost(WrasseError):
    """The lease ended or changed hands while it was needed."""


class JobFailed(WrasseError):
    """A job that was waited for ended dead."""


class OutOfResources(WrasseError):
    """This machine had no file descriptor, memory, process or thread left for what a job needs. The job is released
    without spending a retry."""


class BadPayload(WrasseError):
    """A payload that the handler's kind cannot be decoded to. The job is dead-lettered with its bytes."""


def exhausted(error: BaseException) -> str:
    """Which resource of the machine ran out, if the error says so, one that it came from, or one of its group."""
    found: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if isinstance(found, BaseExceptionGroup) and (why := next(filter(None, map(exhausted, found.exceptions)), "")):
            return why
        if isinstance(found, OutOfResources | StoreFull):
            return found.message
        if isinstance(found, MemoryError):
            return os.strerror(errno.ENOMEM)
        if isinstance(found, OSError) and found.errno in _EXHAUSTED:
            return os.strerror(found.errno)
        if found is not None:
            found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return ""


def reason_of(error: OSError) -> str:
    """What the system says of it. asyncio puts the address where the reason should be, and where a name has several
    addresses, all of them; the first one's reason will do."""
    said = error.strerror or str(error)
    if error.errno and said.startswith("Connect call failed"):
        return os.strerror(error.errno)
    if said.startswith("Multiple exceptions") and (first := re.search(r"\[Errno (\d+)\]", said)):
        return os.strerror(int(first[1]))
    return said


def unsettled(where: str) -> WrasseError:
    """A store refuses a write again and again, and nobody else wrote."""
    return StoreUnavailable(f"{where} refuses a write although its condition holds", do="try again later")


E = TypeVar("E", bound=BaseException)


def first_error(group: BaseExceptionGroup[E]) -> E:
    """What went wrong first in a group, groups in it taken apart; an error of ours before any other."""
    flat = [first_error(each) if isinstance(each, BaseExceptionGroup) else each for each in group.exceptions]
    return min(flat, key=lambda error: not isinstance(error, WrasseError))
