"""Commands as handlers."""

from __future__ import annotations

import asyncio
import os
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from unit.jobs.worker.scene import eventually
from wrasse.errors import BadPayload, JobFailed, UsageError
from wrasse.jobs.command_handler import Command
from wrasse.jobs.file_producer.files import FoundFile
from wrasse.jobs.worker.running_job import RunningJob
from wrasse.ports.jobs import Claim, ClaimedJob, Job

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Nobody:
    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        raise AssertionError

    async def mine(self, claim: Claim) -> bool:
        raise AssertionError

    def note_group(self, claim: Claim, group: int) -> None: ...


def script(text: str, kill_after: timedelta = timedelta(seconds=5)) -> Command:
    return Command(f"sh -c {shlex.quote(text)}", kill_after=kill_after)


def running(payload: bytes = b"", id: str = "a") -> RunningJob:
    job = Job(id, kind="resize", queue="low", payload=payload)
    return RunningJob(ClaimedJob(job, Claim(id, 7, "n"), 2, 0, 0, 0, NOW, NOW), Nobody())


async def test_a_command_gets_the_payload_on_stdin(tmp_path: Path) -> None:
    payload = bytes(range(256)) * 4_096
    await Command(f"tee {tmp_path}/out")(running(payload))
    assert (tmp_path / "out").read_bytes() == payload


async def test_a_value_with_spaces_and_quotes_stays_one_argument(tmp_path: Path) -> None:
    name = "a b'; touch pwned; \" $HOME"
    await Command(f"touch {tmp_path}/{{filepath}}")(running(b'{"filepath": "a b\'; touch pwned; \\" $HOME"}'))
    assert names(tmp_path) == [name]


async def test_path_and_size_of_the_job_of_a_file_are_filled_in(tmp_path: Path) -> None:
    await Command(f"touch {tmp_path}/{{filepath}}-{{filesize}}")(running(FoundFile("a", 4, 1).payload))
    assert names(tmp_path) == ["a-4"]


async def test_a_script_gets_values_as_arguments(tmp_path: Path) -> None:
    command = Command(f"""sh -c 'cd {tmp_path} && touch "$1" && echo "$2" > id' sh {{filepath}} {{id}}""")
    await command(running(b'{"filepath": "x; touch pwned"}', id="$(touch pwned)"))
    assert names(tmp_path) == ["id", "x; touch pwned"]
    assert (tmp_path / "id").read_text() == "$(touch pwned)\n"


async def test_a_command_is_told_which_job_and_which_attempt(tmp_path: Path) -> None:
    text = f"echo $WRASSE_JOB_ID $WRASSE_KIND $WRASSE_QUEUE $WRASSE_ATTEMPT $WRASSE_TOKEN > {tmp_path}/out"
    await script(text)(running())
    assert (tmp_path / "out").read_text() == "a resize low 2 7\n"


async def test_braces_are_written_twice_and_others_are_left_alone(tmp_path: Path) -> None:
    await Command(f"touch {tmp_path}/{{{{id}}}}-{{id}}-{{1}}")(running())
    assert names(tmp_path) == ["{id}-a-{1}"]


async def test_a_command_that_fails_leaves_the_end_of_its_stderr() -> None:
    command = script("head -c 100000 /dev/zero | tr '\\0' x >&2; echo the end >&2; exit 3")
    with pytest.raises(JobFailed, match=r"exited with 3: x+the end$") as raised:
        await command(running())
    assert len(raised.value.message) <= 2_000


async def test_a_command_killed_by_a_signal_names_it() -> None:
    with pytest.raises(JobFailed, match="killed by SIGKILL"):
        await script("kill -9 $$")(running())


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
    command = script(text, kill_after=timedelta(milliseconds=100))
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
        await script(f"sleep 600 & echo $! > {pid}")(running())
    left = int(pid.read_text())
    assert alive(left)
    os.kill(left, 9)


async def arguments(command: str, payload: bytes, tmp_path: Path, id: str = "a") -> list[str]:
    """What a program gets."""
    show = tmp_path / "show"
    show.write_text(f"#!/bin/sh\nprintf '%s\\0' \"$@\" > {tmp_path}/out\n")
    show.chmod(0o755)
    await Command(f"{show} {command}")(running(payload, id))
    return (tmp_path / "out").read_bytes().decode().split("\0")[:-1]


@pytest.mark.parametrize("value", ["-rf", "--output=/etc/passwd", "-", "--"])
@pytest.mark.parametrize("command", ["{x}", "-v {x}", "{e}{x}", "{x}.png", "a {x} -- b"])
async def test_a_value_never_becomes_an_option(value: str, command: str, tmp_path: Path) -> None:
    with pytest.raises(BadPayload, match="begins with a dash"):
        await arguments(command, f'{{"x": "{value}", "e": ""}}'.encode(), tmp_path)


async def test_the_dashes_of_a_wrapper_end_no_options_of_its_program() -> None:
    for command in ("env -- echo {x}", "nice -n 5 -- timeout 5 -- echo {x}"):
        with pytest.raises(BadPayload, match="begins with a dash"):
            await Command(command)(running(b'{"x": "-rf"}'))
    await Command("env -- echo -- {x}")(running(b'{"x": "-rf"}'))


@pytest.mark.parametrize("text", ["echo --{x}", "echo -{x}", "echo --{x}=1"])
def test_a_value_never_names_an_option(text: str) -> None:
    with pytest.raises(UsageError, match="could choose which option"):
        Command(text)


async def test_an_id_or_a_number_never_becomes_an_option(tmp_path: Path) -> None:
    with pytest.raises(BadPayload, match="begins with a dash"):
        await arguments("{id}", b"{}", tmp_path, id="-rf")
    with pytest.raises(BadPayload, match="begins with a dash"):
        await arguments("{n}", b'{"n": -9}', tmp_path)


@pytest.mark.parametrize(
    ("command", "filled"),
    [
        ("-- {x}", ["--", "-rf"]),
        ("--name={x}", ["--name=-rf"]),
        ("-o{x}", ["-o-rf"]),
        ("./{x}", ["./-rf"]),
        ("{filepath}", ["./-rf"]),
        ("{filepath}.png {id}", ["./-rf.png", "a"]),
    ],
)
async def test_a_value_with_a_dash_is_passed_where_it_is_none(command: str, filled: list[str], tmp_path: Path) -> None:
    assert await arguments(command, b'{"x": "-rf", "filepath": "-rf"}', tmp_path) == filled


@pytest.mark.parametrize(
    "text",
    [
        "{kind}",
        "bin/{kind}.sh x",
        "sh -c 'convert {filepath} out'",
        "/bin/bash -ec '{x}'",
        "bash --norc -c '\"{x}\"' bash",
        "env LANG=C sh -c 'echo {x}'",
        "timeout 5 dash -x -c 'echo {x}'",
        "python3 -c 'print({x})'",
        "python3.11 -Ic 'print({x})'",
        "perl -ne 'print if /{x}/'",
        "perl '-eprint {x}'",
        "bash -o pipefail -c 'echo {x} | cat'",
        "bash -euo pipefail -c 'echo {x} | cat'",
        "rbash -c 'echo {x}'",
        "python3 -W error -c 'print({x})'",
        "perl -E 'say {x}'",
        "node -p '{x}'",
        "node --eval '{x}'",
        "node --eval={x}",
        "fish --command 'echo {x}'",
        "unshare -n {x}",
        "tini -- {x}",
        "env {x}",
        "env LANG=C {x} -v",
        "nice -n 5 timeout -s KILL 5s /bin/{x}",
        "sudo -u nobody -- {x}",
        "xargs -n1 {x}",
        "ssh host convert {x}",
        "ssh -c aes host {x}",
        "timeout 5 /usr/bin/ssh {x}",
        "su -c 'ls {x}' nobody",
        "watch ls {x}",
        "awk '/{x}/' file",
        "gawk -F : '{{print \"{x}\"}}'",
        "sed -n -e s/a/{x}/e file",
    ],
)
def test_a_value_never_becomes_code(text: str) -> None:
    with pytest.raises(UsageError, match=r"could choose what runs|would run as code"):
        Command(text)


@pytest.mark.parametrize(
    "text",
    [
        "sh -c 'echo {{x}} $1' sh {x}",
        "sh script.sh {x}",
        "fish {x} -c",
        "awk -v x={x} '{{print x}}' {y}",
        "env X={x} convert {y}",
        "timeout 5 convert {y}",
        "sed p {x}",
        "bash -o pipefail -c 'echo $1' bash {x}",
        "node --eval=1 {x}",
        "python3 -W error script.py {x}",
        "tini -- convert {x}",
    ],
)
def test_a_value_beside_a_script_is_an_argument(text: str) -> None:
    assert Command(text).text == text


SECRETS = (
    "WRASSE_REDIS_PASSWORD",
    "REDIS_PASSWORD",
    "AWS_SECRET_ACCESS_KEY",
    "PGPASSWORD",
    "DATABASE_URL",
    "API_KEY",
    "X",
)


async def environment(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name in (*SECRETS, "LC_ALL"):
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("WRASSE_JOB_ID", "foreign")
    await command(running())
    lines = (tmp_path / "out").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


async def test_a_command_gets_no_variable_that_is_not_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got = await environment(script(f"env > {tmp_path}/out"), tmp_path, monkeypatch)
    assert not set(got) & set(SECRETS)
    assert (got["PATH"], got["LC_ALL"], got["WRASSE_JOB_ID"]) == (os.environ["PATH"], "hunter2", "a")
    ours = {"WRASSE_JOB_ID", "WRASSE_KIND", "WRASSE_QUEUE", "WRASSE_PRIORITY", "WRASSE_ATTEMPT", "WRASSE_TOKEN"}
    assert {name for name in got if name.startswith("WRASSE_")} == ours


async def test_variables_that_are_named_are_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = Command(f"sh -c 'env > {tmp_path}/out'", ("AWS_*", "X", "WRASSE_*"))
    got = await environment(command, tmp_path, monkeypatch)
    assert set(got) & set(SECRETS) == {"AWS_SECRET_ACCESS_KEY", "X", "WRASSE_REDIS_PASSWORD"}
    assert got["WRASSE_JOB_ID"] == "a"


@pytest.mark.parametrize("id", ["a\0b", "x" * (1 << 21)])
async def test_values_that_no_command_line_holds_are_bad_payloads_of_their_job(id: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(BadPayload):
        await Command("true -- {id}")(running(id=id))
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_command_gets_no_file_of_the_worker(tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        await script(f"ls -l /proc/self/fd > {tmp_path}/out")(running())
    assert "secret" not in (tmp_path / "out").read_text()
