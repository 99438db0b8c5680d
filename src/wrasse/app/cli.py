"""The command line: which commands there are, and how every one of them ends.

A command is loaded when it is called, so that `wrasse --version` and the shell's completion stay quick. Whatever goes
wrong is said in two lines, `error:` and `do:`, on stderr; the whole story is shown with --debug. Exit codes: 0 done,
1 failed, 2 usage, 3 refused for safety.
"""

from __future__ import annotations

import sys
import traceback
from typing import NoReturn

import click

from wrasse import __version__
from wrasse.app.cli_group import LazyGroup
from wrasse.app.redaction import hide
from wrasse.errors import WrasseError

# name -> module and one line for the list; the module is imported only when the command is used.
COMMANDS = {
    "demo": ("cli_demo", "a tour on this machine: jobs, a killed worker, a lease, a dry run; about 20 seconds"),
    "run": ("cli_run", "run workers, sweeps, the archiver and the lease API until told to stop"),
    "sweep": ("cli_sweep", "run sweeps once, or show what they would do and why"),
    "jobs": ("cli_jobs", "put, list, show, requeue, cancel and purge jobs"),
    "periodic": ("cli_periodic", "jobs that are put again and again: last slot and next"),
    "streams": ("cli_streams", "publish and read messages, and see who is how far"),
    "archives": ("cli_archives", "list, read and verify what was archived of streams"),
    "leases": ("cli_leases", "take, show and give back leases on keys, with their state; check all of them"),
    "orphans": ("cli_orphans", "find, take away and bring back objects that nothing refers to"),
    "journal": ("cli_journal", "what sweeps did, when and why"),
    "explain": ("cli_explain", "everything known about a job, a lease or a run, and what happens next"),
    "doctor": ("cli_doctor", "check backends, disk, clock and configuration"),
    "config": ("cli_config", "show or check the configuration"),
    "bench": ("cli_bench", "measure, in a checkout of the project"),
}


wrasse = LazyGroup(
    "wrasse",
    COMMANDS,
    about="Keeps job queues, event streams, leases and object storage clean: nothing stays stuck, nothing is lost, "
    "nothing leaks.",
    examples="Start with `wrasse demo`. What is set: `wrasse config show`. The version: `wrasse --version`.",
)


def main(args: list[str] | None = None) -> NoReturn:
    """Runs the command and leaves the process with its exit code."""
    args = sys.argv[1:] if args is None else args
    if args and args[0] in ("--version", "-V"):
        sys.stdout.write(f"wrasse {__version__}\n")
        sys.exit(0)
    # Wherever it stands, --debug means the same; groups do not take it, commands do.
    debug = "--debug" in args[: args.index("--") if "--" in args else None]
    sys.exit(_run(args, debug=debug))


def _run(args: list[str], *, debug: bool) -> int:
    try:
        code = wrasse.main(args or ["--help"], prog_name="wrasse", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.exceptions.NoArgsIsHelpError as asked:
        sys.stdout.write(asked.format_message() + "\n")
        return 0
    except click.ClickException as why:
        return _say(*_usage(why), code=2)
    except (KeyboardInterrupt, click.Abort):
        return _say("interrupted", "", code=1)
    except WrasseError as why:
        if debug:
            return _story()
        return _say(why.message, why.do, code=why.exit_code)
    except UnicodeEncodeError as why:
        if debug:
            return _story()
        # Only an argument can be such a text: Python stands half a pair for each byte that is no UTF-8.
        return _say(f"{why.object[:80]!r} is not UTF-8", "write names in UTF-8, or give a payload with --file", code=2)
    except Exception as why:
        if debug:
            return _story()
        hint = "call the command with --debug for the whole story, and report it"
        return _say(f"{type(why).__name__}: {why}", hint, code=1)


def _story() -> int:
    """The traceback, without secrets: values that a driver puts into its errors stand in it, too."""
    sys.stderr.write(hide(traceback.format_exc()))
    return 1


def _usage(why: click.ClickException) -> tuple[str, str]:
    message, _, do = why.format_message().partition("\ndo: ")
    if not do:
        ctx = getattr(why, "ctx", None)
        do = f"see `{ctx.command_path} --help`" if ctx is not None else "see `wrasse --help`"
    return message[:1].lower() + message[1:], do


def _say(message: str, do: str, *, code: int) -> int:
    sys.stderr.write(hide(f"error: {message}\n" + (f"do: {do}\n" if do else "")))
    return code
