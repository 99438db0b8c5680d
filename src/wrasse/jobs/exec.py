"""Commands as handlers: `convert {filepath} out.png`.

The command line is cut into arguments before anything is filled in, so a value with spaces, quotes or semicolons stays
one argument; a shell is used only if asked for, and then every value is quoted for it. `{id}`, `{kind}`, `{queue}`
and every string or whole number at the top of a JSON payload may be filled in; `{{` and `}}` are braces. The payload
comes on stdin. Exit code 0 is done; anything else is a failure, with the end of what the command wrote to stderr.

The command is the leader of its own process group. When its attempt is over before it is, the whole group is told to
end, and killed if it does not; when the worker itself is killed, its beat child does the same.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import subprocess
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
_CHUNKS_MAX = 16  # read at one go
_DEATH_MAX = timedelta(seconds=5)


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
            run = _Run(arguments, job.payload, _environment(job))
        except (OSError, ValueError) as error:
            # The error of exec names the program or the working directory, never an argument.
            reason = error.strerror if isinstance(error, OSError) else "an argument holds a null character"
            raise JobFailed(
                f"the command {arguments[0]!r} did not start: {reason}", do="check that it is installed and executable"
            ) from None
        job.runs_in(run.group)
        try:
            await run.ended()
        except asyncio.CancelledError:
            await run.end(self.kill_after)
            raise
        finally:
            job.runs_in(0)
            code, tail = run.close()
        if code:
            how = f"exited with {code}" if code > 0 else f"was killed by {_signal(-code)}"
            raise JobFailed(f"the command {how}: {tail}" if tail else f"the command {how}")

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
    fields = data.items() if isinstance(data, dict) else ()
    given = {name: str(value) for name, value in fields if isinstance(value, str | int) and not isinstance(value, bool)}
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


class _Run:
    """One process in a group of its own, reaped only at the very end: until then nobody else can get its number, so
    that a signal to its group never hits a stranger."""

    def __init__(self, arguments: list[str], payload: bytes, environment: dict[str, str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._tail = b""
        self._errors, theirs = os.pipe()
        os.set_blocking(self._errors, False)
        stdin = _holding(payload)
        try:
            self._process = subprocess.Popen(
                arguments, stdin=stdin, stderr=theirs, env=environment, start_new_session=True
            )
        except BaseException:
            os.close(self._errors)
            raise
        finally:
            os.close(stdin)
            os.close(theirs)
        self._loop.add_reader(self._errors, self._read)

    @property
    def group(self) -> int:
        """Its process group."""
        return self._process.pid

    async def ended(self) -> None:
        """Waits until the process has ended; what it left running is not waited for."""
        try:
            watch = os.pidfd_open(self._process.pid)
        except OSError:
            # A kernel that does not know this way of waiting. The thread ends with the process.
            await asyncio.to_thread(os.waitid, os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            return
        over = asyncio.Event()
        self._loop.add_reader(watch, over.set)
        try:
            await over.wait()
        finally:
            self._loop.remove_reader(watch)
            os.close(watch)

    async def end(self, kill_after: timedelta) -> None:
        """Ends the process and everything it started in its group."""
        self._signal(signal.SIGTERM)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(kill_after.total_seconds()):
                    await self.ended()
        finally:
            # Also after a polite end: what the leader started may have outlived it.
            self._signal(signal.SIGKILL)
            with suppress(TimeoutError):
                async with asyncio.timeout(_DEATH_MAX.total_seconds()):
                    await self.ended()

    def close(self) -> tuple[int, str]:
        """The exit code, and the end of what the process wrote to stderr."""
        self._read()
        self._loop.remove_reader(self._errors)
        os.close(self._errors)
        code = self._process.poll()
        return 0 if code is None else code, self._tail.decode(errors="replace").strip()[-(ERROR_CHARS_MAX - 100) :]

    def _read(self) -> None:
        """Keeps the end of stderr, in bounded memory however much the command writes."""
        with suppress(BlockingIOError):
            for _ in range(_CHUNKS_MAX):
                chunk = os.read(self._errors, _CHUNK)
                if not chunk:
                    self._loop.remove_reader(self._errors)
                    return
                self._tail = (self._tail + chunk)[-4 * ERROR_CHARS_MAX :]

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def _holding(payload: bytes) -> int:
    """A descriptor to read the payload from: a file without a name, so nobody has to feed a command as it reads."""
    fd = os.memfd_create("wrasse-payload")
    with open(os.dup(fd), "wb") as file:
        file.write(payload)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

