"""Memory of an archiver: bounded by its batches, however many messages pass through it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ACTOR = Path(__file__).with_name("memory_actor.py")
MOST = 200.0  # MiB
GROWTH = 10.0  # MiB: what an allocator does by chance, and a byte a message would be
COUNT = 10_000_000


@pytest.mark.full
@pytest.mark.timeout(900)
def test_memory_stays_flat_over_ten_million_messages(tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, [str(ACTOR.parents[1]), os.environ.get("PYTHONPATH", "")]))
    told = subprocess.run(
        [sys.executable, ACTOR, tmp_path, str(COUNT)],
        check=True, capture_output=True, text=True, timeout=800, env={**os.environ, "PYTHONPATH": path},
    ).stdout  # fmt: skip

    seen = [tuple(map(float, line.split())) for line in told.splitlines()]
    (_, early), *_, (_, late) = seen

    assert [count for count, _ in seen] == [COUNT / 10, COUNT / 2, COUNT]
    assert late <= min(MOST, early + GROWTH), told
