"""`python -m tests.wire`: compares; with `--record` it writes the fixtures anew, which changes what counts as right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
rest = [each for each in sys.argv[1:] if each != "--record"]
record = {"WRASSE_TEST_RECORD_WIRE": "1"} if "--record" in sys.argv else {}
argv = [sys.executable, "-m", "pytest", "-q", str(HERE), *rest]
sys.exit(subprocess.run(argv, cwd=HERE.parents[1], env={**os.environ, **record}).returncode)
