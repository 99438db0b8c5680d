"""Commands as handlers: `convert {filepath} out.png`.

The command line is cut into arguments before anything is filled in, so a value with spaces, quotes or semicolons stays
one argument; a shell is used only if asked for, and then every value is quoted for it. `{id}`, `{kind}`, `{queue}` and
every string at the top of a JSON payload may be filled in; `{{` and `}}` are braces. The payload comes on stdin. Exit
code 0 is done; anything else is a failure, with the end of what the command wrote to stderr.

The command is the leader of its own process group. When its attempt is over before it is, the whole group is told to
end, and killed if it does not.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from wrasse.errors import BadPayload, JobFailed, UsageError
from wrasse.jobs.running import RunningJob
from wrasse.ports.jobs import ERROR_CHARS_MAX

_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_OURS = ("id", "kind", "queue")
_CHUNK = 1 << 16
_LAST_WORDS = 1.0  # seconds for the rest of stderr once the command has exited


@dataclass(frozen=True, slots=True)
class Command:
    """A handler that runs a command per job."""

    text: str
    shell: bool = False
    kill_after: timedelta = timedelta(seconds=5)  # from the polite signal to the one that cannot be ignored

    def __post_init__(self) -> None:
        self._arguments()

    async def __call__(self, job: RunningJob) -> None:
        """Runs the command; returns when it exited with 0, raises JobFailed when it did not."""
        values = _values(job, self._needs())
        arguments = [_fill(argument, values, quoted=self.shell) for argument in self._arguments()]
        try:
            process = await asyncio.create_subprocess_exec(
                *arguments, stdin=PIPE, stdout=None, stderr=PIPE, env=_environment(job), start_new_session=True
            )
        except (OSError, ValueError) as error:
            # The error of exec names the program or the working directory, never an argument.
            reason = error.strerror if isinstance(error, OSError) else "an argument holds a null character"
            raise JobFailed(
                f"the command {arguments[0]!r} did not start: {reason}", do="check that it is installed and executable"
            ) from None
        tail = _Tail()
        try:
            async with asyncio.TaskGroup() as group:
                streams = [group.create_task(_feed(process, job.payload)), group.create_task(tail.read(process))]
                code = await process.wait()
                # Something the command left running may hold its stderr open: that is not waited for.
                await asyncio.wait(streams, timeout=_LAST_WORDS)
                for stream in streams:
                    stream.cancel()
        except asyncio.CancelledError:
            await _end(process, self.kill_after)
            raise
        if code:
            how = f"exited with {code}" if code > 0 else f"was killed by {_signal(-code)}"
            raise JobFailed(f"the command {how}: {tail.text}" if tail.text else f"the command {how}")

    def _arguments(self) -> list[str]:
        if self.shell:
            return ["/bin/sh", "-c", self.text]
        try:
            arguments = shlex.split(self.text)
        except ValueError as error:
            raise UsageError(f"the command cannot be read: {error}", do="balance its quotes") from None
        if not arguments:
            raise UsageError("the command is empty", do="write e.g. --exec='convert {filepath} out.png'")
        return arguments

    def _needs(self) -> frozenset[str]:
        return frozenset(found[1] for found in _PLACEHOLDER.finditer(self.text) if found[1])


def _values(job: RunningJob, needed: frozenset[str]) -> dict[str, str]:
    values = {"id": job.id, "kind": job.kind, "queue": job.queue}
    if not needed.difference(_OURS):
        return values
    try:
        data = msgspec.json.decode(job.payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        data = None
    given = {name: text for name, text in data.items() if isinstance(text, str)} if isinstance(data, dict) else {}
    for name in sorted(needed.difference(_OURS)):
        if name not in given or "\0" in given[name]:
            raise BadPayload(
                f"the payload of job {job.id!r} has no string {name!r}, which its command needs",
                do="put the job again with a JSON object that has it",
            )
        values[name] = given[name]
    return values


def _fill(argument: str, values: dict[str, str], *, quoted: bool) -> str:
    def fill(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0][0]
        return shlex.quote(values[found[1]]) if quoted else values[found[1]]

    return _PLACEHOLDER.sub(fill, argument)


def _environment(job: RunningJob) -> dict[str, str]:
    return {
        **os.environ,
        "WRASSE_JOB_ID": job.id,
        "WRASSE_KIND": job.kind,
        "WRASSE_QUEUE": job.queue,
        "WRASSE_PRIORITY": job.priority,
        "WRASSE_ATTEMPT": str(job.attempt),
        "WRASSE_TOKEN": str(job.token),
    }


async def _feed(process: Process, payload: bytes) -> None:
    assert process.stdin is not None, "started with a pipe"
    # A command need not read its input: that it closed it is no failure.
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(payload)
        await process.stdin.drain()
    process.stdin.close()
    with suppress(BrokenPipeError, ConnectionResetError):
        await process.stdin.wait_closed()


class _Tail:
    """The end of stderr, in bounded memory however much the command writes."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept = b""

    async def read(self, process: Process) -> None:
        assert process.stderr is not None, "started with a pipe"
        while chunk := await process.stderr.read(_CHUNK):
            self._kept = (self._kept + chunk)[-4 * ERROR_CHARS_MAX :]

    @property
    def text(self) -> str:
        return self._kept.decode(errors="replace").strip()[-(ERROR_CHARS_MAX - 100) :]


async def _end(process: Process, kill_after: timedelta) -> None:
    """Ends the process and everything it started in its group."""
    _signal_group(process, signal.SIGTERM)
    try:
        async with asyncio.timeout(kill_after.total_seconds()):
            await process.wait()
    except (TimeoutError, asyncio.CancelledError):
        pass
    finally:
        # Also after a polite end: what the leader started may have outlived it.
        _signal_group(process, signal.SIGKILL)
        await process.wait()


def _signal_group(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

