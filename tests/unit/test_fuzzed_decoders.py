"""Decoders of bytes from outside answer a value or an error of ours for what a coverage-guided fuzzer makes of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import seeds

_SCRIPT = Path(__file__).parents[1] / "fuzz_decoders.py"
_LONG = 20


def _fuzzed(folder: Path, factor: int, *names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(_SCRIPT), str(folder), seeds.text(), str(factor), *names]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_no_fuzzed_bytes_break_a_decoder(tmp_path: Path) -> None:
    ended = _fuzzed(tmp_path, 1)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2_000:]


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_no_fuzzed_bytes_break_a_decoder_in_many_more_runs(tmp_path: Path) -> None:
    ended = _fuzzed(tmp_path, _LONG)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2_000:]


def test_a_planted_bug_is_found_and_can_be_repeated(tmp_path: Path) -> None:
    ended = _fuzzed(tmp_path, _LONG, "planted")
    (broke,) = tmp_path.glob("planted/broke-*")
    again = subprocess.run(
        [sys.executable, str(_SCRIPT), "planted", broke.read_bytes().hex()], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, broke.read_bytes()[:3]) == (1, b"odd")
    assert f"again: .venv/bin/python tests/fuzz_decoders.py planted {broke.read_bytes().hex()}" in ended.stdout
    assert "OverflowError: planted" in again.stderr
