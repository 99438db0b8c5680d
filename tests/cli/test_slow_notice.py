"""Whoever waits for a server is told which one."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path


def test_a_command_whose_server_is_mute_says_whom_it_waits_for_and_no_password(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        where = f"127.0.0.1:{mute.getsockname()[1]}"
        command = [sys.executable, "-m", "wrasse", "jobs", "stats", f"--set=backends.jobs=redis://me:secret@{where}"]
        with subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, text=True) as waiting:
            assert waiting.stderr is not None
            first = waiting.stderr.readline()
            waiting.kill()
    assert first == f"still waiting for an answer from redis://***@{where}/0\n"
