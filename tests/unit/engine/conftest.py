"""The scene of an engine test."""

from __future__ import annotations

import pytest

from .scene import Scene


@pytest.fixture
def scene() -> Scene:
    return Scene()
