"""What a backend declares is what it has, and what it lacks is refused."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import fields, replace
from datetime import timedelta

import pytest

from conformance.stores import JOBS_BACKENDS, RECORDS_BACKENDS, Store
from wrasse.errors import UsageError
from wrasse.ports.backend import GROUPS, OBJECTS, RECORDS, Backend, Capabilities, JobStore, ObjectStore
from wrasse.ports.jobs import Job, JobGroup, Rate
from wrasse.ports.records import IndexEntry
from wrasse.runtime.backends import RecordsAlone

PORTS = {field.name for field in fields(Capabilities)} - GROUPS - OBJECTS - RECORDS - {"billed", "job_extras"}
everywhere = pytest.mark.parametrize("open_store", dict.fromkeys((*JOBS_BACKENDS, *RECORDS_BACKENDS)), indirect=True)


@everywhere
async def test_a_backend_declares_the_ports_that_it_has(store: Store) -> None:
    backend: Backend = store.backend
    if isinstance(backend, ObjectStore) and not isinstance(backend, JobStore):
        backend = RecordsAlone(backend, store.clock, done_max=0)  # as it is opened for jobs
    assert declared(backend, PORTS) == has(backend, PORTS)
    assert declared(backend, OBJECTS) == (set() if backend.objects is None else has(backend.objects, OBJECTS))
    assert backend.capabilities.billed == (backend.requests is not None)


@everywhere
async def test_unique_names_groups_and_rates_are_refused_where_they_are_not_declared(store: Store) -> None:
    backend: Backend = store.backend
    if isinstance(backend, ObjectStore) and not isinstance(backend, JobStore):
        backend = RecordsAlone(backend, store.clock, done_max=0)
    if backend.jobs is None:
        assert not backend.capabilities.job_extras
        return
    jobs, hour = backend.jobs, timedelta(hours=1)
    asked = (
        jobs.enqueue([Job("a", unique="u")], request="unique"),
        jobs.enqueue([Job("b", group="g")], request="member"),
        jobs.enqueue([Job("c", queue="other")], request="group", groups=[JobGroup("h", 1, Job("d"))]),
        jobs.claim(["low"], 1, worker="w", heartbeat_timeout=hour, request="take", rates=[Rate("low", 1, hour)]),
    )
    for each in asked:
        with nullcontext() if backend.capabilities.job_extras else pytest.raises(UsageError):
            await each


@everywhere
async def test_a_backend_declares_the_parts_that_its_records_have(store: Store) -> None:
    records = store.backend.records(replace(store.collection(), flat=True))
    assert declared(store.backend, RECORDS) == has(records, RECORDS)


@pytest.mark.parametrize(
    "open_store", [name for name in RECORDS_BACKENDS if name not in ("memory", "sqlite")], indirect=True
)
async def test_records_without_a_status_index_refuse_an_entry(store: Store) -> None:
    records = store.records()
    version = (await records.create("there", b"{}")).version
    assert records.status_index is None
    assert version is not None

    with pytest.raises(UsageError, match="no status index"):
        await records.create("k", b"{}", index_entry=IndexEntry("ready", 1))
    with pytest.raises(UsageError, match="no status index"):
        await records.put("there", b"[]", at=version, index_entry=IndexEntry("ready", 1))

    there = await records.get("there")
    assert (await records.get("k"), there and there.value) == (None, b"{}")


def declared(backend: Backend, names: frozenset[str] | set[str]) -> set[str]:
    return {name for name in names if getattr(backend.capabilities, name)}


def has(port: object, names: frozenset[str] | set[str]) -> set[str]:
    return {name for name in names if getattr(port, name) is not None}
