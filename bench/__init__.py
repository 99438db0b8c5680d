"""Benchmarks: `python3 dev.py bench [name ...]`. Every result is a ratio taken in one run on one machine."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # the servers of the tests are used here as well
