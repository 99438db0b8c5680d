"""`place`: a store of jobs that is no job queue by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from leases.places import Place


@pytest.fixture
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    server = request.getfixturevalue("s3") if request.param == "s3" else None
    opened = Place(request.param, tmp_path, server)
    yield opened
    await opened.close()
