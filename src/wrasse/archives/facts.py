"""What an archive says about itself: the metadata it was written with.

With it a chain can be proven from the objects alone: each archive starts where the one before it ended, and `passed`
counts every entry its stream ever held up to its last, so that entries that vanished before they were archived show as
a jump. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wrasse.archives.batch import Sealed
from wrasse.errors import StoreBroken
from wrasse.ports.streams import EntryId


@dataclass(frozen=True, slots=True)
class Facts:
    """One archive. `passed` is None where the backend could not count; `sha256` is that of the lines."""

    start: EntryId
    first: EntryId
    last: EntryId
    count: int
    marked: int
    raw_bytes: int
    sha256: str
    passed: int | None
    writer: str = ""
    incomplete: bool = False  # of a work queue: entries may have gone before they were read, and nobody can count them


def facts_of(
    sealed: Sealed, start: EntryId, passed: int | None, writer: str, *, incomplete: bool = False
) -> Facts:
    """The facts of a batch that begins after `start`, where `passed` entries were before."""
    return Facts(
        start,
        sealed.first,
        sealed.last,
        sealed.count,
        sealed.marked,
        sealed.raw_bytes,
        sealed.sha256,
        None if passed is None else passed + sealed.count,
        writer,
        incomplete,
    )


def to_metadata(facts: Facts) -> Mapping[str, str]:
    """The facts as a store keeps them."""
    return {
        "start": str(facts.start),
        "first": str(facts.first),
        "last": str(facts.last),
        "count": str(facts.count),
        "marked": str(facts.marked),
        "raw-bytes": str(facts.raw_bytes),
        "sha256": facts.sha256,
        "writer": facts.writer,
        **({} if facts.passed is None else {"passed": str(facts.passed)}),
        **({"incomplete": "true"} if facts.incomplete else {}),
    }


def from_metadata(metadata: Mapping[str, str]) -> Facts | None:
    """Reads them back; None where a store or a copy lost them; StoreBroken where they are not ours."""
    if "last" not in metadata:
        return None
    try:
        return Facts(
            EntryId.parse(metadata["start"]),
            EntryId.parse(metadata["first"]),
            EntryId.parse(metadata["last"]),
            int(metadata["count"]),
            int(metadata["marked"]),
            int(metadata["raw-bytes"]),
            metadata["sha256"],
            int(metadata["passed"]) if "passed" in metadata else None,
            metadata.get("writer", ""),
            metadata.get("incomplete") == "true",
        )
    except (KeyError, ValueError) as why:
        raise StoreBroken("an archive whose metadata is not ours", do="see `wrasse archives verify`") from why
