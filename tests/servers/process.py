"""One server process: a free port, a folder that goes with it, and an end that always comes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

START_MAX_S = 60
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def _ends_with_its_parent() -> None:
    """A run of the tests that is killed cannot stop its servers, so the kernel does."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder outside pytest's: servers write much, and PostgreSQL wants short socket paths."""
    place = Path(tempfile.mkdtemp(prefix="wrt-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@dataclass
class ServerProcess:
    """A server that can be started, killed, paused and started again on the same port with the same data."""

    argv: Sequence[str | Path | int]
    port: int
    place: Path
    end_by: signal.Signals = signal.SIGTERM
    env: Mapping[str, str] | None = None
    user: int | None = None
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    @property
    def log(self) -> Path:
        return self.place / "server.log"

    def start(self) -> None:
        """Starts it and waits until the port answers."""
        end = time.monotonic() + START_MAX_S
        self._spawn()
        while time.monotonic() < end:
            assert self._process is not None
            if self._process.poll() is not None:
                if not self._port_is_taken():
                    raise RuntimeError(f"the server ended with {self._process.returncode}: {self.last_words()}")
                time.sleep(0.1)
                self._spawn()
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 0.2).close()
                return
            time.sleep(0.02)
        self.kill()
        raise TimeoutError(f"no answer on port {self.port}: {self.last_words()}")

    def _spawn(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(part) for part in self.argv],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                # The kernel means the thread that started it, and a pool's threads end long before the tests do.
                preexec_fn=_ends_with_its_parent if threading.current_thread() is threading.main_thread() else None,
                cwd=self.place,
                env=None if self.env is None else dict(self.env),
                user=self.user,
                group=self.user,
                extra_groups=None if self.user is None else [],
            )

    def _port_is_taken(self) -> bool:
        """While a server is down, any connection of anybody may get its port as the near end, for a while."""
        return "Failed listening on port" in self.last_words()[-200:]

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-800:] if self.log.exists() else ""

    def kill(self) -> None:
        """What the machine's power switch does, as far as a process can tell."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Asks it to end, and insists after ten seconds."""
        if self._process is None:
            return
        self._process.send_signal(self.end_by)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def restart(self) -> None:
        """SIGKILL, then the same server on the same port and data."""
        self.kill()
        self.start()

    def pause(self) -> None:
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)
