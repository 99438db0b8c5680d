"""The examples run as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAID = {
    "enqueue_and_work.py": ["new greet-once", "hello wrasse / 499500"],
    "take_a_lease.py": ["the next token is higher: True"],
    "own_sweep.py": ["would delete uploads/a: not finished in time", "2 seen, 1 deleted, kept: {'young': 1}"],
}


def run(name: str, place: Path) -> list[str]:
    return python(place, str(EXAMPLES / name))


def python(place: Path, *args: str) -> list[str]:
    done = subprocess.run([sys.executable, *args], cwd=place, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", sorted(SAID))
def test_an_example_does_what_it_says(name: str, place: Path) -> None:
    assert set(SAID[name]) <= set(run(name, place))


def test_every_example_is_tried() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAID)


def test_an_example_may_be_run_twice(place: Path) -> None:
    run("enqueue_and_work.py", place)
    assert "known already: greet-once" in run("enqueue_and_work.py", place)


def test_a_program_that_closes_nothing_ends_all_the_same_and_has_put_its_job(place: Path) -> None:
    put = "import wrasse; wrasse.sync.connect('sqlite:x.db').jobs.enqueue('x', id='mine')"
    look = "import wrasse; print(wrasse.sync.connect('sqlite:x.db').jobs.get('mine').info.state)"
    python(place, "-c", put)
    assert python(place, "-c", look) == ["ready"]
