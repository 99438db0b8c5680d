"""Commands as handlers."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from wrasse.errors import BadPayload, JobFailed, UsageError
from wrasse.jobs.exec import Command
from wrasse.jobs.files import FoundFile
from wrasse.jobs.running import RunningJob
from wrasse.ports.jobs import Hold, Job, TakenJob

from .working import eventually

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Nobody:
    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        raise AssertionError

    async def mine(self, hold: Hold) -> bool:
        raise AssertionError

    def note_group(self, hold: Hold, group: int) -> None: ...


def running(payload: bytes = b"", id: str = "a") -> RunningJob:
    job = Job(id, kind="resize", queue="low", payload=payload)
    return RunningJob(TakenJob(job, Hold(id, 7, "n"), 2, 0, 0, 0, NOW, NOW), Nobody())


async def test_a_command_gets_the_payload_on_stdin(tmp_path: Path) -> None:
    payload = bytes(range(256)) * 4_096
    await Command(f"tee {tmp_path}/out", shell=False)(running(payload))
    assert (tmp_path / "out").read_bytes() == payload


async def test_a_value_with_spaces_and_quotes_stays_one_argument(tmp_path: Path) -> None:
    name = "a b'; touch pwned; \" $HOME"
    await Command(f"touch {tmp_path}/{{filepath}}")(running(b'{"filepath": "a b\'; touch pwned; \\" $HOME"}'))
    assert names(tmp_path) == [name]


async def test_path_and_size_of_the_job_of_a_file_are_filled_in(tmp_path: Path) -> None:
    await Command(f"touch {tmp_path}/{{filepath}}-{{filesize}}")(running(FoundFile("a", 4, 1).payload))
    assert names(tmp_path) == ["a-4"]


async def test_a_shell_gets_every_value_quoted(tmp_path: Path) -> None:
    command = Command(f"cd {tmp_path} && touch {{filepath}} && echo {{id}} > id", shell=True)
    await command(running(b'{"filepath": "x; touch pwned"}', id="$(touch pwned)"))
    assert names(tmp_path) == ["id", "x; touch pwned"]
    assert (tmp_path / "id").read_text() == "$(touch pwned)\n"


async def test_a_command_is_told_which_job_and_which_attempt(tmp_path: Path) -> None:
    text = f"echo $WRASSE_JOB_ID $WRASSE_KIND $WRASSE_QUEUE $WRASSE_ATTEMPT $WRASSE_TOKEN > {tmp_path}/out"
    await Command(text, shell=True)(running())
    assert (tmp_path / "out").read_text() == "a resize low 2 7\n"


async def test_braces_are_written_twice_and_others_are_left_alone(tmp_path: Path) -> None:
    await Command(f"touch {tmp_path}/{{{{id}}}}-{{id}}-{{1}}")(running())
    assert names(tmp_path) == ["{id}-a-{1}"]


async def test_a_command_that_fails_leaves_the_end_of_its_stderr() -> None:
    command = Command("head -c 100000 /dev/zero | tr '\\0' x >&2; echo the end >&2; exit 3", shell=True)
    with pytest.raises(JobFailed, match=r"exited with 3: x+the end$") as raised:
        await command(running())
    assert len(raised.value.message) <= 2_000


async def test_a_command_killed_by_a_signal_names_it() -> None:
    with pytest.raises(JobFailed, match="killed by SIGKILL"):
        await Command("kill -9 $$", shell=True)(running())


async def test_a_command_that_is_not_there_fails_with_its_name() -> None:
    with pytest.raises(JobFailed, match="'no-such-command' did not start: No such file"):
        await Command("no-such-command")(running())


@pytest.mark.parametrize(
    "payload", [b"", b"\xff", b"[]", b'{"other": "x"}', b'{"filepath": [7]}', b'{"filepath": "\\u0000"}']
)
async def test_a_payload_without_what_the_command_needs_is_a_bad_one(payload: bytes) -> None:
    with pytest.raises(BadPayload, match="no string 'filepath'"):
        await Command("touch {filepath}")(running(payload))


@pytest.mark.parametrize("text", ["", "  ", "echo 'open"])
def test_a_command_that_cannot_be_read_is_refused_at_once(text: str) -> None:
    with pytest.raises(UsageError):
        Command(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
async def test_a_cancelled_command_dies_with_everything_it_started(trap: str, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    text = f"{trap}sleep 600 & echo $$ $! > {pids}; wait; sleep 600"
    command = Command(text, shell=True, kill_after=timedelta(milliseconds=100))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(command(running()))
        await eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        task.cancel()
    leader, started = (int(pid) for pid in pids.read_text().split())
    await eventually(lambda: not alive(leader) and not alive(started))
    assert task.cancelled()


async def test_what_a_command_leaves_running_does_not_hold_up_its_job(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    async with asyncio.timeout(30):
        await Command(f"sleep 600 & echo $! > {pid}", shell=True)(running())
    left = int(pid.read_text())
    assert alive(left)
    os.kill(left, 9)
