"""A queue on records as one process has it, and everything that is stored for it."""

from __future__ import annotations

from faults import FaultyRecords, Network
from leases.places import Backend, Place
from object_faults import FaultyObjects
from wrasse.jobs.record_queue.queue import RecordedJobs, RecordedOptions
from wrasse.jobs.record_queue.store import JobRecordNames
from wrasse.ports.page import Page
from wrasse.ports.records import Record

OPTIONS = RecordedOptions(poll_max=0.2)


async def process(place: Place, network: Network | None = None, options: RecordedOptions = OPTIONS) -> RecordedJobs:
    """The queue as another process sees it, behind a network if one is given."""
    backend = await place.backend()
    if network is None:
        return RecordedJobs(backend.records, backend.objects, place.clock, options)
    objects = FaultyObjects(backend.objects, network)
    return RecordedJobs(lambda each: FaultyRecords(backend.records(each), network), objects, place.clock, options)


async def stored(place: Place) -> list[str]:
    """Keys of records and names of objects that belong to jobs."""
    backend = await place.backend()
    names = JobRecordNames()
    found: list[str] = []
    for collection in (names.jobs, names.ids):
        page: Page[Record] = await backend.records(collection).page("", None, 1_000)
        found += [record.key for record in page]
    found += [info.key for info in await _objects(backend) if _ours(info.key)]
    return sorted(found)


async def _objects(backend: Backend) -> Page:
    return await backend.objects.page("", None, 1_000)


def _ours(name: str) -> bool:
    return any(f"jobs/{folder}/" in name for folder in ("ready", "done", "dead", "parts"))
