"""A sweep of one's own: uploads that nobody finished, below a prefix of an object store.

    python examples/own_sweep.py

evidence      the object lies below `prefix` and was last written longer ago than `kept`
grace         `kept` itself
precondition  the same version, at the very step that deletes it
if wrong      an upload that was written to after a long pause is gone, and has to be started again

own_sweep.yaml beside this file takes it into use; then `wrasse run` runs it, `wrasse sweep old-uploads --dry-run` says
what it would do, and status page, metrics and journal show it like every other.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar

import wrasse
from wrasse.engine.sweep import Action, Keep
from wrasse.ports.objects import ObjectDelete, ObjectInfo, Objects
from wrasse.ports.outcome import Outcome
from wrasse.ports.page import Page
from wrasse.testing import ManualClock


@dataclass(frozen=True, slots=True)
class OldUploads:
    """Uploads that were begun and not finished within a day."""

    name: ClassVar[str] = "old_uploads"
    each: ClassVar[bool] = True  # every delete has a line of its own in the journal

    objects: Objects  # no default: a port, given from the backends of the settings
    prefix: str = "uploads/"  # a default: a setting
    kept: timedelta = timedelta(days=1)
    batch_max: int = 100

    async def find(self, after: str | None, limit: int) -> Page[ObjectInfo]:
        return await self.objects.page(self.prefix, after, limit)

    def decide(self, suspect: ObjectInfo, at: datetime) -> Action[ObjectDelete] | Keep:
        if at - suspect.modified_at < self.kept:
            return Keep("young")
        return Action("delete", suspect.key, "not finished in time", ObjectDelete(suspect.key, suspect.version))

    async def apply(self, actions: Sequence[Action[ObjectDelete]]) -> Sequence[Outcome]:
        return await self.objects.delete([action.change for action in actions])


async def main() -> None:
    clock = ManualClock()  # so that a day passes at once; a program leaves this out
    async with wrasse.connect(Path(__file__).with_suffix(".yaml"), clock=clock) as app:
        opened = await app.open("objects")
        await opened.objects.objects.create("uploads/a", b"half of it")
        clock.advance(timedelta(hours=5))
        await opened.objects.objects.create("uploads/b", b"half of it")
        await opened.objects.objects.create("finished/c", b"all of it")
        clock.advance(timedelta(hours=2))

        engine = await app.engine()
        plan = await engine.plan("old_uploads")
        print("would", *(f"{each.verb} {each.suspect}: {each.reason}" for each in plan.plan))
        report = await engine.sweep_now("old_uploads")
        print(f"{report.seen} seen, {report.done} deleted, kept: {report.kept}")


if __name__ == "__main__":
    asyncio.run(main())
