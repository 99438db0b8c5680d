"""What the last complete look at each root of orphans counted, for Prometheus. Pure.

It is read from where sightings are kept, so that it is the same in every process, and still there after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from wrasse.orphans.lag import histogram
from wrasse.ports.sightings import Round

GAUGES: Mapping[str, tuple[tuple[str, ...], str]] = {  # to names of what a look counts
    "objects": (("listed",), "objects below the root at the last complete look"),
    "bytes": (("bytes",), "bytes of those that have the shape of its template"),
    "protected": (("protected",), "units that a reference protects"),
    "unreferenced": (("found", "restarted", "waiting", "due"), "units that are orphans, due or not"),
    "foreign": (("foreign",), "objects of another shape, which are never touched"),
    "due": (("due",), "units that were to be taken away after that look"),
    "due_bytes": (("due_bytes",), "bytes of these"),
    "quarantined": (("in_quarantine", "purged", "healed", "written_again"), "units in quarantine"),
}
LOOKED_AT = "last_look_timestamp_seconds"
LAG = "commit_lag"
ABOUT = {
    LOOKED_AT: "when a look was last complete, unix time",
    LAG: "units whose first reference the last complete look met, by how long after their last write it came",
}


@dataclass(frozen=True, slots=True)
class OrphanFacts:
    """One root and its last complete look."""

    root: str
    last: Round


def gauges(facts: Sequence[OrphanFacts]) -> Iterator[tuple[str, list[tuple[tuple[str, ...], float]]]]:
    """Each gauge by its name, with a sample for every root."""
    for name, (parts, _) in GAUGES.items():
        yield name, [((each.root,), sum(each.last.counts.get(part, 0) for part in parts)) for each in facts]
    yield LOOKED_AT, [((each.root,), each.last.at.timestamp()) for each in facts]


def lags(facts: Sequence[OrphanFacts]) -> list[tuple[tuple[str, ...], float]]:
    """How many references came so late, by root and bound."""
    return [((each.root, bound), count) for each in facts for bound, count in histogram(each.last.counts)]
