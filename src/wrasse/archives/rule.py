"""Which streams are archived, where to, and in which form. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from wrasse.archives.batch import BatchLimits
from wrasse.archives.naming import Form, domain_of
from wrasse.ports.objects import Objects

PREFIX = "archive"
PREFIX_BYTES_MAX = 200


@dataclass(frozen=True, slots=True)
class Rule:
    """One pattern of streams and the destination of its archives. `destination` is used in events; an empty `domain` is
    derived from the subject. With `best_effort` work queues are archived, possibly incompletely."""

    pattern: str
    objects: Objects
    destination: str
    prefix: str = PREFIX
    domain: str = ""
    limits: BatchLimits = field(default_factory=BatchLimits)
    form: Form = field(default_factory=Form)
    best_effort: bool = False

    def domain_of(self, subject: str) -> str:
        """The domain of one of its streams."""
        return self.domain or domain_of(subject)


def overlap(one: str, other: str) -> bool:
    """Whether some subject matches both patterns: it would be archived twice."""
    mine, yours = one.split("."), other.split(".")
    for a, b in zip(mine, yours, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(mine) == len(yours)
