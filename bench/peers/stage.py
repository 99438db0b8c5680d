"""The processes of one peer while it is measured: a producer that obeys, and one worker command."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.environments import programs, variables
from bench.peers.quiet import hurry, session
from bench.peers.roster import Mode, Peer

_STOP_MAX = 3.0


@dataclass(frozen=True, slots=True)
class Producer:
    """A producer of a peer, in the peer's own environment."""

    process: subprocess.Popen[str]
    log: Path

    def ask(self, do: str, count: int = 0, gap: tuple[float, float] = (0, 0)) -> Any:
        """Has it do something; gives the answer. See producing.py."""
        assert self.process.stdin is not None, "it was started with pipes"
        assert self.process.stdout is not None, "it was started with pipes"
        self.process.stdin.write(json.dumps({"do": do, "count": count, "gap": gap}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the producer died: {self.log.read_text()[-2000:]}"
        return json.loads(answer)


@dataclass(frozen=True, slots=True)
class Stage:
    """One peer in one mode on one server, with a directory of its own."""

    peer: Peer
    name: str
    port: int
    place: Path
    setting: str = "default"

    @property
    def mode(self) -> Mode:
        """What is measured."""
        return self.peer.modes[self.name]

    @property
    def log(self) -> Path:
        """Where its processes write."""
        return self.place / "log"

    @contextlib.contextmanager
    def producer(self) -> Iterator[Producer]:
        """A producer, until the end."""
        command = [str(programs(self.peer.name) / "python"), "-m", "bench.peers.producing", self.peer.name]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command, env=self._variables(), cwd=self.place, text=True, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        hurry(process.pid)
        try:
            yield Producer(process, self.log)
        finally:
            process.kill()
            process.communicate()

    def start(self, words: Sequence[str] = ()) -> Worker:
        """Starts the worker command, as the leader of a session."""
        told = {"bin": str(programs(self.peer.name)), "url": f"redis://127.0.0.1:{self.port}/0"}
        command = [word.format(**told) for word in (*self.mode.worker, *words)]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command, env=self._variables(), cwd=self.place, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        hurry(process.pid)
        return Worker(process)

    def _variables(self) -> Mapping[str, str]:
        return variables(self.name, self.mode, self.port, self.place, self.setting)

    def clear(self) -> None:
        """Forgets what ran."""
        (self.place / "marks").unlink(missing_ok=True)

    def ran(self) -> int:
        """How many no-op jobs have run."""
        return _size(self.place / "marks")

    def moments(self, file: str = "marks") -> tuple[float, ...]:
        """When each ran (or, of `starts`, when each run of the long job began)."""
        try:
            data = (self.place / file).read_bytes()
        except FileNotFoundError:
            return ()
        return struct.unpack(f"<{len(data) // 8}d", data[: len(data) // 8 * 8])

    def until_ran(self, count: int, seconds: float) -> int:
        """Waits for so many jobs; gives how many have run."""
        end = time.monotonic() + seconds
        while (ran := self.ran()) < count and time.monotonic() < end:
            time.sleep(0.002)
        return ran


def _size(file: Path) -> int:
    try:
        return file.stat().st_size // 8
    except FileNotFoundError:
        return 0


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker command and whatever it started."""

    process: subprocess.Popen[bytes]

    def cpu(self) -> float:
        """The processor seconds of all of its processes."""
        return sum(session(self.process.pid).values())

    def kill(self) -> None:
        """kill -9 for all of its processes at once, as if the machine were lost."""
        for _ in range(3):  # a process may have been started meanwhile
            for process in session(self.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, and after a while the kill."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_MAX)
        self.kill()
