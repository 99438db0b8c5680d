"""SIGKILL at every call of a run, on a directory and SQLite: no line is missing, no unit is torn, and what is
referenced comes back byte for byte."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
WHOLE = {f"archives/ws1/{op}/{name}": f"{op} {name}" * 100
         for op in ("new", "old1", "old2") for name in ("home.tar.gz", "home.tar.gz.meta")}  # fmt: skip
KEPT = {key: text for key, text in WHOLE.items() if "/new/" in key}
DUE = {"archives/ws1/old1/", "archives/ws1/old2/"}


def stories(place: Path, how: str, again: str) -> list[Any]:
    """What became of every world."""
    path = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    actor = [sys.executable, str(TESTS / "orphans" / "collector_actor.py"), str(place), how, again]
    done = subprocess.run(actor, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_left(each: Any) -> None:
    """What a dead collector leaves: units that look whole are, and what went from its place has a line that says so."""
    left = each["left"]
    for op in ("new", "old1", "old2"):
        data, marker = f"archives/ws1/{op}/home.tar.gz", f"archives/ws1/{op}/home.tar.gz.meta"
        assert marker not in left or data in left, (each["at"], op)
        touched = not {data, marker} <= set(left)
        lines = [line for line in each["told"] if line[1] == f"archives/ws1/{op}/"]
        assert not touched or lines, f"{op} was touched at call {each['at']} and no line says so"


@pytest.mark.parametrize("how", ["move", *(pytest.param(how, marks=pytest.mark.full) for how in ("delete", "mark"))])
def test_whatever_call_a_collector_dies_at_the_next_ones_finish(tmp_path: Path, how: str) -> None:
    found = stories(tmp_path, how, "no")
    assert [each["ended"] for each in found] == [-signal.SIGKILL] * (len(found) - 1) + [0]
    assert len(found) >= 10
    for each in found:
        check_left(each)
        assert each["end"] == KEPT, each["at"]
        assert all(outcome is not None for _, _, outcome in each["lines"]), each["at"]
        assert {suspect for _, suspect, _ in each["lines"]} == DUE, each["at"]


def test_whatever_call_a_collector_dies_at_a_reference_brings_everything_back(tmp_path: Path) -> None:
    for each in stories(tmp_path, "move", "again"):
        check_left(each)
        assert each["end"] == WHOLE, each["at"]
