"""The seed of a run: fixed by default, new and printed with `--full`, and whoever gives it gets the same choices."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import seeds

ROOT = Path(__file__).parents[2]
DRAWS = """
import os, random, hypothesis, seeds

drawn = []

if os.environ.get("LOADS"):
    import constants_of_another

@hypothesis.settings(max_examples=200)
@hypothesis.given(hypothesis.strategies.integers())
def test_by_hypothesis(number):
    drawn.append(number)

def test_by_random():
    print("drawn", drawn, random.random(), seeds.draw("x").random(), seeds.environment()[seeds.VARIABLE], hash("x"))
    assert not os.environ.get("FAIL")
"""


def pytest_in(folder: Path, *options: str, **more: str) -> str:
    """What a run with our conftest says, in a worker as `dev.py test` has them."""
    inherited = {name: value for name, value in os.environ.items() if name not in (seeds.VARIABLE, "PYTHONHASHSEED")}
    environment = {**inherited, "PYTHONPATH": str(ROOT / "tests"), "CI": "", **more}
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir=.", "-p", "conftest"]
    command += ["-rA", "-n1", *options]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True).stdout


def run(folder: Path, *options: str, fail: str = "", loads: str = "") -> tuple[str, str]:
    """What two tests drew, and everything that was said."""
    (folder / "test_draws.py").write_text(DRAWS)
    (folder / "constants_of_another.py").write_text("KNOWN = (123456781, 123456782, 123456783)\n")
    said = pytest_in(folder, *options, "test_draws.py", FAIL=fail, LOADS=loads, PYTHONPATH=f"{ROOT / 'tests'}:{folder}")
    drawn = re.search(r"^drawn .*$", said, re.MULTILINE)
    assert drawn is not None, said
    return drawn[0], said


def test_the_default_run_makes_the_same_choices_every_time_and_names_no_seed(tmp_path: Path) -> None:
    first, said = run(tmp_path)
    assert (first, "--seed" in said) == (run(tmp_path)[0], False)


@pytest.mark.parametrize("options", [(), ("--full", "--seed=5")])
def test_choices_do_not_depend_on_the_modules_that_are_loaded(tmp_path: Path, options: tuple[str, ...]) -> None:
    assert run(tmp_path, *options)[0] == run(tmp_path, *options, loads="yes")[0]


def test_a_full_run_makes_its_own_choices_and_says_how_to_repeat_them(tmp_path: Path) -> None:
    first, said = run(tmp_path, "--full", fail="yes")
    told = re.search(r"seed (\d+); the same again: python3 dev.py test --full --seed=(\d+)\n", said)
    assert told is not None, said
    assert f"again: python3 dev.py test --full --seed={told[1]} test_draws.py::test_by_random\n" in said
    assert (first, told[1]) == (run(tmp_path, "--full", f"--seed={told[2]}")[0], told[2])
    assert first != run(tmp_path, "--full")[0]


@pytest.mark.parametrize(("ci", "counted"), [("true", "1 failed"), ("", "1 skipped")])
def test_what_is_skipped_has_failed_in_ci(tmp_path: Path, ci: str, counted: str) -> None:
    (tmp_path / "test_skipped.py").write_text("import pytest\ndef test_one(): pytest.skip('no server')\n")
    assert counted in pytest_in(tmp_path, "test_skipped.py", CI=ci)


def test_stories_are_others_under_another_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(seeds.VARIABLE, "0")
    assert list(seeds.stories(10, 30, 10)) == [10, 20]
    monkeypatch.setenv(seeds.VARIABLE, "7")
    assert list(seeds.stories(10, 30, 10)) == [7_000_010, 7_000_020]
