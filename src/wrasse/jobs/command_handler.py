"""Commands as handlers: `convert {filepath} out.png`.

The command line is split into arguments before placeholders are filled in, so a value with spaces, quotes or semicolons
stays one argument. Placeholders are `{id}`, `{kind}`, `{queue}` and every string or whole number at the top level of a
JSON payload; `{{` and `}}` are braces. The payload comes on stdin. Exit code 0 is success; anything else is a failure,
with the end of stderr as its error.

Any producer may choose the values, so none may become code or an option. A placeholder as the program, also behind
`env` and the like, as the name of an option, in the script of `sh -c`, or in what `ssh` passes to a shell is refused at
start. A value that would begin an argument with a dash is refused with its job unless a literal `--` of the program
stands before it, except `{filepath}`, which then begins with `./`. The environment has the variables that PASSED names,
those that the caller allows, and the job's own: no secret of the worker.

The command leads its own process group. When its attempt is over before it ends, the whole group is terminated, and
killed if it does not end; when the worker itself is killed, its heartbeat process does the same.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase

import msgspec

from wrasse.errors import BadPayload, JobFailed, OutOfResources, UsageError, WrasseError, exhausted
from wrasse.jobs.worker.running_job import RunningJob
from wrasse.ports.jobs import ERROR_CHARS_MAX

_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_OURS = ("id", "kind", "queue")
PASSED = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TERM", "PWD",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "VIRTUAL_ENV", "XDG_RUNTIME_DIR",
)  # fmt: skip
# Programs that run one of their arguments as code, and the letters of the options before it.
_INTERPRETERS = (
    (re.compile(r"(?:ba|rba|da|a|z|k|mk|fi|tc|c)?sh\d?"), "c"),
    (re.compile(r"(?:python|pypy)[\d.]*"), "c"),
    (re.compile(r"perl[\d.]*"), "eE"),
    (re.compile(r"(?:node|bun|deno)[\d.]*"), "ep"),
    (re.compile(r"(?:ruby|lua|julia|Rscript)[\d.]*"), "e"),
    (re.compile(r"php[\d.]*"), "rBRE"),
)
_CODE_FOLLOWS = re.compile("--(?:eval|print|command|run)")
_OPTION_WITH_VALUE = re.compile(r"[-+][a-z]*[oO]|-[WXIr]|--(?:rcfile|init-file|require|import|loader)")
# Programs that run one of their arguments as a program.
_WRAPPERS = re.compile(
    "env|nice|nohup|timeout|setsid|sudo|doas|stdbuf|ionice|chrt|taskset|xargs|time|exec|command|busybox|systemd-run"
    "|unshare|nsenter|setpriv|prlimit|strace|ltrace|fakeroot|tini|dumb-init|numactl|xvfb-run|dbus-run-session"
)
_NO_PROGRAM = re.compile(r"[-+].*|\w+=.*|[\d.]+[smhd]?", re.DOTALL)  # options, variables and numbers before it
_WITH_VALUE = re.compile("-[uUgCDTshpr]")
_OPTION_NAME = re.compile(r"--?\{[A-Za-z_]")
# Programs that make one line for a shell of their arguments.
_SHELLS = re.compile("ssh|rsh|su|runuser|watch|eval|parallel|script")
_EDITORS = re.compile("[gmn]?awk|g?sed")  # their first argument is code that can start programs
_CHUNK = 1 << 16
_CHUNKS_MAX = 16  # read at once
_DEATH_MAX = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Command:
    """A handler that runs a command per job. `passes` are variables of the worker's environment that the command gets
    beside PASSED: names, or patterns such as `AWS_*`."""

    text: str
    passes: tuple[str, ...] = ()
    kill_after: timedelta = timedelta(seconds=5)  # between SIGTERM and SIGKILL

    def __post_init__(self) -> None:
        arguments = self._arguments()
        for program in [arguments[at] for at in _programs(arguments)]:
            if not _names(program):
                continue
            raise UsageError(
                f"the program of the command is {program!r}, so that a job could choose what runs",
                do="write the program out; values may follow as arguments",
            )
        for option in arguments:
            if _OPTION_NAME.match(option):
                raise UsageError(
                    f"a job could choose which option {option!r} is", do="write the option out, and the value behind it"
                )
        for script in _scripts(arguments):
            if names := _names(script):
                raise UsageError(
                    f"{{{names[0]}}} stands inside a script, where a value of a job would run as code",
                    do="pass it as an argument: sh -c 'convert \"$1\" out.png' sh {filepath}",
                )

    async def __call__(self, job: RunningJob) -> None:
        """Runs the command; returns when it exited with 0, raises JobFailed when it did not."""
        values = _values(job, self._needs())
        arguments = list(_filled(self._arguments(), values, job.id))
        try:
            process = _CommandProcess(arguments, job.payload, _environment(job, self.passes))
        except (OSError, ValueError) as error:
            raise _not_started(arguments[0], job.id, error) from None
        job.runs_in(process.group)
        try:
            await process.ended()
        except asyncio.CancelledError:
            await process.end(self.kill_after)
            raise
        finally:
            job.runs_in(0)
            code, tail = process.close()
        if code:
            how = f"exited with {code}" if code > 0 else f"was killed by {_signal(-code)}"
            raise JobFailed(f"the command {how}: {tail}" if tail else f"the command {how}")

    def _arguments(self) -> list[str]:
        try:
            arguments = shlex.split(self.text)
        except ValueError as error:
            raise UsageError(f"the command cannot be read: {error}", do="balance its quotes") from None
        if not arguments:
            raise UsageError("the command is empty", do="write e.g. --exec='convert {filepath} out.png'")
        return arguments

    def _needs(self) -> frozenset[str]:
        return frozenset(name for argument in self._arguments() for name in _names(argument))


def _names(argument: str) -> list[str]:
    return [found[1] for found in _PLACEHOLDER.finditer(argument) if found[1]]


def _programs(arguments: Sequence[str]) -> Iterator[int]:
    """The indexes of the program and of those that wrappers run: `nice env X=1 timeout 5 convert`."""
    at = 0
    while at < len(arguments):
        yield at
        if not _WRAPPERS.fullmatch(os.path.basename(arguments[at])):
            return
        at += 1
        while at < len(arguments) and (_NO_PROGRAM.fullmatch(arguments[at]) or _is_value(arguments, at)):
            at += 1


def _is_value(arguments: Sequence[str], at: int) -> bool:
    """Whether it is the value of the option before it, as in `sudo -u user` or `timeout -s KILL`."""
    return _WITH_VALUE.fullmatch(arguments[at - 1]) is not None and not _names(arguments[at])


def _scripts(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments that some program on the command line runs as code, also behind `env`, `nice` or `timeout 5`."""
    for at, program in enumerate(arguments):
        name = os.path.basename(program)
        if _SHELLS.fullmatch(name):
            yield from arguments[at + 1 :]
        if _EDITORS.fullmatch(name):
            rest = arguments[at + 1 :]
            yield from [
                each
                for before, each in zip(("", *rest), rest, strict=False)
                if not each.startswith("-") and before not in ("-v", "-F")
            ][:1]
        letters = next((letters for known, letters in _INTERPRETERS if known.fullmatch(name)), "")
        yield from _code(arguments[at + 1 :], letters) if letters else ()


def _code(arguments: Sequence[str], letters: str) -> Iterator[str]:
    """The arguments that an interpreter runs as code."""
    coded, before = False, ""
    for argument in arguments:
        if not argument.startswith(("-", "+")):
            if _OPTION_WITH_VALUE.fullmatch(before):  # bash -o pipefail -c
                before = ""
                continue
            if coded:
                yield argument
            return
        before = argument
        if argument.startswith("--"):
            name, joined, code = argument.partition("=")
            if _CODE_FOLLOWS.fullmatch(name):
                yield code
                coded |= not joined
        elif any(each in argument for each in letters):
            coded = True
            yield argument  # the code may follow its option in the same argument: perl -eprint


def _values(job: RunningJob, needed: frozenset[str]) -> dict[str, str]:
    values = {"id": job.id, "kind": job.kind, "queue": job.queue}
    if not needed.difference(_OURS):
        return values
    try:
        data = msgspec.json.decode(job.payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        data = None
    fields = data.items() if isinstance(data, dict) else ()
    strings = {
        name: str(value) for name, value in fields if isinstance(value, str | int) and not isinstance(value, bool)
    }
    for name in sorted(needed.difference(_OURS)):
        if name not in strings or "\0" in strings[name]:
            raise BadPayload(
                f"the payload of job {job.id!r} has no string {name!r}, which its command needs",
                do="enqueue the job again with a JSON object that has it",
            )
        values[name] = strings[name]
    return values


def _filled(arguments: Sequence[str], values: dict[str, str], id: str) -> Iterator[str]:
    ended = False  # whether a literal -- has ended the options of the innermost program
    program = max(_programs(arguments))
    for at, argument in enumerate(arguments):
        filled = _PLACEHOLDER.sub(lambda found: values[found[1]] if found[1] else found[0][0], argument)
        if filled.startswith("-") and not argument.startswith("-") and not ended:
            if not argument.startswith("{filepath}"):
                raise BadPayload(
                    f"a value of job {id!r} begins with a dash, and its command would read it as an option",
                    do=f"write -- before {argument} in the command if it knows that, or join it: --name={argument}",
                )
            filled = f"./{filled}"  # the same file
        ended |= argument == "--" and at > program
        yield filled


def _not_started(program: str, id: str, error: OSError | ValueError) -> WrasseError:
    """The error of exec names the program or the working directory, never an argument."""
    if isinstance(error, OSError) and (exhausted(error) or error.errno == errno.EAGAIN):
        return OutOfResources(
            f"the command {program!r} did not start: {error.strerror}", do="raise the limits of files or processes"
        )
    if isinstance(error, ValueError):
        return BadPayload(f"job {id!r} has a null character or invalid text in its values", do="enqueue it again")
    if error.errno == errno.E2BIG:
        return BadPayload(
            f"the values of job {id!r} are longer than an argument may be", do="let the command read them from stdin"
        )
    return JobFailed(
        f"the command {program!r} did not start: {error.strerror}", do="check that it is installed and executable"
    )


def _environment(job: RunningJob, passes: Sequence[str]) -> dict[str, str]:
    allowed = (*PASSED, *passes)
    return {
        **{name: text for name, text in os.environ.items() if any(fnmatchcase(name, each) for each in allowed)},
        "WRASSE_JOB_ID": job.id,
        "WRASSE_KIND": job.kind,
        "WRASSE_QUEUE": job.queue,
        "WRASSE_PRIORITY": job.priority,
        "WRASSE_ATTEMPT": str(job.attempt),
        "WRASSE_TOKEN": str(job.token),
    }


class _CommandProcess:
    """One process in a group of its own, reaped only at the end: until then its number is not reused, so that a signal
    to its group never reaches another process."""

    def __init__(self, arguments: list[str], payload: bytes, environment: dict[str, str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._tail = b""
        stdin = _payload_file(payload)
        try:
            self._errors, theirs = os.pipe()
        except BaseException:
            os.close(stdin)
            raise
        os.set_blocking(self._errors, False)
        try:
            self._process = subprocess.Popen(
                arguments, stdin=stdin, stderr=theirs, env=environment, start_new_session=True, close_fds=True
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
        """Waits until the process has ended, but not for processes that it left running."""
        try:
            watch = os.pidfd_open(self._process.pid)
        except OSError:
            # A kernel without pidfd. The thread ends with the process.
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
        """Ends the process and its whole group."""
        self._signal(signal.SIGTERM)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(kill_after.total_seconds()):
                    await self.ended()
        finally:
            # Also after SIGTERM worked: processes of the group may have outlived their leader.
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
        """Keeps the end of stderr, in bounded memory."""
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


def _payload_file(payload: bytes) -> int:
    """A descriptor to read the payload from: an anonymous file, so that no pipe has to be fed."""
    fd = os.memfd_create("wrasse-payload")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(payload)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
