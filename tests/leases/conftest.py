"""`place`: a store of leases, one per backend. Where hours must pass, tests say `@HOURS_PASS`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from leases.places import PLACES, Place


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    named = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "place" in metafunc.fixturenames and "place" not in named:
        metafunc.parametrize("place", PLACES, indirect=True)


@pytest.fixture
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    server = request.getfixturevalue("s3") if request.param == "s3" else None
    opened = Place(request.param, tmp_path, server)
    yield opened
    await opened.close()
