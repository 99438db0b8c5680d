"""Jobs as they are stored: seed 002's lists and JSON on Redis, records in buckets and directories, seed 000's tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from wire import job_scenes
from wire.conftest import Difference, OpenPlace
from wire.places import Place, dumped
from wrasse.backends.directory.connect import Directory
from wrasse.jobs.record_queue.queue import RecordedJobs, RecordedOptions
from wrasse.jobs.stream_tasks.queue import TaskPorts, TaskQueue, TaskType
from wrasse.runtime.stream_tasks import EnvelopeCodec


@pytest.mark.parametrize("scene", ["every_state", "rescue", "groups_and_names", "periodic", "names_of_seed_002"])
async def test_jobs_on_redis_are_stored_as_recorded(open_place: OpenPlace, difference: Difference, scene: str) -> None:
    async def play(place: Place) -> None:
        await getattr(job_scenes, scene)(place, place.backend.jobs)

    assert not difference(f"jobs_{scene}_redis", await dumped(open_place, "redis", play))


_ON_RECORDS = [
    (where, scene) for where in ("directory", "strict s3") for scene in ("every_state", "rescue", "periodic")
]
_REAL_TIME = "s3", "few_states"  # nothing there lets time pass


@pytest.mark.parametrize(("where", "scene"), [*_ON_RECORDS, _REAL_TIME])
async def test_jobs_on_records_are_stored_as_recorded(
    open_place: OpenPlace, difference: Difference, where: str, scene: str
) -> None:
    async def play(place: Place) -> None:
        options = RecordedOptions(done_max=100, rescues_max=None)
        jobs = RecordedJobs(place.backend.records, place.backend.objects, place.clock, options)
        place.idle = jobs.close
        await getattr(job_scenes, scene)(place, jobs)
        await jobs.close()

    assert not difference(f"jobs_{scene}_{where}", await dumped(open_place, where, play))


_TASKS = [(where, scene) for where in ("redis", "nats") for scene in ("every_state", "rescue")]


@pytest.mark.parametrize(("where", "scene"), _TASKS)
async def test_tasks_are_stored_as_recorded(
    open_place: OpenPlace, difference: Difference, tmp_path: Path, where: str, scene: str
) -> None:
    async def play(place: Place) -> None:
        directory = await Directory.open(tmp_path / "objects", place.clock)
        stored = place.backend
        ports = TaskPorts(
            stored.records, stored.streams, stored.groups, EnvelopeCodec(place.clock), place.clock, directory.objects
        )
        await getattr(job_scenes, scene)(place, TaskQueue(ports, [TaskType("low", 3), TaskType("high")]))
        await directory.close()

    assert not difference(f"tasks_{scene}_{where}", await dumped(open_place, where, play))
