"""Sightings as rows of a database. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from wrasse.clock import from_micros, to_micros
from wrasse.ports.sightings import Evidence, Sighting, State

COLUMNS = ("unit", "evidence", "fingerprint", "size", "files", "first_round", "first_at", "first_tick",
           "state", "state_round", "state_at", "state_tick")  # fmt: skip
Row = tuple[bytes, str, str, int, bytes, int, int, int, str, str, int | None, int]
KINDS = ("bytea", "text", "text", "bigint", "bytea", "bigint", "bigint", "bigint", "text", "text", "bigint", "bigint")


def raw(unit: str) -> bytes:
    """A unit as it is kept."""
    return unit.encode("utf-8", "surrogateescape")


def values(each: Sighting) -> Row:
    """The columns of a sighting."""
    return (
        raw(each.unit),
        each.evidence.value,
        each.fingerprint,
        each.size,
        each.files,
        each.first_round,
        to_micros(each.first_at),
        each.first_tick,
        each.state.value,
        each.state_round,
        None if each.state_at is None else to_micros(each.state_at),
        each.state_tick,
    )


def sighting(row: Sequence[object]) -> Sighting:
    """The sighting of a row."""
    unit, evidence, fingerprint, size, files, first_round, first_at, first_tick, state, by, at, tick = row
    assert isinstance(unit, bytes), "as the schema says"
    assert isinstance(files, bytes), "as the schema says"
    return Sighting(
        unit.decode("utf-8", "surrogateescape"),
        Evidence(str(evidence)),
        str(fingerprint),
        whole(size),
        files,
        whole(first_round),
        from_micros(whole(first_at)),
        whole(first_tick),
        State(str(state)),
        str(by),
        None if at is None else from_micros(whole(at)),
        whole(tick),
    )


def whole(value: object) -> int:
    """A number of the schema."""
    assert isinstance(value, int), "as the schema says"
    return value
