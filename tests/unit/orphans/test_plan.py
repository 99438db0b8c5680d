"""Which plans may still be carried out: fresh ones, of the same sightings."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from orphan_field import HOUR, SEED, Field
from wrasse.errors import Refused
from wrasse.orphans.plan import Header, check_plan, write_plan

LATEST = SEED.graces.shortest - timedelta(seconds=1)


async def planned(place: Path) -> tuple[Field, Header]:
    """A field that was scanned twice, and the plan of what is due."""
    field = Field(place / "spool", SEED)
    for op in ("old", "new"):
        await field.put("ws1", op)
    field.refer("ws1", "new")
    await field.run()
    field.clock.advance(2 * HOUR)
    result = await field.scanner.scan(note=True)
    header = write_plan(place / "plan", SEED, result, result.suspects)
    assert header.lines == 1
    return field, header


async def test_a_plan_is_good_for_the_shortest_grace(tmp_path: Path) -> None:
    field, header = await planned(tmp_path)
    field.clock.advance(LATEST)
    check_plan(header, SEED, await field.sightings.standing("archives"), allow="")
    field.clock.advance(timedelta(seconds=1))
    with pytest.raises(Refused, match="older than the shortest grace"):
        check_plan(header, SEED, await field.sightings.standing("archives"), allow="")


async def test_a_plan_of_other_sightings_is_refused(tmp_path: Path) -> None:
    _, header = await planned(tmp_path)
    other = Field(tmp_path / "other", SEED)
    with pytest.raises(Refused, match="another database of sightings"):
        check_plan(header, SEED, await other.sightings.standing("archives"), allow="")
