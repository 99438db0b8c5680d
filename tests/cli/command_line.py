"""The command line as a user types it: in this process for speed, or as a process of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wrasse.cli.main import main


@dataclass(frozen=True)
class Answer:
    """Exit code and what was written."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode(errors="replace")

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


def wrasse(*args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> Answer:
    """Runs a command in this process."""
    out, err = io.BytesIO(), io.StringIO()
    stdout = io.TextIOWrapper(out, encoding="utf-8", write_through=True)
    before, environ = sys.stdin, dict(os.environ)
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    os.environ.update(env or {})
    code = 0
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(err):
            main(list(args))
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    finally:
        stdout.flush()
        sys.stdin = before
        os.environ.clear()
        os.environ.update(environ)
    return Answer(code, out.getvalue(), err.getvalue())


def typed(
    *args: str, stdin: bytes = b"", cwd: Path, env: Mapping[str, str] | None = None, within: float = 90
) -> Answer:
    """Runs a command as a process."""
    done = subprocess.run(
        [sys.executable, "-m", "wrasse", *args],
        input=stdin,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        timeout=within,
        check=False,
    )
    return Answer(done.returncode, done.stdout, done.stderr.decode(errors="replace"))
