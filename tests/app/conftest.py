"""A directory of its own for every command that is typed, with none of the caller's settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wrasse.config.schema import leaves


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    seeds = {leaf.seed_env for leaf in leaves().values()}
    for name in list(os.environ):
        if name.startswith("WRASSE_") or name in seeds:
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path
