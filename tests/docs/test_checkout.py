"""What a stranger finds after cloning: commands that explain themselves, and locks that any package index can serve."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.blocks import ROOT

OURS = "python{}.{}".format(*sys.version_info)
LOCKS = ("requirements.lock", "requirements-dev.lock")


def dev(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "dev.py"), *words]
    return subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )


def test_dev_py_says_what_it_can_do(tmp_path: Path) -> None:
    said = dev("--help", folder=tmp_path)
    named = re.findall(r"python3 dev\.py (\w+)", said.stdout)
    assert (said.returncode, named) == (0, ["demo", "run", "test", "bench", "lint", "docs"])


def test_a_command_that_dev_py_does_not_know_is_a_usage_error(tmp_path: Path) -> None:
    assert dev("tset", folder=tmp_path).returncode == 2


def test_an_environment_that_another_python_made_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    dev = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dev)
    asked: list[object] = []
    monkeypatch.setattr(dev, "VENV", tmp_path)
    monkeypatch.setattr(dev, "BIN", tmp_path / "bin")
    monkeypatch.setattr(dev.venv, "create", lambda place, **_: (place / "lib" / OURS).mkdir(parents=True))
    monkeypatch.setattr(dev.subprocess, "run", lambda command, **_: asked.append(command))
    (tmp_path / "lib" / "python2.7").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pip").touch()
    with pytest.raises(SystemExit, match="not a virtual environment"):
        dev.ensure("requirements.lock")
    (tmp_path / "pyvenv.cfg").touch()
    dev.ensure("requirements.lock")
    dev.ensure("requirements.lock")
    assert ([path.name for path in (tmp_path / "lib").iterdir()], len(asked)) == ([OURS], 2)


def test_continuous_integration_runs_lint_and_tests_from_a_clean_environment() -> None:
    script = ROOT / ".ci" / "run"
    text = script.read_text("utf-8")
    assert os.access(script, os.X_OK), "it is called by its name"
    assert subprocess.run(["bash", "-n", str(script)], timeout=60, check=False).returncode == 0
    assert [line in text for line in ("set -euo pipefail", "rm -rf .venv", "dev.py lint", "dev.py test")] == [True] * 4


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_requirement_has_a_version_and_a_hash(lock: str) -> None:
    text = (ROOT / lock).read_text("utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) > 10, "it locks something"
    assert [line for line in lines if "==" not in line or "--hash=sha256:" not in line] == []


def test_the_demo_runs_on_the_versions_that_were_tested() -> None:
    """What `demo` and `run` install is a part of what `test` installs, in the same versions."""
    pins = [dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / lock).read_text("utf-8"), re.M)) for lock in LOCKS]
    assert {name: version for name, version in pins[0].items() if pins[1].get(name) != version} == {}
