"""Which files become jobs, with which priority and under which id. Pure.

The id of a file's job is made of its path, size and time of change. A file that was put is the same job for whoever
finds it again; a file that changed is another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from os.path import splitext

import msgspec

from wrasse.jobs.globs import Globs, parse_globs

HIGH = "high"


class Skipped(StrEnum):
    """Why something that was found is not put: a closed set, fit for a label."""

    EXCLUDED = "excluded"  # no include pattern matches, or an exclude pattern does
    OUTSIDE = "outside"  # a link that leads out of the directory, or nowhere
    LINKED = "linked"  # a link to a directory: what it leads to is found where it is
    SPECIAL = "special"  # no file: a socket, a pipe, a device
    VANISHED = "vanished"  # gone before it could be looked at
    UNREADABLE = "unreadable"  # may not be looked at
    UNNAMEABLE = "unnameable"  # its name is no text
    TOO_DEEP = "too_deep"  # a directory below too many others


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as it was when it was looked at. `path` is absolute."""

    path: str
    size: int
    changed: int  # nanoseconds since 1970: the time its content changed

    @property
    def job_id(self) -> str:
        """The same for the same content at the same place."""
        facts = f"{self.path}\0{self.size}\0{self.changed}"
        return f"file-{blake2b(facts.encode(), digest_size=16).hexdigest()}"

    @property
    def payload(self) -> bytes:
        """What its job carries. Exactly this form is what Redis stores as the design document's two fields, so that
        the job of a file looks the same whichever program put it."""
        return msgspec.json.encode({"filepath": self.path, "filesize": self.size})


@dataclass(frozen=True, slots=True)
class FileRules:
    """Which files are taken, and how urgent each is."""

    include: Globs
    exclude: Globs
    urgent: frozenset[str]  # extensions in small letters, with their dot

    @classmethod
    def of(cls, include: Sequence[str], exclude: Sequence[str], urgent: Sequence[str]) -> FileRules:
        """The rules that these patterns and extensions make; without an include pattern every file is taken."""
        dotted = (each.lower() if each.startswith(".") else f".{each.lower()}" for each in urgent if each)
        return cls(parse_globs(include or ("**",)), parse_globs(exclude), frozenset(dotted))

    def takes(self, relative: str) -> bool:
        """Is the file at this path, relative to the directory, one to put?"""
        return self.include.match(relative) and not self.exclude.match(relative)

    def leaves(self, directory: str) -> bool:
        """Can nothing below this directory be one to put?"""
        return self.exclude.covers(directory)

    def priority(self, path: str, default: str, known: Mapping[str, str]) -> str:
        """`high` for urgent extensions if there is such a priority, else the default."""
        urgent = splitext(path)[1].lower() in self.urgent
        return HIGH if urgent and HIGH in known else default
