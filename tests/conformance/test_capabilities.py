"""What a backend declares is what it has."""

from __future__ import annotations

from dataclasses import fields

import pytest

from conformance.stores import JOBS_BACKENDS, RECORDS_BACKENDS, Store
from wrasse.app.wiring import RecordsAlone
from wrasse.ports.backend import Backend, JobStore, ObjectStore
from wrasse.ports.capabilities import GROUPS, Capabilities

PORTS = {field.name for field in fields(Capabilities)} - GROUPS - {"billed"}


@pytest.mark.parametrize("open_store", dict.fromkeys((*JOBS_BACKENDS, *RECORDS_BACKENDS)), indirect=True)
async def test_a_backend_declares_the_ports_that_it_has(store: Store) -> None:
    backend: Backend = store.backend
    if isinstance(backend, ObjectStore) and not isinstance(backend, JobStore):
        backend = RecordsAlone(backend, store.clock, done_max=0)  # as whoever asks for jobs opens it
    has = {name for name in PORTS if getattr(backend, name) is not None}
    assert {name for name in PORTS if getattr(backend.capabilities, name)} == has
    assert backend.capabilities.billed == (backend.requests is not None)
