"""Sightings: rounds whole or not at all, one of two rounds at once, quarantine changed by marks alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from conformance.sightings_stores import SIGHTINGS_BACKENDS, open_sightings
from wrasse.errors import StoreBroken
from wrasse.ports.outcome import Outcome
from wrasse.ports.sightings import (
    Change,
    CompleteScan,
    Evidence,
    NewSighting,
    Sighting,
    SightingChange,
    Sightings,
    SightingState,
    Unseen,
)

AT = datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC)


@pytest.fixture(params=SIGHTINGS_BACKENDS)
async def sightings(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sightings]:
    server = lambda: str(request.getfixturevalue("postgres_url"))  # noqa: E731
    async with open_sightings(request.param, tmp_path, server) as opened:
        yield opened


def sighting(unit: str, fingerprint: str = "f1") -> Sighting:
    return Sighting(unit, Evidence.SUPERSEDED, fingerprint, 7, b"\0files", 1, AT, 123)


def made(number: int, root: str = "r") -> CompleteScan:
    return CompleteScan(root, f"round-{number}", number, AT, AT, 1_000 * number, {"listed": number})


async def everything(sightings: Sightings, root: str = "r", state: SightingState | None = None) -> list[Sighting]:
    """Every sighting, by small pages, so that every listing also tests its cursors."""
    shown: list[Sighting] = []
    after: str | None = None
    while True:
        page = await sightings.page(root, after, 2, state)
        shown += page.items
        after = page.cursor
        if after is None:
            return shown


class Changes:
    """Changes that can be read again, and may break off."""

    def __init__(self, *changes: Change, breaks: bool = False) -> None:
        self._changes = changes
        self._breaks = breaks

    def __iter__(self) -> Iterator[Sequence[Change]]:
        yield from ([change] for change in self._changes)
        if self._breaks:
            raise StoreBroken("the spool is torn")


async def test_a_root_that_was_never_scanned_has_no_scan(sightings: Sightings) -> None:
    standing = await sightings.standing("r")
    assert (standing.last, standing.value, standing.version) == (None, b"", 0)


async def test_a_committed_round_is_the_last_one_with_all_its_sightings(sightings: Sightings) -> None:
    assert await sightings.commit(made(1), Changes(NewSighting(sighting("b")), NewSighting(sighting("a"))))
    assert (await sightings.standing("r")).last == made(1)
    assert await everything(sightings) == [sighting("a"), sighting("b")]


async def test_units_come_in_the_order_of_their_bytes(sightings: Sightings) -> None:
    units = ["a/b/", "a-b/", "é", "\U0001f600", "\uffff", "a/\udcff", "Z"]
    await sightings.commit(made(1), Changes(*(NewSighting(sighting(unit)) for unit in units)))
    shown = [each.unit for each in await everything(sightings)]
    assert shown == sorted(units, key=lambda unit: unit.encode("utf-8", "surrogateescape"))


async def test_of_two_rounds_worked_out_from_the_same_one_the_second_changes_nothing(sightings: Sightings) -> None:
    await sightings.commit(made(1), Changes())
    assert await sightings.commit(made(2), Changes(NewSighting(sighting("a"))))
    assert not await sightings.commit(made(2), Changes(Unseen("a"), NewSighting(sighting("b"))))
    assert [each.unit for each in await everything(sightings)] == ["a"]


async def test_a_round_that_breaks_off_leaves_the_one_before_it(sightings: Sightings) -> None:
    await sightings.commit(made(1), Changes(NewSighting(sighting("a"))))
    with pytest.raises(StoreBroken, match="torn"):
        await sightings.commit(made(2), Changes(Unseen("a"), NewSighting(sighting("b")), breaks=True))
    assert (await sightings.standing("r")).last == made(1)
    assert [each.unit for each in await everything(sightings)] == ["a"]


async def test_a_changed_sighting_begins_again_and_one_that_ended_is_gone(sightings: Sightings) -> None:
    await sightings.commit(made(1), Changes(NewSighting(sighting("a")), NewSighting(sighting("b"))))
    again = replace(sighting("a", "f2"), first_scan=2, first_tick=456)
    await sightings.commit(made(2), Changes(NewSighting(again), Unseen("b"), Unseen("never there")))
    assert await everything(sightings) == [again]


async def test_a_round_never_touches_what_is_in_quarantine(sightings: Sightings) -> None:
    await sightings.commit(made(1), Changes(NewSighting(sighting("a")), NewSighting(sighting("b"))))
    marks = [SightingChange(unit, SightingState.SEEN, "f1", SightingState.MOVED, "round-1", 9) for unit in ("a", "b")]
    assert list(await sightings.mark("r", marks)) == [Outcome.DONE] * 2
    await sightings.commit(made(2), Changes(Unseen("a"), NewSighting(sighting("b", "f2"))))
    found = await everything(sightings, state=SightingState.MOVED)
    assert [(each.unit, each.fingerprint, each.state_scan, each.state_tick) for each in found] == [
        ("a", "f1", "round-1", 9),
        ("b", "f1", "round-1", 9),
    ]
    assert all(each.state_at is not None for each in found)


@pytest.mark.parametrize("mark", [
    SightingChange("a", SightingState.MOVED, "f1", None),
    SightingChange("a", SightingState.SEEN, "other", SightingState.MOVED),
    SightingChange("b", SightingState.SEEN, "f1", SightingState.MOVED),
])  # fmt: skip
async def test_a_mark_whose_sighting_is_another_by_now_is_a_conflict(
    sightings: Sightings, mark: SightingChange
) -> None:
    await sightings.commit(made(1), Changes(NewSighting(sighting("a"))))
    assert list(await sightings.mark("r", [mark])) == [Outcome.CONFLICT]
    assert await everything(sightings) == [sighting("a")]


async def test_a_mark_may_forget_a_sighting(sightings: Sightings) -> None:
    await sightings.commit(made(1), Changes(NewSighting(sighting("a"))))
    assert list(await sightings.mark("r", [SightingChange("a", SightingState.SEEN, "f1", None)] * 2)) == [
        Outcome.DONE,
        Outcome.CONFLICT,
    ]
    assert list(await sightings.get("r", ["a"])) == [None]


async def test_roots_share_nothing(sightings: Sightings) -> None:
    await sightings.commit(made(1), Changes(NewSighting(sighting("a"))))
    assert await sightings.commit(made(1, "other"), Changes(NewSighting(sighting("b"))))
    assert [each.unit for each in await everything(sightings, "other")] == ["b"]
    assert [each and each.unit for each in await sightings.get("r", ["a", "b"])] == ["a", None]


async def test_the_value_of_a_root_is_written_at_the_version_read(sightings: Sightings) -> None:
    assert await sightings.write("r", b"armed", at=0)
    assert not await sightings.write("r", b"late", at=0)
    standing = await sightings.standing("r")
    assert await sightings.write("r", b"off", at=standing.version)
    assert not await sightings.write("r", b"late", at=standing.version)
    assert (standing.value, (await sightings.standing("r")).value) == (b"armed", b"off")


async def test_the_last_of_several_rounds_is_the_one_that_stands(sightings: Sightings) -> None:
    for number in (1, 2, 3):
        assert await sightings.commit(made(number), Changes())
    assert (await sightings.standing("r")).last == made(3)
