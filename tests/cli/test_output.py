"""What a person at a terminal sees, and a program does not."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from cli.command_line import typed, wrasse


def at_a_terminal(place: Path, *args: str, stop_at: bytes = b"", columns: int = 120) -> tuple[int, str]:
    """Runs a command with a terminal for all three streams; sends SIGINT once it has said `stop_at`."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "40"}
    process = subprocess.Popen(
        [sys.executable, "-m", "wrasse", *args], cwd=place, env=env, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    said, asked, ends = b"", False, time.monotonic() + 60
    try:
        while time.monotonic() < ends:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    said += os.read(ours, 65536)
                except OSError:
                    break  # Linux says so when the other end is closed.
            if stop_at and stop_at in said and not asked:
                process.send_signal(signal.SIGINT)
                asked = True
        return process.wait(10), said.decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_run_says_in_one_line_what_it_runs(place: Path) -> None:
    (place / "shop.py").write_text("async def work(job): ...\n")
    code, said = at_a_terminal(place, "run", "--handler=shop:work", "--listen=127.0.0.1:0", stop_at=b"status on")
    assert code == 0
    (line,) = (line for line in said.splitlines() if "wrasse 0" in line)
    assert "a worker with 16 slots for high, low (any kind) and sweeps stuck_jobs, finished_jobs" in line
    assert f" on sqlite://{place}/wrasse.db (jobs, " in line
    assert " · status on http://127.0.0.1:" in line
    assert "roles=" not in line
    assert '{"level"' not in said


def test_tables_have_lines_and_colour_at_a_terminal_only(place: Path) -> None:
    wrasse("jobs", "enqueue", "--id=[red]x[/red]", "x")
    code, said = at_a_terminal(place, "jobs", "list")
    assert code == 0
    assert "\x1b[" in said
    assert "[red]x[/red]" in said, "what a job is called is no markup"
    assert "\x1b[" not in typed("jobs", "list", cwd=place).out


def test_an_id_is_whole_however_narrow_the_terminal_is(place: Path) -> None:
    id = wrasse("jobs", "enqueue", "x").out.strip()
    assert id in at_a_terminal(place, "jobs", "list", columns=50)[1]


def test_a_put_without_a_payload_at_a_terminal_does_not_wait_for_one(place: Path) -> None:
    code, said = at_a_terminal(place, "jobs", "enqueue")
    assert code == 2
    assert "there is no payload" in said
