"""One root: where objects are looked for, what shape they have, and how careful to be with them. Pure.

A delay that is shorter than the time a writer may take would delete what is being written, so it is refused.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from datetime import timedelta

from wrasse.duration import format_duration
from wrasse.errors import ConfigError
from wrasse.orphans.template import Template
from wrasse.ports.sightings import Evidence

TRASH = ".trash/"
MOVE = "move"
MARK = "mark"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")


@dataclass(frozen=True, slots=True)
class Graces:
    """How long something must have been an orphan at every look, by why it is one."""

    superseded: timedelta = timedelta(hours=24)
    soft_deleted: timedelta = timedelta(days=30)
    owner_unknown: timedelta = timedelta(days=30)

    def of(self, evidence: Evidence) -> timedelta:
        """The grace of one kind of evidence."""
        if evidence is Evidence.SUPERSEDED:
            return self.superseded
        return self.soft_deleted if evidence is Evidence.SOFT_DELETED else self.owner_unknown

    @property
    def shortest(self) -> timedelta:
        """The least of them."""
        return min(self.superseded, self.soft_deleted, self.owner_unknown)


@dataclass(frozen=True, slots=True)
class WriterTime:
    """How long whoever writes objects may take until the reference is committed: one try, and how many more."""

    timeout: timedelta = timedelta(minutes=30)
    retries: int = 3

    @property
    def longest(self) -> timedelta:
        """The whole time."""
        return self.timeout * (self.retries + 1)


@dataclass(frozen=True, slots=True)
class Caps:
    """When a round counts as a mistake. A plan is held beyond `objects_max` objects that are more than `share_max` of
    all, beyond `bytes_max` that are more than that share, and beyond `group_max` units of any one group. References
    that vanish are a fault of the database until somebody says that they are not."""

    objects_max: int = 1_000
    share_max: float = 0.01
    bytes_max: int = 100 << 30
    group_max: int = 1_000
    rows_share_min: float = 0.8
    match_share_min: float = 0.95
    vanished_max: int = 50
    vanished_share_max: float = 0.01


@dataclass(frozen=True, slots=True)
class Root:
    """A place to look for orphans."""

    name: str
    template: Template
    prefix: str
    store: str = ""  # what the store is called to a person; part of what a plan is for
    marker: str = ".meta"  # files that end so say that a unit is whole: first to go, last to come back
    graces: Graces = field(default_factory=Graces)
    writer: WriterTime = field(default_factory=WriterTime)
    age_min: timedelta = timedelta(hours=24)
    keep_newest: int = 1
    quarantine: timedelta = timedelta(days=7)
    quarantine_by: str = MOVE
    uploads_after: timedelta = timedelta(days=7)  # how old an open upload in parts must be to be given up; 0: never
    caps: Caps = field(default_factory=Caps)
    source: str = ""  # what references are read from; part of what a plan is for

    def __post_init__(self) -> None:
        where = f"orphans.{self.name}"
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"a root of orphans is named {self.name!r}", do="use lower-case letters, digits and _")
        if not self.prefix.endswith("/") or self.prefix.startswith(("/", "%", TRASH)):
            raise ConfigError(f"{where}.prefix is {self.prefix!r}", do="write a directory that ends in /: archives/")
        if not self.template.text.startswith(self.prefix):
            raise ConfigError(
                f"{where}.template does not begin with its prefix {self.prefix!r}", do="write whole keys as the shape"
            )
        if self.quarantine_by not in (MOVE, MARK):
            raise ConfigError(f"{where}.quarantine_by is {self.quarantine_by!r}", do=f"write {MOVE} or {MARK}")
        if self.keep_newest < 0 or self.quarantine < timedelta(0) or self.age_min < timedelta(0):
            raise ConfigError(f"{where} has a setting below zero", do="write zero or more")
        if self.graces.shortest < self.writer.longest:
            raise ConfigError(
                f"{where}: a delay of {format_duration(self.graces.shortest)} is shorter than a writer may take: "
                f"{self.writer.retries + 1} x {format_duration(self.writer.timeout)}",
                do="make the delays longer, or writer_timeout and writer_retries what they really are",
            )

    @property
    def trash(self) -> str:
        """Where its files are while they are in quarantine, outside every root."""
        return f"{TRASH}{self.name}/"

    @property
    def digest(self) -> str:
        """What tells this configuration of the root from any other."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]
