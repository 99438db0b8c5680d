"""Real `wrasse run` processes for tests: started, watched through their logs and their port, and always ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
PATIENCE = 60.0


def until(look: Callable[[], T | None], what: str) -> T:
    """Looks until there is something to see; a busy machine only makes it slower. False, None and what is empty are
    nothing; 0 is something: an exit code."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        seen = look()
        if seen or (seen == 0 and seen is not False):
            return seen
        time.sleep(0.02)
    raise AssertionError(f"not seen in {PATIENCE:.0f} s: {what}")


class Daemon:
    """One process of ours."""

    def __init__(self, cwd: Path, *args: str, env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "wrasse", "run", "--listen=127.0.0.1:0", *args],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._err = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._err += line

    @property
    def err(self) -> str:
        return self._err.decode(errors="replace")

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Its log; every line must be JSON."""
        return [json.loads(line) for line in self.err.splitlines(keepends=True) if line.endswith("\n")]

    def said(self, msg: str) -> dict[str, Any]:
        """Waits for a line of its log."""
        return until(lambda: self._find(msg), f"the line {msg!r} in {self.err}")

    def _find(self, msg: str) -> dict[str, Any] | None:
        assert self.process.poll() is None or self._reader.is_alive() or msg in self.err, f"it ended: {self.err}"
        return next((line for line in self.lines if line["msg"] == msg), None)

    @property
    def address(self) -> str:
        return f"http://{self.said('started')['address'][0]}"

    def get(self, path: str, host: str | None = None) -> tuple[int, str]:
        """Asks its port."""
        request = urllib.request.Request(self.address + path, headers={"Host": host} if host else {})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()

    def metrics(self) -> dict[str, float]:
        """Its metrics: name with labels to value."""
        text = self.get("/metrics")[1]
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Waits for its end; gives the exit code."""
        code = self.process.wait(PATIENCE)
        self._reader.join()
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@contextmanager
def running(cwd: Path, *args: str, env: Mapping[str, str] | None = None) -> Iterator[Daemon]:
    """A `wrasse run` on a port of its own for the length of a test."""
    daemon = Daemon(cwd, *args, env=env)
    try:
        yield daemon
    finally:
        daemon.close()
