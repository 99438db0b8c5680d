"""The progress of a scan shows how far it is, and from the second scan on how far it has to go."""

from __future__ import annotations

from pathlib import Path

from orphan_field import HOUR, SEED, Field
from wrasse.backends.memory.objects import MemoryObjects
from wrasse.clock import ManualClock
from wrasse.ports.objects import ObjectInfo
from wrasse.ports.page import Page


class Watched(MemoryObjects):
    """A store that notes the progress of the scan that lists it."""

    field: Field
    totals: tuple[int | None, ...] = ()

    async def page(self, prefix: str, after: str | None, limit: int) -> Page[ObjectInfo]:
        if hasattr(self, "field") and self.field.scanner.orphan_scan.progress.stage == "listing":
            self.totals = (*self.totals, self.field.scanner.orphan_scan.progress.total)
        return await super().page(prefix, after, limit)


async def test_a_listing_is_expected_to_be_as_long_as_the_last(tmp_path: Path) -> None:
    store = Watched(ManualClock())
    field = store.field = Field(tmp_path, SEED, objects=store, clock=store._clock)  # type: ignore[arg-type]
    await field.put("ws1", "new")
    field.refer("ws1", "new")
    await field.run()
    await field.run(after=HOUR)
    assert store.totals == (None, 2)
