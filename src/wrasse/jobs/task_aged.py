"""Finished tasks that may go, as the sweep `finished_jobs` asks for them: from the index of what is due, so that what a
run reads follows what goes, not what is stored."""

from __future__ import annotations

from wrasse.jobs.streamed import StreamedJobs
from wrasse.ports.jobs import JobFilter, JobState, Place
from wrasse.ports.page import Page


class AgedTasks(StreamedJobs):
    """Tasks, of which listings show only those that finished so long ago that they may go."""

    async def page(
        self, place: Place, where: JobFilter, after: str | None, limit: int, *, newest: bool = False
    ) -> Page[JobState]:
        assert place in (Place.DONE, Place.DEAD), "only what is finished goes"
        return await self.aged(place, after, limit)
